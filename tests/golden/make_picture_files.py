#!/usr/bin/env python3
"""Makes tests/train/picture_files.h: small JPEG and PNG files of every kind that decoders tell apart, and what Pillow reads in them.

    python3 tests/golden/make_picture_files.py     # any Pillow; run it by hand, commit what it writes
"""
import io
import os

import numpy as np
from PIL import Image

W, H = 7, 5


def saved(image, **how):
    out = io.BytesIO()
    image.save(out, **how)
    return out.getvalue()


def c_array(name, data):
    lines = [", ".join(str(b) for b in data[i:i + 24]) for i in range(0, len(data), 24)]
    return f"static const uint8_t {name}[] = {{\n    " + ",\n    ".join(lines) + "};\n"


def main():
    y, x = np.mgrid[0:H, 0:W]
    rgb = np.stack([30 * x + 10, 40 * y + 20, 15 * (x + y) + 60], 2).astype(np.uint8)
    colour, alpha = Image.fromarray(rgb), Image.fromarray(np.dstack([rgb, 255 - rgb[:, :, :1]]))
    deep = Image.fromarray((rgb[:, :, 0].astype(np.uint16) * 257))
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
    }
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../train/picture_files.h"), "w") as out:
        out.write("/* picture_files.h: small pictures as files, and their colours as Pillow reads them (tests/golden/make_picture_files.py, which\n"
                  f" * makes this), {H} rows of {W} red, green and blue. */\n#ifndef PICTURE_FILES_H\n#define PICTURE_FILES_H\n\n"
                  "#include <stddef.h>\n#include <stdint.h>\n\n/* clang-format off */\n")
        for name, data in files.items():
            out.write(c_array(name, data))
            image = Image.open(io.BytesIO(data))
            if name == "png_deep":  # Pillow cuts 16 bits off where a conversion would round
                image = Image.fromarray((np.array(image) // 257).astype(np.uint8))
            out.write(c_array(name + "_rgb", np.array(image.convert("RGB")).tobytes()))
        out.write("\nstatic const struct {\n    const char *name;\n    const uint8_t *data;\n    size_t size;\n    const uint8_t *rgb;\n"
                  "} picture_files[] = {\n")
        for name in files:
            out.write(f'    {{"{name}", {name}, sizeof {name}, {name}_rgb}},\n')
        out.write(f"}};\n/* clang-format on */\nenum {{ PICTURE_FILES = {len(files)}, PICTURE_HEIGHT = {H}, PICTURE_WIDTH = {W} }};\n\n#endif\n")


if __name__ == "__main__":
    main()
