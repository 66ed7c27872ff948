/* decode_png.c: PNG by libpng. See decode.h. */
#include "train/data/decode.h"

#if REMAT_HAVE_PNG

#include <png.h>

#include <stdio.h>
#include <string.h>

const char *rm_png_library(void) { return "libpng " PNG_LIBPNG_VER_STRING; }

enum { FIXED_BYTES = 1 << 20 }; /* zlib's windows and the like */

typedef struct {
    const uint8_t *data;
    size_t left;
    char text[160];
} source;

static void on_error(png_structp png, png_const_charp text) {
    source *s = png_get_error_ptr(png);
    snprintf(s->text, sizeof s->text, "%s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text) { (void)png, (void)text; }

static void on_read(png_structp png, png_bytep out, size_t bytes) {
    source *s = png_get_io_ptr(png);
    if (bytes > s->left) png_error(png, "it is cut short");
    memcpy(out, s->data, bytes);
    s->data += bytes;
    s->left -= bytes;
}

static remat_status broken(const char *name, const source *s) {
    FAIL(IO, "%s is damaged: %s; fetch it again, or leave it out (--skip-broken)", name, s->text);
}

static png_structp begin(source *s, png_infop *info) {
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, s, on_error, on_warning);
    *info = png ? png_create_info_struct(png) : NULL;
    if (*info) return png;
    png_destroy_read_struct(&png, NULL, NULL);
    return NULL;
}

static void read_header(png_structp png, png_infop info, source *s) {
    png_set_read_fn(png, s, on_read);
    png_set_user_limits(png, 0x7fffffff, 0x7fffffff);
    png_set_chunk_malloc_max(png, FIXED_BYTES / 4);
    png_read_info(png, info);
}

remat_status rm_png_size_of(const uint8_t *data, size_t size, const char *name, rm_picture_size *out) {
    source s = {.data = data, .left = size};
    png_infop info;
    png_structp png = begin(&s, &info);
    REQUIRE(png, MEMORY, "no memory to read %s", name);
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_read_struct(&png, &info, NULL);
        return broken(name, &s);
    }
    read_header(png, info, &s);
    *out = (rm_picture_size){png_get_image_height(png, info), png_get_image_width(png, info), 0};
    out->decoder_bytes = FIXED_BYTES + 32 * (uint64_t)out->width;
    png_destroy_read_struct(&png, &info, NULL);
    return REMAT_OK;
}

static void ask_for(png_structp png, png_infop info, int64_t channels) {
    const bool colour = png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR;
    png_set_expand(png);
    png_set_scale_16(png);
    png_set_strip_alpha(png);
    if (channels == 3 && !colour) png_set_gray_to_rgb(png);
    if (channels == 1 && colour) png_set_rgb_to_gray_fixed(png, PNG_ERROR_ACTION_NONE, 29900, 58700);
}

remat_status rm_png_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                           const rm_picture_size *expected, uint8_t *out) {
    source s = {.data = data, .left = size};
    png_infop info;
    png_structp png = begin(&s, &info);
    const size_t row = (size_t)(expected->width * channels);
    REQUIRE(png, MEMORY, "no memory to read %s", name);
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_read_struct(&png, &info, NULL);
        return broken(name, &s);
    }
    read_header(png, info, &s);
    ask_for(png, info, channels);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != row) png_error(png, "its rows are of another length than its header says");
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < expected->height; y++) png_read_row(png, out + (size_t)y * row, NULL);
    png_read_end(png, NULL);
    png_destroy_read_struct(&png, &info, NULL);
    return REMAT_OK;
}

#else

const char *rm_png_library(void) { return "not in this build: install libpng (libpng-dev) and build again"; }

remat_status rm_png_size_of(const uint8_t *data, size_t size, const char *name, rm_picture_size *out) {
    (void)data, (void)size, (void)out;
    FAIL(MISSING, "%s is a PNG file, and this build reads none: install libpng (libpng-dev) and build again", name);
}

remat_status rm_png_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                           const rm_picture_size *expected, uint8_t *out) {
    (void)channels, (void)expected, (void)out;
    return rm_png_size_of(data, size, name, NULL);
}

#endif
