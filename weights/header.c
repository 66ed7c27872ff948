/* header.c: see header.h. One pass parses the text and unescapes names in place. Then the numbers are checked. */
#include "weights/header.h"

#include "memory/host.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

typedef struct {
    const char *path;
    char *begin, *at, *end;
} text;

#define DAMAGED(t, what)                                                                                               \
    FAIL(IO, "%s: its header is damaged at byte %zu: " what, (t)->path, (size_t)((t)->at - (t)->begin))

/* ---- Characters -------------------------------------------------------------------------------------------------- */

static void skip_space(text *t) {
    while (t->at < t->end && strchr(" \t\n\r", *t->at) && *t->at) t->at++;
}

/* Whether this is the next character; skips it if so. */
static bool take(text *t, char c) {
    skip_space(t);
    if (t->at == t->end || *t->at != c) return false;
    t->at++;
    return true;
}

static int hex4(const text *t) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", *digit;
        if (t->end - t->at <= i || !t->at[i] || !(digit = strchr(digits, t->at[i] | 0x20))) return -1;
        value = value * 16 + (int)(digit - digits);
    }
    return value;
}

static char *put_utf8(char *to, uint32_t c) {
    if (c < 0x80) return *to++ = (char)c, to;
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t first[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(first[more] | c >> 6 * more);
    while (more--) *to++ = (char)(0x80 | (c >> 6 * more & 0x3f));
    return to;
}

/* Parses the digits after \u. Half of a surrogate pair and zero are not valid characters. */
static remat_status unescape_u(text *t, char **to) {
    int high = hex4(t), low;
    if (high <= 0 || (high >= 0xdc00 && high < 0xe000)) DAMAGED(t, "a \\u escape that is not a character");
    t->at += 4;
    uint32_t c = (uint32_t)high;
    if (high >= 0xd800 && high < 0xdc00) {
        if (t->end - t->at < 6 || t->at[0] != '\\' || t->at[1] != 'u') DAMAGED(t, "half of a surrogate pair");
        t->at += 2;
        if ((low = hex4(t)) < 0xdc00 || low >= 0xe000) DAMAGED(t, "half of a surrogate pair");
        t->at += 4;
        c = 0x10000 + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
    }
    *to = put_utf8(*to, c);
    return REMAT_OK;
}

static remat_status unescape(text *t, char **to) {
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char c = t->at < t->end ? *t->at++ : 0;
    if (c == 'u') return unescape_u(t, to);
    const char *known = c ? strchr(from, c) : NULL;
    if (!known) DAMAGED(t, "an unknown escape");
    *(*to)++ = into[known - from];
    return REMAT_OK;
}

/* Parses a string: unescapes it in place and ends it with a zero byte. */
static remat_status read_string(text *t, char **out) {
    if (!take(t, '"')) DAMAGED(t, "a string should be here");
    char *to = *out = t->at;
    while (t->at < t->end && *t->at != '"') {
        if ((unsigned char)*t->at < 0x20) DAMAGED(t, "a control character in a string");
        if (*t->at != '\\') {
            *to++ = *t->at++;
            continue;
        }
        t->at++;
        TRY(unescape(t, &to));
    }
    if (t->at == t->end) DAMAGED(t, "a string without an end");
    t->at++;
    *to = 0;
    return REMAT_OK;
}

/* Parses a non-negative integer; false: there is none here. */
static bool read_count(text *t, uint64_t *out) {
    skip_space(t);
    const char *first = t->at;
    *out = 0;
    while (t->at < t->end && *t->at >= '0' && *t->at <= '9')
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, (uint64_t)(*t->at++ - '0'), out))
            return false;
    bool plain = t->at == t->end || !strchr(".eE", *t->at) || !*t->at;
    return t->at > first && plain && (*first != '0' || t->at == first + 1) && *out <= INT64_MAX;
}

/* ---- Values that nobody reads ------------------------------------------------------------------------------------ */

static remat_status skip_scalar(text *t) {
    char *first = t->at, *string;
    if (take(t, '"')) {
        t->at--;
        return read_string(t, &string);
    }
    while (t->at < t->end && *t->at && strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *t->at)) t->at++;
    if (t->at == first) DAMAGED(t, "a value should be here");
    return REMAT_OK;
}

static remat_status skip_value(text *t, int depth) {
    char *key;
    bool object = take(t, '{'), list = !object && take(t, '[');
    if (!object && !list) return skip_scalar(t);
    if (depth == MAX_DEPTH) DAMAGED(t, "values are nested too deeply");
    const char close = object ? '}' : ']';
    if (take(t, close)) return REMAT_OK;
    do {
        if (object) {
            TRY(read_string(t, &key));
            if (!take(t, ':')) DAMAGED(t, "a colon should be here");
        }
        TRY(skip_value(t, depth + 1));
    } while (take(t, ','));
    if (!take(t, close)) DAMAGED(t, "a comma or the end of a list should be here");
    return REMAT_OK;
}

