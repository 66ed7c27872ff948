/* file_kind.h: what a file of data is, by its first bytes. Works on memory. */
#ifndef RM_FILE_KIND_H
#define RM_FILE_KIND_H

#include "train/file.h"

typedef enum {
    RM_KIND_OTHER, /* a text, or anything */
    RM_KIND_NPY,
    RM_KIND_ZIP,    /* of data: a .npz */
    RM_KIND_TORCH,  /* of torch.save: a .zip of its own, or a pickle */
    RM_KIND_PACKED, /* by bzip2, xz, zstd or tar, or by gzip a second time */
    RM_KIND_IDX,
    RM_KIND_SAFETENSORS
} rm_file_kind;

/* NumPy's by its first bytes, or by the end of its name, so that a damaged one is called what it should be. */
rm_file_kind rm_file_kind_of(const rm_file_start *start, const char *path);

#endif
