/* decode_jpeg.c: JPEG by libjpeg-turbo. See decode.h. */
#include "train/data/decode.h"

#if REMAT_HAVE_JPEG

#include <stdio.h> /* jpeglib.h needs it but does not include it */

#include <jpeglib.h>

#include <jerror.h>
#include <setjmp.h>
#include <string.h>

#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x
const char *rm_jpeg_library(void) {
#ifdef LIBJPEG_TURBO_VERSION
    return "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION);
#else
    return "libjpeg " TEXT(JPEG_LIB_VERSION);
#endif
}

enum { FIXED_BYTES = 1 << 20 }; /* decoder memory that does not depend on the image */

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf end;
    bool cut_short;
    char text[JMSG_LENGTH_MAX];
} errors;

static void on_error(j_common_ptr jpeg) {
    errors *e = (errors *)jpeg->err;
    e->base.format_message(jpeg, e->text);
    longjmp(e->end, 1);
}

/* If a file is truncated, the library fills in the rest and warns; here that is an error. Its other warnings are about
 * damage inside a complete file. All viewers show such images, and Pillow reads them silently. */
static void on_message(j_common_ptr jpeg, int level) {
    errors *e = (errors *)jpeg->err;
    if (level < 0 && e->base.msg_code == JWRN_JPEG_EOF) e->cut_short = true;
}

static void on_output(j_common_ptr jpeg) { (void)jpeg; }

static void begin(struct jpeg_decompress_struct *jpeg, errors *e, const uint8_t *data, size_t size) {
    jpeg->err = jpeg_std_error(&e->base);
    e->base.error_exit = on_error;
    e->base.emit_message = on_message;
    e->base.output_message = on_output;
    jpeg_create_decompress(jpeg);
    jpeg_mem_src(jpeg, data, (unsigned long)size);
    jpeg_read_header(jpeg, TRUE);
}

/* A progressive image is decoded as a whole before the first row, in whole blocks of 2 bytes per coefficient. */
static rm_image_size size_of(const struct jpeg_decompress_struct *jpeg) {
    const uint64_t block = 32, width = (jpeg->image_width + block - 1) / block * block;
    const uint64_t height = (jpeg->image_height + block - 1) / block * block;
    bool whole = jpeg->progressive_mode || jpeg->comps_in_scan < jpeg->num_components;
    const uint64_t rows = FIXED_BYTES + 64 * width * (uint64_t)jpeg->num_components,
                   all = whole ? 2 * width * height * (uint64_t)jpeg->num_components : 0;
    return (rm_image_size){jpeg->image_height, jpeg->image_width, rows + all};
}

static remat_status broken(const char *name, const errors *e) {
    FAIL(IO, "%s is damaged: %s; fetch it again, or skip it with --skip-broken", name, e->text);
}

remat_status rm_jpeg_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out) {
    struct jpeg_decompress_struct jpeg;
    errors e = {.text = ""};
    memset(&jpeg, 0, sizeof jpeg);
    if (setjmp(e.end)) {
        jpeg_destroy_decompress(&jpeg);
        return broken(name, &e);
    }
    begin(&jpeg, &e, data, size);
    *out = size_of(&jpeg);
    jpeg_destroy_decompress(&jpeg);
    return REMAT_OK;
}

/* a * b / 255, rounded. */
static int scaled(int a, int b) {
    int product = a * b + 128;
    return (product + (product >> 8)) >> 8;
}

/* Converts 4 bytes per pixel to 3, in place. Adobe's programs store inverted CMYK and mark the file. */
static void from_cmyk(uint8_t *row, int64_t width, bool inverted) {
    for (int64_t x = 0; x < width; x++)
        for (int c = 0, flip = inverted ? 255 : 0, light = 255 - (row[4 * x + 3] ^ flip); c < 3; c++)
            row[3 * x + c] = (uint8_t)(light - scaled(row[4 * x + c] ^ flip, light));
}

/* Grey is computed from red, green and blue: the file's own luma differs where those are clipped to 255. */
static void read_rows(struct jpeg_decompress_struct *jpeg, int64_t channels, uint8_t *out) {
    const int64_t width = jpeg->output_width;
    const bool ink = jpeg->out_color_space == JCS_CMYK, colour = ink || jpeg->out_color_space == JCS_RGB;
    JSAMPARRAY line = (*jpeg->mem->alloc_sarray)((j_common_ptr)jpeg, JPOOL_IMAGE, 4 * jpeg->output_width, 1);
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW row = out + (int64_t)jpeg->output_scanline * width * channels;
        const bool direct = !ink && (channels == 3 || !colour);
        jpeg_read_scanlines(jpeg, direct ? &row : line, 1);
        if (ink) from_cmyk(line[0], width, jpeg->saw_Adobe_marker);
        if (!direct && channels == 1) rm_grey_row(line[0], width, row);
        if (!direct && channels == 3) memcpy(row, line[0], (size_t)(3 * width));
    }
}

remat_status rm_jpeg_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                            const rm_image_size *expected, uint8_t *out) {
    struct jpeg_decompress_struct jpeg;
    errors e = {.text = ""};
    memset(&jpeg, 0, sizeof jpeg);
    if (setjmp(e.end)) {
        jpeg_destroy_decompress(&jpeg);
        return broken(name, &e);
    }
    begin(&jpeg, &e, data, size);
    remat_status status = rm_image_check(expected, size_of(&jpeg), name);
    if (status) {
        jpeg_destroy_decompress(&jpeg);
        return status;
    }
    bool ink = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
    bool grey = channels == 1 && jpeg.jpeg_color_space == JCS_GRAYSCALE;
    jpeg.out_color_space = ink ? JCS_CMYK : grey ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&jpeg);
    read_rows(&jpeg, channels, out);
    jpeg_finish_decompress(&jpeg);
    jpeg_destroy_decompress(&jpeg);
    REQUIRE(!e.cut_short, IO, "%s is truncated: fetch it again, or skip it with --skip-broken", name);
    return REMAT_OK;
}

#else

const char *rm_jpeg_library(void) { return "not in this build: install libjpeg-turbo (libjpeg-dev) and build again"; }

remat_status rm_jpeg_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out) {
    (void)data, (void)size, (void)out;
    FAIL(MISSING,
         "%s is a JPEG file, but this build cannot read JPEG: install libjpeg-turbo (libjpeg-dev) and build again",
         name);
}

remat_status rm_jpeg_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                            const rm_image_size *expected, uint8_t *out) {
    (void)channels, (void)expected, (void)out;
    return rm_jpeg_size_of(data, size, name, NULL);
}

#endif
