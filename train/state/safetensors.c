/* safetensors.c: see safetensors.h. */
#include "train/state/safetensors.h"

#include "memory/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static remat_status read_header(char *text, size_t bytes, rm_safetensors *file) {
    file->text = text;
    return rm_st_header_parse(file->path, text, bytes, file->data_bytes, &file->array, &file->count);
}

static void set_up(rm_safetensors *out, const char *path) {
    *out = (rm_safetensors){.fd = -1};
    strncpy(out->path, path, sizeof out->path - 1);
}

/* torch.save writes a zip archive; old versions write pickles, the first of which is a number. Neither starts with a valid length. */
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
            "%s is not a safetensors file but one of numpy.savez; run in Python: from safetensors.numpy import "
            "save_file; save_file(dict(numpy.load(\"%s\")), \"model.safetensors\")",
            path, path);
    REQUIRE(is_pytorchs(prefix) || !is_pickle(prefix), IO,
            "%s is not a safetensors file but a Python pickle: load it in Python, and save its arrays with "
            "safetensors.numpy.save_file or its tensors with safetensors.torch.save_file",
            path);
    REQUIRE(
        !is_pytorchs(prefix), IO,
        "%s is not a safetensors file but one of torch.save; run in Python: from safetensors.torch import save_file; "
        "w = torch.load(\"%s\", weights_only=True); "
        "save_file({k: v.contiguous() for k, v in w.items()}, \"model.safetensors\")",
        path, path);
    FAIL(IO, "%s is not a safetensors file: its header would have %llu bytes, and the format allows %d", path,
         (unsigned long long)length, RM_ST_MAX_HEADER);
}

/* Finds the start of the data from the first 8 bytes and the file's size. */
static remat_status split(rm_safetensors *file, const uint8_t prefix[8], uint64_t size, size_t *header_bytes) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | prefix[i];
    if (length > RM_ST_MAX_HEADER) return refuse_prefix(file->path, prefix, length);
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
    char *text = rm_malloc(header + 1);
    REQUIRE(text, MEMORY, "no memory for the %zu bytes of the header of %s", header, name);
    memcpy(text, data + 8, header);
    return read_header(text, header, out);
}

/* They start with the length of the header, in 8 bytes, and the header starts with a brace. */
remat_status rm_safetensors_spare(const char *path, const char *flag) {
    uint8_t begin[9] = {0};
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(begin, 1, sizeof begin, file) : 0;
    if (file) fclose(file);
    REQUIRE(!n || (n == sizeof begin && !begin[7] && begin[8] == '{'), INVALID,
            "%s exists and is not a .safetensors file, so it was not changed: choose another name for --%s", path,
            flag);
    return REMAT_OK;
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
    out->text = text;
    TRY(rm_file_read_at(out->fd, path, 8, text, header));
    return read_header(text, header, out);
}

void rm_safetensors_free(rm_safetensors *file) {
    rm_free(file->array);
    rm_free(file->text);
    file->text = NULL;
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

remat_status rm_safetensors_begin(rm_file_writer *writer, const remat_array *array, int64_t count) {
    char *header;
    size_t bytes;
    TRY(rm_st_header_make(array, count, &header, &bytes));
    remat_status status = rm_file_write(writer, header, bytes);
    rm_free(header);
    return status;
}