/* ---- One array --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint64_t bytes;
} dtypes[] = {{"F32", 4}, {"F64", 8}, {"F16", 2}, {"BF16", 2}, {"I64", 8},     {"I32", 4},     {"I16", 2}, {"I8", 1},
              {"U64", 8}, {"U32", 4}, {"U16", 2}, {"U8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};

/* The members of an entry that have been read so far. */
typedef struct {
    bool dtype, shape, offsets;
    uint64_t element_bytes, begin, end;
} entry;

static remat_status read_dtype(text *t, rm_st_array *out, entry *e) {
    char *name;
    TRY(read_string(t, &name));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(name, dtypes[i].name)) {
            strcpy(out->dtype, dtypes[i].name);
            e->element_bytes = dtypes[i].bytes;
            e->dtype = true;
            return REMAT_OK;
        }
    FAIL(IO, "%s: the array '%.80s' has the unknown dtype '%.20s'", t->path, out->name, name);
}

static remat_status read_shape(text *t, rm_st_array *out, entry *e) {
    uint64_t dim;
    e->shape = take(t, '[');
    if (!e->shape || take(t, ']')) return REMAT_OK;
    do {
        REQUIRE(out->rank < RM_ST_MAX_RANK, IO, "%s: the array '%.80s' has more than %d dimensions", t->path, out->name,
                RM_ST_MAX_RANK);
        REQUIRE(read_count(t, &dim), IO, "%s: the array '%.80s' has an impossible shape", t->path, out->name);
        out->dim[out->rank++] = (int64_t)dim;
    } while (take(t, ','));
    if (!take(t, ']')) DAMAGED(t, "the end of a shape should be here");
    return REMAT_OK;
}

static remat_status read_offsets(text *t, rm_st_array *out, entry *e) {
    e->offsets = take(t, '[') && read_count(t, &e->begin) && take(t, ',') && read_count(t, &e->end) && take(t, ']');
    REQUIRE(e->offsets && e->begin <= e->end, IO, "%s: the array '%.80s' has damaged offsets", t->path, out->name);
    return REMAT_OK;
}

static remat_status check_array(const char *path, uint64_t data_bytes, rm_st_array *out, const entry *e) {
    uint64_t bytes = e->element_bytes;
    REQUIRE(e->dtype, IO, "%s: the array '%.80s' has no dtype", path, out->name);
    REQUIRE(e->shape, IO, "%s: the array '%.80s' has no shape", path, out->name);
    REQUIRE(e->offsets, IO, "%s: the array '%.80s' has no offsets", path, out->name);
    for (int i = 0; i < out->rank; i++)
        REQUIRE(!__builtin_mul_overflow(bytes, (uint64_t)out->dim[i], &bytes), IO,
                "%s: the array '%.80s' has an impossible shape", path, out->name);
    REQUIRE(e->end <= data_bytes, IO,
            "%s: the array '%.80s' ends at byte %" PRIu64 " of %" PRIu64 ": the file was cut short", path, out->name,
            e->end, data_bytes);
    REQUIRE(e->end - e->begin == bytes, IO,
            "%s: the array '%.80s' needs %" PRIu64 " bytes by its shape but has %" PRIu64, path, out->name, bytes,
            e->end - e->begin);
    out->begin = e->begin, out->end = e->end;
    return REMAT_OK;
}

static remat_status read_member(text *t, const char *key, rm_st_array *out, entry *e) {
    bool dtype = !strcmp(key, "dtype"), shape = !strcmp(key, "shape"), offsets = !strcmp(key, "data_offsets");
    REQUIRE(!(dtype && e->dtype) && !(shape && e->shape) && !(offsets && e->offsets), IO,
            "%s: the array '%.80s' has a duplicate %s", t->path, out->name, key);
    if (dtype) return read_dtype(t, out, e);
    if (shape) return read_shape(t, out, e);
    return offsets ? read_offsets(t, out, e) : skip_value(t, 0);
}

static remat_status read_array(text *t, uint64_t data_bytes, rm_st_array *out) {
    entry e = {.dtype = false};
    char *key;
    bool begins = take(t, '{');
    if (t->at == t->end) DAMAGED(t, "it ends within an array's description");
    REQUIRE(begins, IO, "%s: the header's '%.80s' is not an array", t->path, out->name);
    if (take(t, '}')) return check_array(t->path, data_bytes, out, &e);
    do {
        TRY(read_string(t, &key));
        if (!take(t, ':')) DAMAGED(t, "a colon should be here");
        TRY(read_member(t, key, out, &e));
    } while (take(t, ','));
    if (!take(t, '}')) DAMAGED(t, "the end of an array's description should be here");
    return check_array(t->path, data_bytes, out, &e);
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b) {
    const rm_st_array *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1; /* empty arrays first */
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const rm_st_array *)a)->name, ((const rm_st_array *)b)->name);
}

