#!/usr/bin/env python3
"""Makes tests/train/image_files.h: small JPEG and PNG files of every kind that decoders distinguish, and Pillow's pixels.

    python3 tests/golden/make_image_files.py     # any Pillow; run it by hand and commit the result
"""
import io
import os
import struct
import zlib

import numpy as np
from PIL import Image

W, H = 7, 5


def saved(image, **how):
    out = io.BytesIO()
    image.save(out, **how)
    return out.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_chunks(png, *chunks):
    """Inserts a chunk after the header, at byte 33."""
    return png[:33] + b"".join(chunk(kind, data) for kind, data in chunks) + png[33:]


def png_file(kind, bits, rows, *chunks):
    """A kind of PNG that Pillow does not write."""
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows), 9)
    head = struct.pack(">IIBBBBB", W, H, bits, kind, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return with_chunks(file, *chunks)


def interlaced(rgb):
    """Adam7: seven smaller images, one after the other."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = [row for y, x, down, right in passes for row in rgb[y::down, x::right] if row.size]
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows), 9)
    head = struct.pack(">IIBBBBB", W, H, 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def c_array(name, data):
    lines = [", ".join(str(b) for b in data[i:i + 24]) for i in range(0, len(data), 24)]
    return f"static const uint8_t {name}[] = {{\n    " + ",\n    ".join(lines) + "};\n"


def main():
    y, x = np.mgrid[0:H, 0:W]
    rgb = np.stack([30 * x + 10, 40 * y + 20, 15 * (x + y) + 60], 2).astype(np.uint8)
    colour, alpha = Image.fromarray(rgb), Image.fromarray(np.dstack([rgb, 255 - rgb[:, :, :1]]))
    deep = Image.fromarray((rgb[:, :, 0].astype(np.uint16) * 257))
    # Pure colours, whose grey depends most on the formula; 16 bits with lower halves that rounding would change.
    pure = np.array([[255 * (i & 1), 255 * (i >> 1 & 1), 200 * (i >> 2 & 1)] for i in range(H * W)], np.uint8)
    pure = pure.reshape(H, W, 3)
    deeper = (pure.astype(">u2") * 256 + 255 - x[:, :, None] * 20).astype(">u2")
    gamma, srgb = (b"gAMA", struct.pack(">I", 45455)), (b"sRGB", b"\0")
    profile = (b"iCCP", b"linear\0\0" + zlib.compress(bytes(128)))
    pure_png = saved(Image.fromarray(pure), format="PNG")
    palette = saved(Image.fromarray(pure).convert("P", palette=Image.Palette.ADAPTIVE), format="PNG")
    files = {
        "jpeg": saved(colour, format="JPEG", quality=95, subsampling=0, optimize=True),
        "jpeg_progressive": saved(colour, format="JPEG", quality=95, subsampling=0, progressive=True),
        "jpeg_grey": saved(colour.convert("L"), format="JPEG", quality=95, optimize=True),
        "jpeg_cmyk": saved(colour.convert("CMYK"), format="JPEG", quality=95, optimize=True),
        "png": saved(colour, format="PNG"),
        "png_alpha": saved(alpha, format="PNG"),
        "png_palette": saved(colour.convert("P", palette=Image.Palette.ADAPTIVE), format="PNG"),
        "png_bits": saved(colour.convert("1"), format="PNG"),
        "png_deep": saved(deep, format="PNG"),
        "png_gamma": with_chunks(pure_png, gamma),
        "png_srgb": with_chunks(pure_png, srgb, gamma),
        "png_profile": with_chunks(pure_png, profile),
        "png_linear": with_chunks(pure_png, (b"gAMA", struct.pack(">I", 100000))),
        "png_palette_gamma": with_chunks(palette, gamma),
        "png_alpha_gamma": with_chunks(saved(alpha, format="PNG"), gamma),
        "png_grey_alpha": with_chunks(saved(alpha.convert("LA"), format="PNG"), gamma),
        "png_colour_key": with_chunks(pure_png, gamma, (b"tRNS", struct.pack(">HHH", 255, 0, 0))),
        "png_deep_colour": png_file(2, 16, deeper, gamma),
        "png_deep_alpha": png_file(6, 16, np.dstack([deeper, deeper[:, :, :1]])),
        "png_interlaced": with_chunks(interlaced(rgb), gamma),
        "jpeg_pure": saved(Image.fromarray(pure), format="JPEG", quality=50, subsampling=0, optimize=True),
        "jpeg_pure_cmyk": saved(Image.fromarray(pure).convert("CMYK"), format="JPEG", quality=95, optimize=True),
    }
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../train/image_files.h"), "w") as out:
        out.write(f"/* image_files.h: small image files, and their pixels as Pillow reads them: {H} rows of {W} red, green and blue, or of\n"
                  " * grey. Written by tests/golden/make_image_files.py. */\n#ifndef IMAGE_FILES_H\n#define IMAGE_FILES_H\n\n"
                  "#include <stddef.h>\n#include <stdint.h>\n\n/* clang-format off */\n")
        for name, data in files.items():
            out.write(c_array(name, data))
            image = Image.open(io.BytesIO(data))
            if name == "png_deep":  # Pillow truncates 16 bits where a conversion would round
                image = Image.fromarray((np.array(image) // 257).astype(np.uint8))
            out.write(c_array(name + "_rgb", np.array(image.convert("RGB")).tobytes()))
            out.write(c_array(name + "_luma", np.array(image.convert("L")).tobytes()))
        out.write("\nstatic const struct {\n    const char *name;\n    const uint8_t *data;\n    size_t size;\n    const uint8_t *rgb, *grey;\n"
                  "} image_files[] = {\n")
        for name in files:
            out.write(f'    {{"{name}", {name}, sizeof {name}, {name}_rgb, {name}_luma}},\n')
        out.write(f"}};\n/* clang-format on */\nenum {{ IMAGE_FILES = {len(files)}, IMAGE_HEIGHT = {H}, IMAGE_WIDTH = {W} }};\n\n#endif\n")


if __name__ == "__main__":
    main()
