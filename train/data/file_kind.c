/* file_kind.c: see file_kind.h. */
#include "train/data/file_kind.h"

#include "train/data/npy.h"
#include "train/text.h"

#include <string.h>

static bool begins(const rm_file_start *start, const char *magic, size_t bytes) {
    return start->size >= bytes && !memcmp(start->data, magic, bytes);
}

/* The first file in the archive is NAME/data.pkl; files from PyTorch before 1.6 begin with a pickled number. */
static bool is_torch(const rm_file_start *start) {
    static const char old[] = "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    size_t length = start->size > 30 ? start->data[26] | (size_t)start->data[27] << 8 : 0;
    return begins(start, old, sizeof old - 1) || (begins(start, "PK\3\4", 4) && start->size >= 30 + length &&
                                                  length > 9 && !memcmp(start->data + 30 + length - 9, "/data.pkl", 9));
}

/* A file begins with the length of its JSON header, in 8 bytes. */
static bool is_safetensors(const rm_file_start *start) {
    return start->size > 10 && !memcmp(start->data + 5, "\0\0\0{\"", 5);
}

rm_file_kind rm_file_kind_of(const rm_file_start *start, const char *path) {
    if (begins(start, RM_NPY_MAGIC, 6)) return RM_KIND_NPY;
    if (is_torch(start)) return RM_KIND_TORCH;
    if (begins(start, "PK\3\4", 4)) return RM_KIND_ZIP;
    if (begins(start, "BZh", 3) ||
        begins(start,
               "\xFD"
               "7zXZ",
               5) ||
        begins(start, "\x28\xB5\x2F\xFD", 4) || begins(start, "\x1F\x8B", 2) ||
        (start->size > 262 && !memcmp(start->data + 257, "ustar", 5)))
        return RM_KIND_PACKED;
    if (is_safetensors(start)) return RM_KIND_SAFETENSORS;
    if (begins(start, "\0\0\10", 3) && start->size > 4 && start->data[3] >= 1 && start->data[3] <= 4)
        return RM_KIND_IDX;
    return rm_text_ends(path, ".npy") || rm_text_ends(path, ".npy.gz") ? RM_KIND_NPY : RM_KIND_OTHER;
}
