/* safetensors.c: see safetensors.h. The header's JSON goes through jansson; what the numbers in it mean is checked here. */
#include "train/state/safetensors.h"

#include "memory/host.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The format's own limit: metadata may hold anything, a tokenizer, say. */
#define MAX_HEADER_BYTES 100000000u

static const struct {
    const char *name;
    uint64_t bits;
} dtypes[] = {
    {"F32", 32}, {"F64", 64}, {"F16", 16}, {"BF16", 16}, {"I64", 64},    {"I32", 32},    {"I16", 16}, {"I8", 8},
    {"U64", 64}, {"U32", 32}, {"U16", 16}, {"U8", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"BOOL", 8},
};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* ---- Reading: one array ----------------------------------------------------------------------------------------- */

static remat_status read_dtype(const char *file, const json_t *entry, rm_st_array *out, uint64_t *bytes) {
    const char *text = json_string_value(json_object_get(entry, "dtype"));
    for (int i = 0; text && i < DTYPES; i++)
        if (!strcmp(text, dtypes[i].name)) {
            strcpy(out->dtype, dtypes[i].name);
            *bytes = dtypes[i].bits / 8;
            return REMAT_OK;
        }
    FAIL(IO, "%s: the array '%.80s' has the dtype '%.20s', which is not known", file, out->name, text ? text : "none");
}

/* Multiplies *bytes, the size of one element, up to the size of all. */
static remat_status read_shape(const char *file, const json_t *entry, rm_st_array *out, uint64_t *bytes) {
    const json_t *shape = json_object_get(entry, "shape");
    REQUIRE(json_is_array(shape), IO, "%s: the array '%.80s' has no shape", file, out->name);
    size_t rank = json_array_size(shape);
    REQUIRE(rank <= RM_ST_MAX_RANK, IO, "%s: the array '%.80s' has %zu dimensions; at most %d are read", file,
            out->name, rank, RM_ST_MAX_RANK);
    out->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        out->dim[i] = json_is_integer(dim) ? (int64_t)json_integer_value(dim) : -1;
        REQUIRE(out->dim[i] >= 0 && !__builtin_mul_overflow(*bytes, (uint64_t)out->dim[i], bytes), IO,
                "%s: the array '%.80s' has an impossible shape", file, out->name);
    }
    return REMAT_OK;
}

static remat_status read_array(const char *file, const char *name, const json_t *entry, uint64_t data_bytes,
                               rm_st_array *out) {
    uint64_t bytes = 0;
    REQUIRE((out->name = rm_strdup(name)), MEMORY, "no memory to read %s", file);
    TRY(read_dtype(file, entry, out, &bytes));
    TRY(read_shape(file, entry, out, &bytes));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    REQUIRE(json_array_size(offsets) == 2 && json_is_integer(begin) && json_is_integer(end) &&
                json_integer_value(begin) >= 0 && json_integer_value(end) >= json_integer_value(begin),
            IO, "%s: the array '%.80s' has damaged offsets", file, name);
    out->begin = (uint64_t)json_integer_value(begin);
    out->end = (uint64_t)json_integer_value(end);
    REQUIRE(out->end <= data_bytes, IO, "%s: the array '%.80s' ends at byte %llu of %llu: the file was cut short", file,
            name, (unsigned long long)out->end, (unsigned long long)data_bytes);
    REQUIRE(out->end - out->begin == bytes, IO, "%s: the array '%.80s' needs %llu bytes by its shape but has %llu",
            file, name, (unsigned long long)bytes, (unsigned long long)(out->end - out->begin));
    return REMAT_OK;
}

/* ---- Reading: the header ---------------------------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b) {
    const rm_st_array *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end); /* empty arrays first */
}

