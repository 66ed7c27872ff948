/* safetensors.h: files of the format whose header weights/header.h parses, opened, or in memory (for the fuzzer). Their
 * arrays are read one at a time. weights.h moves a session's arrays.
 */
#ifndef RM_SAFETENSORS_H
#define RM_SAFETENSORS_H

#include "train/file.h"
#include "weights/header.h"

typedef struct {
    rm_st_array *array; /* in order of `begin` */
    int64_t count;
    uint64_t data_start, data_bytes; /* in the file */
    char *text;                      /* the header, which holds the names */
    int fd;                          /* -1: parsed from memory */
    char path[RM_PATH_BYTES];
} rm_safetensors;

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

/* Parses a file in memory. IO: invalid. Free *out even on errors. */
remat_status rm_safetensors_parse(const uint8_t *data, size_t size, const char *name, rm_safetensors *out);
/* Before `path`, the value of --FLAG, is overwritten. INVALID: the file exists, is not empty, and is not a .safetensors file. */
remat_status rm_safetensors_spare(const char *path, const char *flag);
/* Opens a file and reads its header. IO: unreadable or invalid. Free *out even on errors. */
remat_status rm_safetensors_open(const char *path, rm_safetensors *out);
void rm_safetensors_free(rm_safetensors *file);

const rm_st_array *rm_safetensors_find(const rm_safetensors *file, const char *name); /* NULL: no such array */
/* Copies the array's end - begin bytes from an open file. */
remat_status rm_safetensors_read(const rm_safetensors *file, const rm_st_array *array, void *data);

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

/* Writes everything before the data, for `count` float arrays with distinct names; offsets follow from the shapes. The caller then
 * writes the arrays' bytes in the same order. */
remat_status rm_safetensors_begin(rm_file_writer *writer, const remat_array *array, int64_t count);

#endif
