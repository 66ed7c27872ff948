/* npy.c: see npy.h. The header is a Python dictionary literal. This reads the three keys that numpy writes, in any
 * order, and refuses everything else. */
#include "train/data/npy.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* NumPy's types that are not numbers, by their letters, and how to convert them. */
static const struct {
    char kind;
    const char *what, *remedy;
} others[] = {
    {'c', "complex numbers", "give their parts as features: numpy.stack([x.real, x.imag], axis=-1)"},
    {'O', "Python objects", "pad rows to the same length, then save it with .astype('float32')"},
    {'S', "texts", "number them: numpy.unique(x, return_inverse=True)[1]"},
    {'U', "texts", "number them: numpy.unique(x, return_inverse=True)[1]"},
    {'M', "dates", "convert them: .astype('int64')"},
    {'m', "durations", "convert them: .astype('int64')"},
};
enum { OTHERS = sizeof others / sizeof others[0] };

/* ---- The dictionary --------------------------------------------------------------------------------------------- */

typedef struct {
    const char *at, *end, *name;
    bool fortran, long_numbers; /* long_numbers: sizes may be written as 8L, by Python 2 */
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

/* Reads 'text' or "text", up to 31 characters. */
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
    const bool found = r->at > start;
    if (found && r->long_numbers && r->at < r->end && *r->at == 'L') r->at++;
    return found;
}

static remat_status refuse_type(const reader *r, const char *descr, char kind) {
    for (int i = 0; i < OTHERS; i++)
        if (others[i].kind == kind)
            FAIL(IO, "%s holds %s ('%s'): %s", r->name, others[i].what, descr, others[i].remedy);
    FAIL(IO, "%s holds '%s', which is not supported: save it with .astype('float32')", r->name, descr);
}

/* '<f4': byte order, kind, bytes. */
static remat_status read_type(reader *r, rm_array *out) {
    char text[32];
    REQUIRE(read_quoted(r, text), IO,
            "%s holds a structured array: save one of its fields, or the result of "
            "numpy.lib.recfunctions.structured_to_unstructured",
            r->name);
    const char *kind = text + (*text && strchr("<>|=", *text));
    bool digit = *kind && kind[1] >= '1' && kind[1] <= '9' && !kind[2];
    out->kind = *kind;
    out->bytes = digit ? kind[1] - '0' : 0;
    out->big_endian = *text == '>';
    return rm_array_type_known(out->kind, out->bytes) ? REMAT_OK : refuse_type(r, text, *kind);
}

static remat_status read_shape(reader *r, rm_array *out) {
    REQUIRE(next_is(r, '('), IO, "%s has a damaged header: no shape", r->name);
    while (!next_is(r, ')')) {
        REQUIRE(out->rank < RM_ARRAY_MAX_RANK, IO, "%s has more than %d dimensions", r->name, RM_ARRAY_MAX_RANK);
        REQUIRE(read_size(r, &out->dim[out->rank]), IO, "%s has a damaged header: its shape is not numbers", r->name);
        out->rank++;
        if (next_is(r, ',')) continue;
        REQUIRE(next_is(r, ')'), IO, "%s has a damaged header: its shape does not end", r->name);
        break;
    }
    return REMAT_OK;
}

static remat_status read_entry(reader *r, rm_array *out, unsigned *seen) {
    char key[32];
    REQUIRE(read_quoted(r, key) && next_is(r, ':'), IO, "%s has a damaged header", r->name);
    unsigned bit = !strcmp(key, "descr") ? 1 : !strcmp(key, "fortran_order") ? 2 : !strcmp(key, "shape") ? 4 : 0;
    REQUIRE(bit && !(*seen & bit), IO, "%s has a damaged header at '%s'", r->name, key);
    *seen |= bit;
    if (bit == 1) return read_type(r, out);
    if (bit == 4) return read_shape(r, out);
    r->fortran = read_word(r, "True");
    REQUIRE(r->fortran || read_word(r, "False"), IO, "%s has a damaged header at 'fortran_order'", r->name);
    return REMAT_OK;
}

static remat_status read_header(reader *r, rm_array *out) {
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

/* Finds the header's text. Its length has 2 bytes in version 1, 4 bytes in versions 2 and 3. */
static remat_status find_header(const uint8_t *data, size_t size, reader *r) {
    REQUIRE(size >= 10 && !memcmp(data, RM_NPY_MAGIC, 6), IO, "%s is not a .npy file: make one with numpy.save",
            r->name);
    REQUIRE(data[6] >= 1 && data[6] <= 3, IO, "%s is .npy version %d, but only 1 to 3 are supported", r->name, data[6]);
    size_t start = data[6] == 1 ? 10 : 12;
    REQUIRE(size >= start, IO, "%s ends inside its header: save it again", r->name);
    size_t length = data[8] | (size_t)data[9] << 8;
    if (start == 12) length |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    REQUIRE(length <= size - start, IO, "%s ends inside its header: save it again", r->name);
    r->long_numbers = data[6] < 3; /* NumPy accepts them in these versions only */
    r->at = (const char *)data + start;
    r->end = r->at + length;
    return REMAT_OK;
}

remat_status rm_npy_header(const uint8_t *data, size_t size, const char *name, rm_array *out, size_t *header_bytes) {
    *out = (rm_array){.dim = {1, 1, 1, 1}};
    reader r = {.name = name};
    TRY(find_header(data, size, &r));
    *header_bytes = (size_t)((const uint8_t *)r.end - data);
    TRY(read_header(&r, out));
    return rm_array_settle(out, r.fortran, name);
}

remat_status rm_npy_parse(const uint8_t *data, size_t size, const char *name, rm_array *out) {
    size_t header_bytes;
    TRY(rm_npy_header(data, size, name, out, &header_bytes));
    return rm_array_place(out, data, size, header_bytes, name);
}

void rm_npy_make_header(int rank, const int64_t *dim, uint8_t out[RM_NPY_HEADER]) {
    char text[RM_NPY_HEADER], last[24] = "";
    if (rank == 3) snprintf(last, sizeof last, ", %lld", (long long)dim[2]);
    int n = snprintf(text, sizeof text,
                     RM_NPY_MAGIC "%c%c%c%c{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld%s), }", 1, 0,
                     RM_NPY_HEADER - 10, 0, (long long)dim[0], (long long)dim[1], last);
    memset(out, ' ', RM_NPY_HEADER);
    memcpy(out, text, (size_t)n);
    out[RM_NPY_HEADER - 1] = '\n';
}