static remat_status check_cover(const rm_safetensors *file) {
    uint64_t at = 0;
    for (int64_t i = 0; i < file->count; i++) {
        const rm_st_array *array = &file->array[i];
        REQUIRE(array->begin == at, IO, "%s: the array '%.80s' %s the one before it", file->path, array->name,
                array->begin < at ? "overlaps" : "leaves a hole after");
        at = array->end;
    }
    REQUIRE(at == file->data_bytes, IO, "%s has %llu bytes that belong to no array: it is damaged, save it again",
            file->path, (unsigned long long)(file->data_bytes - at));
    return REMAT_OK;
}

static remat_status read_arrays(const json_t *root, rm_safetensors *file) {
    const char *name;
    json_t *entry;
    file->array = rm_calloc(json_object_size(root) + 1, sizeof *file->array);
    REQUIRE(file->array, MEMORY, "no memory to read %s", file->path);
    json_object_foreach((json_t *)root, name, entry) {
        if (!strcmp(name, "__metadata__")) continue;
        REQUIRE(json_is_object(entry), IO, "%s: the header's '%.80s' is not an array", file->path, name);
        TRY(read_array(file->path, name, entry, file->data_bytes, &file->array[file->count++]));
    }
    qsort(file->array, (size_t)file->count, sizeof *file->array, by_begin);
    return check_cover(file);
}

static remat_status read_header(const char *text, size_t bytes, rm_safetensors *file) {
    json_error_t error;
    REQUIRE(bytes > 0 && text[0] == '{', IO, "%s is not a safetensors file: its header does not start with {",
            file->path);
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(root, IO, "%s: its header is damaged at byte %d: %s", file->path, error.position, error.text);
    remat_status status = json_is_object(root) ? read_arrays(root, file)
                                               : rm_fail(REMAT_IO, "%s: its header is not an object", file->path);
    json_decref(root);
    return status;
}

static void set_up(rm_safetensors *out, const char *path) {
    *out = (rm_safetensors){.fd = -1};
    strncpy(out->path, path, sizeof out->path - 1);
}

/* What torch.save writes: a zip archive, or in old versions pickles of which the first is a number. Their first 8 bytes are no length. */
static bool is_pytorchs(const uint8_t prefix[8]) {
    return !memcmp(prefix, "PK\3\4", 4) || !memcmp(prefix, "\x80\2\x8a\x0a\x6c\xfc\x9c\x46", 8);
}

static bool is_pickle(const uint8_t prefix[8]) { return prefix[0] == 0x80 && prefix[1] >= 2 && prefix[1] <= 5; }

/* A zip archive whose first file is NAME.npy. */
static bool is_npz(const char *path, const uint8_t prefix[8]) {
    uint8_t *data = NULL;
    size_t size = 0, length = 0;
    if (memcmp(prefix, "PK\3\4", 4) || rm_file_read_first(path, 512, &data, &size)) return false;
    if (size > 30) length = data[26] | (size_t)data[27] << 8;
    bool npy = length > 4 && 30 + length <= size && !memcmp(data + 30 + length - 4, ".npy", 4);
    rm_free(data);
    return npy;
}

static remat_status refuse_prefix(const char *path, const uint8_t prefix[8], uint64_t length) {
    REQUIRE(!is_npz(path, prefix), IO,
            "%s is no safetensors file but one of numpy.savez's; type in Python: from safetensors.numpy import "
            "save_file; save_file(dict(numpy.load(\"%s\")), \"model.safetensors\")",
            path, path);
    REQUIRE(is_pytorchs(prefix) || !is_pickle(prefix), IO,
            "%s is no safetensors file but a Python pickle: load it in Python, and write its arrays with "
            "safetensors.numpy.save_file or its tensors with safetensors.torch.save_file",
            path);
    REQUIRE(
        !is_pytorchs(prefix), IO,
        "%s is no safetensors file but one of torch.save's; type in Python: from safetensors.torch import save_file; "
        "w = torch.load(\"%s\", weights_only=True); "
        "save_file({k: v.contiguous() for k, v in w.items()}, \"model.safetensors\")",
        path, path);
    FAIL(IO, "%s is not a safetensors file: its header would have %llu bytes, and the format allows %u", path,
         (unsigned long long)length, MAX_HEADER_BYTES);
}

