/* array_file.h: a file that holds one array of numbers, .npy or IDX, plain or packed by gzip: its first bytes say which. The
 * header is read first, and no more unpacked than it claims: a byte of gzip can become a thousand. */
#ifndef RM_ARRAY_FILE_H
#define RM_ARRAY_FILE_H

#include "train/data/array.h"
#include "train/data/dataset.h"

typedef struct {
    rm_array array;
    bool images;   /* IDX: not .npy */
    uint8_t *data; /* of the whole file, unpacked; the array lies in it */
    size_t size;
} rm_array_file;

/* The header alone: out->data and the array's items are NULL. `budget` and failures as below. */
remat_status rm_array_file_begin(const char *path, uint64_t budget, rm_array_file *out);

/* `budget` as in rm_data_source. IO when it is no such file; INFEASIBLE when it is packed, and unpacked larger than the
 * budget. Free in any case. */
remat_status rm_array_file_read(const char *path, uint64_t budget, rm_array_file *out);
void rm_array_file_free(rm_array_file *file);

#endif
