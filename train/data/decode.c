/* decode.c: chooses the decoder by a file's first bytes. See decode.h. */
#include "train/data/decode.h"

#include <string.h>

typedef struct {
    const char *magic;
    size_t bytes;
    remat_status (*size_of)(const uint8_t *, size_t, const char *, rm_image_size *);
    remat_status (*decode)(const uint8_t *, size_t, const char *, int64_t, const rm_image_size *, uint8_t *);
} format;

static const format formats[] = {{"\xFF\xD8\xFF", 3, rm_jpeg_size_of, rm_jpeg_decode},
                                 {"\x89PNG\r\n\x1A\n", 8, rm_png_size_of, rm_png_decode}};

static const format *format_of(const uint8_t *data, size_t size) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (size >= formats[i].bytes && !memcmp(data, formats[i].magic, formats[i].bytes)) return &formats[i];
    return NULL;
}

static remat_status no_format(const char *name) {
    FAIL(IO, "%s is neither a JPEG nor a PNG file (by its first bytes): convert it, or remove it", name);
}

remat_status rm_image_size_of(const uint8_t *data, size_t size, const char *name, rm_image_size *out) {
    const format *f = format_of(data, size);
    if (!f) return no_format(name);
    TRY(f->size_of(data, size, name, out));
    REQUIRE(out->height >= 1 && out->width >= 1 && out->height <= RM_MOST_PIXELS / out->width, IO,
            "%s has %lld x %lld pixels, more than the limit of %lld: make it smaller", name, (long long)out->height,
            (long long)out->width, (long long)RM_MOST_PIXELS);
    return REMAT_OK;
}

remat_status rm_image_decode(const uint8_t *data, size_t size, const char *name, int64_t channels,
                             const rm_image_size *expected, uint8_t *out) {
    const format *f = format_of(data, size);
    return f ? f->decode(data, size, name, channels, expected, out) : no_format(name);
}

remat_status rm_image_check(const rm_image_size *expected, rm_image_size now, const char *name) {
    REQUIRE(now.height == expected->height && now.width == expected->width &&
                now.decoder_bytes <= expected->decoder_bytes,
            IO, "%s has changed since the run began: start the run again", name);
    return REMAT_OK;
}
