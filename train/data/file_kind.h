/* file_kind.h: recognises the format of a data file by its first bytes. */
#ifndef RM_FILE_KIND_H
#define RM_FILE_KIND_H

#include "train/file.h"

typedef enum {
    RM_KIND_OTHER, /* a text or anything else */
    RM_KIND_NPY,
    RM_KIND_ZIP,    /* also .npz */
    RM_KIND_TORCH,  /* written by torch.save: a .zip or a pickle */
    RM_KIND_PACKED, /* bzip2, xz, zstd, tar, or gzip inside gzip */
    RM_KIND_IDX,
    RM_KIND_SAFETENSORS
} rm_file_kind;

/* Recognises NumPy files by their extension, too, so that messages about damaged ones mention .npy. */
rm_file_kind rm_file_kind_of(const rm_file_start *start, const char *path);

#endif
