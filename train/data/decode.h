/* decode.h: decodes JPEG and PNG files to bytes (height,width,channels). Reads from memory, so a fuzzer can drive it. The first
 * bytes of a file tell its format, not its name. The decoders are libjpeg-turbo and libpng, if the build found them.
 *
 * Colour becomes grey, or grey becomes RGB, as the caller asks for 1 channel or 3. Transparency and the lower 8 of 16 bits are
 * dropped. CMYK becomes RGB. Gamma, colour profiles and EXIF orientation are ignored. Pillow's convert and torchvision's
 * ImageFolder do the same. */
#ifndef RM_DECODE_H
#define RM_DECODE_H

#include "engine/status.h"

#define RM_MOST_PIXELS ((int64_t)1 << 28)

typedef struct {
    int64_t height, width;
    uint64_t decoder_bytes; /* upper bound of the decoder's own memory, without the image */
} rm_image_size;

/* Reads the header only. IO: not a JPEG or PNG image, or damaged. MISSING: the build has no decoder for the format. */
remat_status rm_image_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out);

/* Decodes the pixels: height * width * channels bytes, 1 or 3 channels. IO also when the size is not `expected` or the file is
 * truncated; then `out` is undefined. */
remat_status rm_image_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                             const rm_image_size *expected, uint8_t *out);

/* ITU-R 601's luma in integers, the same as Pillow's convert("L"). */
static inline uint8_t rm_grey_of(const uint8_t rgb[3]) {
    return (uint8_t)((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}
static inline void rm_grey_row(const uint8_t *rgb, int64_t width, uint8_t *out) {
    for (int64_t x = 0; x < width; x++) out[x] = rm_grey_of(rgb + 3 * x);
}

/* "libjpeg-turbo 2.1.5", "libpng 1.6.39", or "not in this build: ..." */
const char *rm_jpeg_library(void);
const char *rm_png_library(void);

/* ---- One format each: decode_jpeg.c, decode_png.c ------------------------------------------------------------------- */

/* For decoders, which read the header again: IO when the image differs from `expected`. */
remat_status rm_image_check(const rm_image_size *expected, rm_image_size now, const char *name);

remat_status rm_jpeg_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out);
remat_status rm_jpeg_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                            const rm_image_size *expected, uint8_t *out);
remat_status rm_png_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out);
remat_status rm_png_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                           const rm_image_size *expected, uint8_t *out);

#endif
