/* idx.c: see idx.h. */
#include "train/idx.h"

static uint32_t big_endian(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

remat_status rm_idx_parse(const uint8_t *data, size_t size, const char *name, rm_idx *out) {
    *out = (rm_idx){.dim = {1, 1, 1, 1}, .count = 1};
    REQUIRE(size >= 4 && data[0] == 0 && data[1] == 0, IO,
            "%s is not an IDX file: it does not start with the bytes 0 0 (MNIST files look like "
            "train-images-idx3-ubyte, plain or .gz)",
            name);
    REQUIRE(data[2] == 8, IO, "%s holds IDX type 0x%02x; only unsigned bytes (0x08) are read", name, data[2]);
    out->rank = data[3];
    REQUIRE(out->rank >= 1 && out->rank <= 4, IO, "%s has %d dimensions; 1 to 4 are read", name, out->rank);
    size_t header = 4 + 4 * (size_t)out->rank;
    REQUIRE(size >= header, IO, "%s ends inside its header, at byte %zu of %zu: fetch it again", name, size, header);
    uint64_t available = size - header;
    for (int i = 0; i < out->rank; i++) {
        out->dim[i] = big_endian(data + 4 + 4 * i);
        REQUIRE(out->dim[i] > 0, IO, "%s has dimension %d equal to 0: it is empty", name, i);
        REQUIRE((uint64_t)out->dim[i] <= available / (uint64_t)out->count, IO,
                "%s is shorter than its header says (%llu bytes of data): fetch it again", name,
                (unsigned long long)available);
        out->count *= out->dim[i];
    }
    REQUIRE((uint64_t)out->count == available, IO, "%s has %llu bytes more than its header says: fetch it again", name,
            (unsigned long long)available - (unsigned long long)out->count);
    out->item = data + header;
    return REMAT_OK;
}
