/* file_kind.c: see file_kind.h. */
#include "train/data/file_kind.h"

#include "train/data/npy.h"

#include <string.h>

static bool begins(const rm_file_start *start, const char *magic, size_t bytes) {
    return start->size >= bytes && !memcmp(start->data, magic, bytes);
}

static bool ends(const char *path, const char *with) {
    size_t length = strlen(path), n = strlen(with);
    return length > n && !strcmp(path + length - n, with);
}

/* The length of its header in 8 bytes, and then that of JSON. */
static bool is_safetensors(const rm_file_start *start) {
    return start->size > 10 && !memcmp(start->data + 5, "\0\0\0{\"", 5);
}

rm_file_kind rm_file_kind_of(const rm_file_start *start, const char *path) {
    if (begins(start, RM_NPY_MAGIC, 6)) return RM_KIND_NPY;
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
    return ends(path, ".npy") || ends(path, ".npy.gz") ? RM_KIND_NPY : RM_KIND_OTHER;
}
