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
    char *text;                      /* the header, which has the names */
    int fd;                          /* -1 when parsed from memory */
    char path[RM_PATH_BYTES];
} rm_safetensors;

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

/* Parses a whole file that lies in memory. IO says what is wrong with it. Free in any case. */
remat_status rm_safetensors_parse(const uint8_t *data, size_t size, const char *name, rm_safetensors *out);
/* Opens a file and reads its header. IO likewise. Free in any case. */
remat_status rm_safetensors_open(const char *path, rm_safetensors *out);
void rm_safetensors_free(rm_safetensors *file);

const rm_st_array *rm_safetensors_find(const rm_safetensors *file, const char *name); /* NULL: there is none */
/* Copies the array's end - begin bytes out of an opened file. */
remat_status rm_safetensors_read(const rm_safetensors *file, const rm_st_array *array, void *data);

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

/* Writes everything in front of the data, for `count` float arrays of different names; their offsets follow from their
 * shapes. The caller then writes the arrays' bytes in the same order. */
remat_status rm_safetensors_begin(rm_file_writer *writer, const remat_array *array, int64_t count);

#endif
