/* array.c: see array.h. */
#include "train/data/array.h"

#include "dist/group/half.h"

#include <stdio.h>
#include <string.h>

/* ---- Elements --------------------------------------------------------------------------------------------------- */

/* Each converts the bits of an element, in the lowest bits of a word, to its value. */
static double from_unsigned(uint64_t bits, int64_t bytes) {
    (void)bytes;
    return (double)bits;
}

static double from_signed(uint64_t bits, int64_t bytes) {
    int unused = (int)(64 - 8 * bytes);
    return (double)((int64_t)(bits << unused) >> unused);
}

static double from_floating(uint64_t bits, int64_t bytes) {
    double value;
    if (bytes == 2) return (double)rm_from_f16((uint16_t)bits);
    if (bytes == 4) return (double)rm_bits_float((uint32_t)bits);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static const struct {
    char kind;
    const char *sizes; /* in bytes, one digit each */
    double (*value)(uint64_t bits, int64_t bytes);
} types[] = {
    {'f', "248", from_floating},
    {'i', "1248", from_signed},
    {'u', "1248", from_unsigned},
    {'b', "1", from_unsigned},
};
enum { TYPES = sizeof types / sizeof types[0] };

bool rm_array_type_known(char kind, int64_t bytes) {
    for (int i = 0; i < TYPES; i++)
        if (types[i].kind == kind) return bytes > 0 && bytes < 10 && strchr(types[i].sizes, (char)('0' + bytes));
    return false;
}

double rm_array_at(const rm_array *a, int64_t i, int64_t j, int64_t k) {
    const uint8_t *item = a->item + (i * a->stride[0] + j * a->stride[1] + k * a->stride[2]) * a->bytes;
    uint64_t bits = 0;
    int type = 0;
    if (a->kind == 'u' && a->bytes == 1) return *item; /* fast path for pixels */
    for (int64_t n = 0; n < a->bytes; n++) bits |= (uint64_t)item[a->big_endian ? a->bytes - 1 - n : n] << 8 * n;
    while (types[type].kind != a->kind) type++;
    return types[type].value(bits, a->bytes);
}

/* ---- Dimensions ------------------------------------------------------------------------------------------------- */

/* "(5, 0, 3)" */
static const char *shape_text(const rm_array *a, char text[96]) {
    int n = snprintf(text, 96, "(");
    for (int i = 0; i < a->rank; i++)
        n += snprintf(text + n, (size_t)(96 - n), "%s%lld", i ? ", " : "", (long long)a->dim[i]);
    snprintf(text + n, (size_t)(96 - n), ")");
    return text;
}

remat_status rm_array_settle(rm_array *a, bool fortran, const char *name) {
    char text[96];
    a->count = 1;
    for (int i = 0; i < a->rank; i++)
        REQUIRE(a->dim[i] > 0, IO,
                "%s is empty: its shape is %s; no dimension may be 0: features are (samples, timesteps, features), "
                "images (samples, rows, columns), labels (samples)",
                name, shape_text(a, text));
    for (int i = 0; i < a->rank; i++) {
        int64_t bytes, at = fortran ? i : a->rank - 1 - i;
        a->stride[at] = a->count;
        bool huge = __builtin_mul_overflow(a->count, a->dim[at], &a->count);
        REQUIRE(!huge && !__builtin_mul_overflow(a->count, a->bytes, &bytes) && bytes < INT64_MAX / 2, IO,
                "%s is shorter than its header says: no file can hold an array of shape %s", name, shape_text(a, text));
    }
    return REMAT_OK;
}

remat_status rm_array_place(rm_array *a, const uint8_t *data, size_t size, size_t header_bytes, const char *name) {
    uint64_t wanted = (uint64_t)(a->count * a->bytes), there = size - header_bytes;
    REQUIRE(there == wanted, IO,
            "%s is %s than the %llu bytes of data that its header declares: fetch it again, or save it again", name,
            there < wanted ? "shorter" : "longer", (unsigned long long)wanted);
    a->item = data + header_bytes;
    return REMAT_OK;
}
