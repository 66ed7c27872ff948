/* npy.c: see npy.h. The header is a Python dictionary literal; this reads the three keys that numpy writes, in any
 * order, and refuses everything else. */
#include "train/npy.h"

#include <ctype.h>
#include <string.h>

static const struct {
    const char *descr;
    int64_t bytes;
} types[] = {
    [RM_NPY_F4] = {"<f4", 4}, [RM_NPY_F8] = {"<f8", 8}, [RM_NPY_U1] = {"|u1", 1},
    [RM_NPY_I4] = {"<i4", 4}, [RM_NPY_I8] = {"<i8", 8},
};
enum { TYPES = sizeof types / sizeof types[0] };

/* ---- The dictionary --------------------------------------------------------------------------------------------- */

typedef struct {
    const char *at, *end, *name;
} reader;

static void skip_spaces(reader *r) {
    while (r->at < r->end && isspace((unsigned char)*r->at)) r->at++;
}

static bool next_is(reader *r, char wanted) {
    skip_spaces(r);
    if (r->at >= r->end || *r->at != wanted) return false;
    r->at++;
    return true;
}

/* 'text' or "text", up to 31 characters. */
static bool read_quoted(reader *r, char out[32]) {
    char quote = next_is(r, '\'') ? '\'' : next_is(r, '"') ? '"' : 0;
    size_t length = 0;
    if (!quote) return false;
    while (r->at < r->end && *r->at != quote && length < 31) out[length++] = *r->at++;
    out[length] = 0;
    return next_is(r, quote);
}

static bool read_word(reader *r, const char *word) {
    size_t length = strlen(word);
    skip_spaces(r);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length)) return false;
    r->at += length;
    return true;
}

static bool read_size(reader *r, int64_t *out) {
    *out = 0;
    skip_spaces(r);
    const char *start = r->at;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *r->at - '0', out)) return false;
    return r->at > start;
}

static remat_status read_type(reader *r, rm_npy *out) {
    char text[32];
    REQUIRE(read_quoted(r, text), IO, "%s holds a structured array; give a plain one", r->name);
    for (int i = 0; i < TYPES; i++)
        if (!strcmp(text, types[i].descr)) {
            out->type = (rm_npy_type)i;
            return REMAT_OK;
        }
    FAIL(IO, "%s holds '%s'; '<f4', '<f8', '|u1', '<i4' and '<i8' are read: save it with .astype('float32')", r->name,
         text);
}

static remat_status read_shape(reader *r, rm_npy *out) {
    REQUIRE(next_is(r, '('), IO, "%s has a damaged header: no shape", r->name);
    while (!next_is(r, ')')) {
        REQUIRE(out->rank < RM_NPY_MAX_RANK, IO, "%s has more than %d dimensions", r->name, RM_NPY_MAX_RANK);
        REQUIRE(read_size(r, &out->dim[out->rank]), IO, "%s has a damaged header: its shape is not numbers", r->name);
        out->rank++;
        if (next_is(r, ',')) continue;
        REQUIRE(next_is(r, ')'), IO, "%s has a damaged header: its shape does not end", r->name);
        break;
    }
    return REMAT_OK;
}

static remat_status read_entry(reader *r, rm_npy *out, unsigned *seen) {
    char key[32];
    REQUIRE(read_quoted(r, key) && next_is(r, ':'), IO, "%s has a damaged header", r->name);
    unsigned bit = !strcmp(key, "descr") ? 1 : !strcmp(key, "fortran_order") ? 2 : !strcmp(key, "shape") ? 4 : 0;
    REQUIRE(bit && !(*seen & bit), IO, "%s has a damaged header at '%s'", r->name, key);
    *seen |= bit;
    if (bit == 1) return read_type(r, out);
    if (bit == 4) return read_shape(r, out);
    REQUIRE(!read_word(r, "True"), IO, "%s is in Fortran order: save numpy.ascontiguousarray of it", r->name);
    REQUIRE(read_word(r, "False"), IO, "%s has a damaged header at 'fortran_order'", r->name);
    return REMAT_OK;
}

static remat_status read_header(reader *r, rm_npy *out) {
    unsigned seen = 0;
    REQUIRE(next_is(r, '{'), IO, "%s has a damaged header", r->name);
    while (!next_is(r, '}')) {
        TRY(read_entry(r, out, &seen));
        if (next_is(r, ',')) continue;
        REQUIRE(next_is(r, '}'), IO, "%s has a damaged header", r->name);
        break;
    }
    REQUIRE(seen == 7, IO, "%s has a header without descr, fortran_order or shape", r->name);
    return REMAT_OK;
}

/* ---- The file --------------------------------------------------------------------------------------------------- */

/* Where the header's text begins and ends: its length has 2 bytes in version 1, 4 in versions 2 and 3. */
static remat_status find_header(const uint8_t *data, size_t size, reader *r) {
    REQUIRE(size >= 10 && !memcmp(data, "\x93NUMPY", 6), IO, "%s is not a .npy file: make one with numpy.save",
            r->name);
    REQUIRE(data[6] >= 1 && data[6] <= 3, IO, "%s is .npy version %d; versions 1 to 3 are read", r->name, data[6]);
    size_t start = data[6] == 1 ? 10 : 12;
    REQUIRE(size >= start, IO, "%s ends inside its header: save it again", r->name);
    size_t length = data[8] | (size_t)data[9] << 8;
    if (start == 12) length |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    REQUIRE(length <= size - start, IO, "%s ends inside its header: save it again", r->name);
    r->at = (const char *)data + start;
    r->end = r->at + length;
    return REMAT_OK;
}

remat_status rm_npy_parse(const uint8_t *data, size_t size, const char *name, rm_npy *out) {
    *out = (rm_npy){.dim = {1, 1, 1, 1}, .count = 1};
    reader r = {.name = name};
    TRY(find_header(data, size, &r));
    out->item = (const uint8_t *)r.end;
    TRY(read_header(&r, out));
    uint64_t available = size - (size_t)(out->item - data);
    for (int i = 0; i < out->rank; i++) {
        REQUIRE(out->dim[i] > 0, IO, "%s has dimension %d equal to 0: it is empty", name, i);
        REQUIRE((uint64_t)out->dim[i] <= available / (uint64_t)(out->count * types[out->type].bytes), IO,
                "%s is shorter than its header says (%llu bytes of data): save it again", name,
                (unsigned long long)available);
        out->count *= out->dim[i];
    }
    REQUIRE((uint64_t)(out->count * types[out->type].bytes) == available, IO,
            "%s does not have the length that its header says: save it again", name);
    return REMAT_OK;
}

/* The file is little-endian; so is every machine this is built for (checked here, at compile time). */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "npy.c reads little-endian numbers as they lie");
#define READ(type, array, index)                                                                                       \
    ({                                                                                                                 \
        type value_;                                                                                                   \
        memcpy(&value_, (array)->item + (index) * (int64_t)sizeof value_, sizeof value_);                              \
        value_;                                                                                                        \
    })

bool rm_npy_is_integer(const rm_npy *a) { return a->type >= RM_NPY_U1; }

int64_t rm_npy_integer(const rm_npy *a, int64_t index) {
    switch (a->type) {
    case RM_NPY_U1:
        return a->item[index];
    case RM_NPY_I4:
        return READ(int32_t, a, index);
    default:
        return READ(int64_t, a, index);
    }
}

double rm_npy_real(const rm_npy *a, int64_t index) {
    switch (a->type) {
    case RM_NPY_F4:
        return READ(float, a, index);
    case RM_NPY_F8:
        return READ(double, a, index);
    default:
        return (double)rm_npy_integer(a, index);
    }
}