static remat_status check_names(const char *path, rm_st_array *array, int64_t count) {
    qsort(array, (size_t)count, sizeof *array, by_name);
    for (int64_t i = 1; i < count; i++)
        REQUIRE(strcmp(array[i - 1].name, array[i].name) != 0, IO, "%s: duplicate array '%.80s'", path, array[i].name);
    return REMAT_OK;
}

static remat_status check_cover(const char *path, const rm_st_array *array, int64_t count, uint64_t data_bytes) {
    uint64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(array[i].begin == at, IO, "%s: the array '%.80s' %s the one before it", path, array[i].name,
                array[i].begin < at ? "overlaps" : "leaves a hole after");
        at = array[i].end;
    }
    REQUIRE(at == data_bytes, IO, "%s has %" PRIu64 " bytes that belong to no array: it is damaged, save it again",
            path, data_bytes - at);
    return REMAT_OK;
}

static remat_status read_arrays(text *t, uint64_t data_bytes, rm_st_array **out, int64_t *count) {
    int64_t capacity = 0;
    if (take(t, '}')) return REMAT_OK;
    do {
        rm_st_array array = {.rank = 0};
        char *name;
        TRY(read_string(t, &name));
        if (!take(t, ':')) DAMAGED(t, "a colon should be here");
        if (!strcmp(name, "__metadata__")) {
            TRY(skip_value(t, 0));
            continue;
        }
        array.name = name;
        TRY(read_array(t, data_bytes, &array));
        REQUIRE(rm_grow(out, &capacity, *count + 1, sizeof **out), MEMORY, "no memory to read %s", t->path);
        (*out)[(*count)++] = array;
    } while (take(t, ','));
    if (!take(t, '}')) DAMAGED(t, "a comma or the end of the header should be here");
    return REMAT_OK;
}

remat_status rm_st_header_parse(const char *path, char *header, size_t bytes, uint64_t data_bytes, rm_st_array **out,
                                int64_t *count) {
    text t = {path, header, header, header + bytes};
    *out = NULL;
    *count = 0;
    REQUIRE(bytes > 0 && *header == '{', IO, "%s is not a safetensors file: its header does not start with {", path);
    t.at++;
    TRY(read_arrays(&t, data_bytes, out, count));
    skip_space(&t);
    if (t.at < t.end) DAMAGED(&t, "there is text after its end");
    if (!*count) return check_cover(path, NULL, 0, data_bytes);
    TRY(check_names(path, *out, *count));
    qsort(*out, (size_t)*count, sizeof **out, by_begin);
    return check_cover(path, *out, *count, data_bytes);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* A growing text; `failed` is set when memory runs out. */
typedef struct {
    char *data;
    size_t length;
    int64_t capacity;
    bool failed;
} output;

__attribute__((format(printf, 2, 3))) static void add(output *o, const char *format, ...) {
    char part[128];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(part, sizeof part, format, arguments); /* only whole numbers and short words */
    va_end(arguments);
    if (!rm_grow(&o->data, &o->capacity, (int64_t)o->length + n + 1, 1)) o->failed = true;
    if (o->failed) return;
    memcpy(o->data + o->length, part, (size_t)n + 1);
    o->length += (size_t)n;
}

static void add_string(output *o, const char *string) {
    add(o, "\"");
    for (const unsigned char *c = (const unsigned char *)string; *c; c++)
        add(o, *c == '"' || *c == '\\' ? "\\%c" : *c < 0x20 ? "\\u%04x" : "%c", *c);
    add(o, "\"");
}

remat_status rm_st_header_make(const remat_array *array, int64_t count, char **out, size_t *bytes) {
    output o = {.data = NULL};
    uint64_t begin = 0;
    add(&o, "........{");
    for (int64_t i = 0; i < count; i++) {
        add(&o, i ? "," : "");
        add_string(&o, array[i].name);
        add(&o, ":{\"dtype\":\"%s\",\"shape\":[", array[i].dtype == REMAT_F64 ? "F64" : "F32");
        for (int d = 0; d < array[i].rank; d++) add(&o, d ? ",%" PRId64 : "%" PRId64, array[i].dim[d]);
        add(&o, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + array[i].bytes);
        begin += array[i].bytes;
    }
    add(&o, "}");
    while (!o.failed && o.length % 8) add(&o, " ");
    for (int i = 0; i < 8 && !o.failed; i++) o.data[i] = (char)((o.length - 8) >> 8 * i);
    *out = o.data;
    *bytes = o.length;
    if (!o.failed) return REMAT_OK;
    rm_free(o.data);
    *out = NULL;
    FAIL(MEMORY, "no memory for the header of a file of weights");
}
