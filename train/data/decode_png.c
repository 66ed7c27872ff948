/* decode_png.c: PNG by libpng. See decode.h. */
#include "train/data/decode.h"

#if REMAT_HAVE_PNG

#include "memory/host.h"

#include <png.h>

#include <stdio.h>
#include <string.h>

const char *rm_png_library(void) { return "libpng " PNG_LIBPNG_VER_STRING; }

enum { FIXED_BYTES = 1 << 20 }; /* decoder memory that does not depend on the image, such as zlib's window */

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
    if (bytes > s->left) png_error(png, "it is truncated");
    memcpy(out, s->data, bytes);
    s->data += bytes;
    s->left -= bytes;
}

static remat_status broken(const char *name, const source *s) {
    FAIL(IO, "%s is damaged: %s; fetch it again, or skip it with --skip-broken", name, s->text);
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

static bool has_colour(png_structp png, png_infop info) { return png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR; }

static rm_image_size size_of(png_structp png, png_infop info) {
    rm_image_size size = {png_get_image_height(png, info), png_get_image_width(png, info), 0};
    bool whole = has_colour(png, info) && png_get_interlace_type(png, info) != PNG_INTERLACE_NONE; /* for read_grey */
    size.decoder_bytes =
        FIXED_BYTES + 32 * (uint64_t)size.width + (whole ? 3 * (uint64_t)(size.width * size.height) : 0);
    return size;
}

remat_status rm_png_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out) {
    source s = {.data = data, .left = size};
    png_infop info;
    png_structp png = begin(&s, &info);
    REQUIRE(png, MEMORY, "no memory to read %s", name);
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_read_struct(&png, &info, NULL);
        return broken(name, &s);
    }
    read_header(png, info, &s);
    *out = size_of(png, info);
    png_destroy_read_struct(&png, &info, NULL);
    return REMAT_OK;
}

/* Does not use libpng's conversion to grey, which applies gAMA, sRGB and iCCP chunks. */
static void ask_for(png_structp png, png_infop info, int64_t channels) {
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    if (channels == 3 && !has_colour(png, info)) png_set_gray_to_rgb(png);
}

/* Converts colour rows to grey. `rgb` has room for one row, or for all rows of an interlaced image. */
static void read_grey(png_structp png, const rm_image_size *size, int passes, uint8_t *rgb, uint8_t *out) {
    const int64_t W = size->width, H = size->height;
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < H; y++) {
            uint8_t *row = rgb + (passes > 1 ? 3 * W * y : 0);
            png_read_row(png, row, NULL);
            if (pass + 1 == passes) rm_grey_row(row, W, out + W * y);
        }
}

static void read_plain(png_structp png, const rm_image_size *size, int passes, size_t row, uint8_t *out) {
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < size->height; y++) png_read_row(png, out + (size_t)y * row, NULL);
}

remat_status rm_png_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                           const rm_image_size *expected, uint8_t *out) {
    source s = {.data = data, .left = size};
    png_infop info;
    png_structp png = begin(&s, &info);
    uint8_t *volatile rgb = NULL;
    REQUIRE(png, MEMORY, "no memory to read %s", name);
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_read_struct(&png, &info, NULL);
        rm_free(rgb);
        return broken(name, &s);
    }
    read_header(png, info, &s);
    remat_status status = rm_image_check(expected, size_of(png, info), name);
    if (status) {
        png_destroy_read_struct(&png, &info, NULL);
        return status;
    }
    const bool grey = channels == 1 && has_colour(png, info);
    const size_t row = (size_t)(expected->width * (grey ? 3 : channels));
    ask_for(png, info, channels);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != row) png_error(png, "its row length does not match its header");
    if (grey) rgb = rm_malloc(passes > 1 ? row * (size_t)expected->height : row);
    if (grey && !rgb) png_error(png, "no memory to convert it to grey");
    if (grey)
        read_grey(png, expected, passes, rgb, out);
    else
        read_plain(png, expected, passes, row, out);
    png_read_end(png, NULL);
    png_destroy_read_struct(&png, &info, NULL);
    rm_free(rgb);
    return REMAT_OK;
}

#else

const char *rm_png_library(void) { return "not in this build: install libpng (libpng-dev) and build again"; }

remat_status rm_png_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out) {
    (void)data, (void)size, (void)out;
    FAIL(MISSING, "%s is a PNG file, but this build cannot read PNG: install libpng (libpng-dev) and build again",
         name);
}

remat_status rm_png_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                           const rm_image_size *expected, uint8_t *out) {
    (void)channels, (void)expected, (void)out;
    return rm_png_size_of(data, size, name, NULL);
}

#endif
