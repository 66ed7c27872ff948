/* idx.c: see idx.h. */
#include "train/data/idx.h"

#include <string.h>

static uint32_t big_endian(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

remat_status rm_idx_header(const uint8_t *data, size_t size, const char *name, rm_array *out, size_t *header_bytes) {
    *out = (rm_array){.kind = 'u', .bytes = 1, .dim = {1, 1, 1, 1}};
    bool image = size >= 4 && (!memcmp(data, "\x89PNG", 4) || !memcmp(data, "\xff\xd8\xff", 3));
    REQUIRE(!image, IO, "%s is a single image: give a folder that has one folder of images per class", name);
    REQUIRE(size >= 4 && data[0] == 0 && data[1] == 0, IO,
            "%s is not an IDX file: it does not start with the bytes 0 0 (MNIST files look like "
            "train-images-idx3-ubyte, plain or .gz)",
            name);
    REQUIRE(data[2] == 8, IO, "%s has IDX type 0x%02x, but only unsigned bytes (0x08) are supported", name, data[2]);
    out->rank = data[3];
    REQUIRE(out->rank >= 1 && out->rank <= RM_ARRAY_MAX_RANK, IO,
            "%s has %d dimensions, but only 1 to %d are supported", name, out->rank, RM_ARRAY_MAX_RANK);
    *header_bytes = 4 + 4 * (size_t)out->rank;
    REQUIRE(size >= *header_bytes, IO, "%s ends in its header, at byte %zu of %zu: fetch it again", name, size,
            *header_bytes);
    for (int i = 0; i < out->rank; i++) out->dim[i] = big_endian(data + 4 + 4 * i);
    return rm_array_settle(out, false, name);
}

remat_status rm_idx_parse(const uint8_t *data, size_t size, const char *name, rm_array *out) {
    size_t header_bytes;
    TRY(rm_idx_header(data, size, name, out, &header_bytes));
    return rm_array_place(out, data, size, header_bytes, name);
}