/* From the first 8 bytes and the file's size to where the data starts. */
static remat_status split(rm_safetensors *file, const uint8_t prefix[8], uint64_t size, size_t *header_bytes) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | prefix[i];
    if (length > MAX_HEADER_BYTES) return refuse_prefix(file->path, prefix, length);
    REQUIRE(length <= size - 8, IO, "%s ends inside its header: it was cut short, save it again", file->path);
    *header_bytes = (size_t)length;
    file->data_start = 8 + length;
    file->data_bytes = size - file->data_start;
    return REMAT_OK;
}

remat_status rm_safetensors_parse(const uint8_t *data, size_t size, const char *name, rm_safetensors *out) {
    size_t header = 0;
    set_up(out, name);
    REQUIRE(size >= 8, IO, "%s is not a safetensors file: it has only %zu bytes", name, size);
    TRY(split(out, data, size, &header));
    return read_header((const char *)data + 8, header, out);
}

remat_status rm_safetensors_open(const char *path, rm_safetensors *out) {
    uint8_t prefix[8];
    uint64_t size;
    size_t header = 0;
    set_up(out, path);
    TRY(rm_file_open(path, &out->fd, &size));
    REQUIRE(size >= 8, IO, "%s is not a safetensors file: it has only %llu bytes", path, (unsigned long long)size);
    TRY(rm_file_read_at(out->fd, path, 0, prefix, 8));
    TRY(split(out, prefix, size, &header));
    char *text = rm_malloc(header + 1);
    REQUIRE(text, MEMORY, "no memory for the %zu bytes of the header of %s", header, path);
    remat_status status = rm_file_read_at(out->fd, path, 8, text, header);
    if (!status) status = read_header(text, header, out);
    rm_free(text);
    return status;
}

void rm_safetensors_free(rm_safetensors *file) {
    for (int64_t i = 0; i < file->count; i++) rm_free(file->array[i].name);
    rm_free(file->array);
    if (file->fd >= 0) close(file->fd);
    file->array = NULL;
    file->count = 0;
    file->fd = -1;
}

const rm_st_array *rm_safetensors_find(const rm_safetensors *file, const char *name) {
    for (int64_t i = 0; i < file->count; i++)
        if (!strcmp(file->array[i].name, name)) return &file->array[i];
    return NULL;
}

remat_status rm_safetensors_read(const rm_safetensors *file, const rm_st_array *array, void *data) {
    return rm_file_read_at(file->fd, file->path, file->data_start + array->begin, data,
                           (size_t)(array->end - array->begin));
}

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

static json_t *describe(const remat_array *array, uint64_t begin) {
    json_t *shape = json_array();
    for (int i = 0; i < array->rank; i++) json_array_append_new(shape, json_integer(array->dim[i]));
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", "F32", "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)(begin + array->bytes));
}

/* The header as text, padded with spaces to a multiple of 8 so that the data is aligned. NULL: no memory. */
static char *header_text(const remat_array *array, int64_t count) {
    json_t *root = json_object();
    uint64_t begin = 0;
    for (int64_t i = 0; i < count; i++) {
        json_object_set_new(root, array[i].name, describe(&array[i], begin));
        begin += array[i].bytes;
    }
    char *text = json_object_size(root) == (size_t)count ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

remat_status rm_safetensors_begin(rm_file_writer *writer, const remat_array *array, int64_t count) {
    static const char spaces[8] = "       ";
    char *text = header_text(array, count);
    REQUIRE(text, MEMORY, "no memory for the header of %s", writer->path);
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    remat_status status = rm_file_write(writer, prefix, 8);
    if (!status) status = rm_file_write(writer, text, length);
    if (!status) status = rm_file_write(writer, spaces, padded - length);
    json_free_t release;
    json_get_alloc_funcs(NULL, &release);
    release(text);
    return status;
}
