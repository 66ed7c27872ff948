/* decode.h: JPEG and PNG files as bytes (height, width, channels). Works on memory, so a fuzzer can drive it. Which of the two a file
 * is, its first bytes say, not its name. Decoders are libjpeg-turbo and libpng, where the build found them.
 *
 * Colours become grey, or grey three alike, as the caller wants 1 channel or 3; transparency is dropped, of 16 bits the upper 8 stay, CMYK
 * becomes RGB; notes on gamma and colour spaces change nothing; a note on how a camera was held (EXIF) is not followed: what Pillow's convert and torchvision's ImageFolder do. */
#ifndef RM_DECODE_H
#define RM_DECODE_H

#include "engine/status.h"

#define RM_MOST_PIXELS ((int64_t)1 << 28)

typedef struct {
    int64_t height, width;
    uint64_t decoder_bytes; /* that decoding takes at most, beside the image */
} rm_image_size;

/* The header alone. IO: it is no such image, or a damaged one. MISSING: the build has no decoder for it. */
remat_status rm_image_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out);

/* Its pixels, height * width * channels bytes, 1 or 3 channels. IO also where it has not the size that is `expected`. Where parts
 * of a file are missing it is an IO; what was written is then of no use. */
remat_status rm_image_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                             const rm_image_size *expected, uint8_t *out);

/* ITU-R 601's luma in whole numbers, as Pillow's convert("L") has it, whatever the file says of its colours. */
static inline uint8_t rm_grey_of(const uint8_t rgb[3]) {
    return (uint8_t)((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}
/* A row of so many pixels. */
static inline void rm_grey_row(const uint8_t *rgb, int64_t width, uint8_t *out) {
    for (int64_t x = 0; x < width; x++) out[x] = rm_grey_of(rgb + 3 * x);
}

/* "libjpeg-turbo 2.1.5", "libpng 1.6.39"; or "not in this build: ..." */
const char *rm_jpeg_library(void);
const char *rm_png_library(void);

/* ---- One format each: decode_jpeg.c, decode_png.c ------------------------------------------------------------------- */

/* For decoders, which read the header once: IO where it is not that of the image that is `expected`. */
remat_status rm_image_check(const rm_image_size *expected, rm_image_size now, const char *name);

remat_status rm_jpeg_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out);
remat_status rm_jpeg_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                            const rm_image_size *expected, uint8_t *out);
remat_status rm_png_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out);
remat_status rm_png_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                           const rm_image_size *expected, uint8_t *out);

#endif
