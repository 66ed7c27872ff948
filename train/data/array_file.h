/* array_file.h: a file with one array of numbers, .npy or IDX, optionally gzipped; the first bytes tell the format. The header
 * is read first and limits how much is decompressed, because one byte of gzip can expand to a thousand. */
#ifndef RM_ARRAY_FILE_H
#define RM_ARRAY_FILE_H

#include "train/data/array.h"
#include "train/data/dataset.h"

typedef struct {
    rm_array array;
    bool images;   /* IDX: not .npy */
    uint8_t *data; /* the whole file, decompressed; the array points into it */
    size_t size;
} rm_array_file;

/* Reads the header only: out->data and the array's item are NULL. `budget` and errors as below. */
remat_status rm_array_file_begin(const char *path, uint64_t budget, rm_array_file *out);

/* `budget` as in rm_data_source. IO when the file is neither format; INFEASIBLE when it does not fit in the budget once
 * decompressed. Free *out even after an error. */
remat_status rm_array_file_read(const char *path, uint64_t budget, rm_array_file *out);
void rm_array_file_free(rm_array_file *file);

#endif
