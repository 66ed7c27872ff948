/* cifar.h: CIFAR-10's binary files. Works on memory, so a fuzzer can drive it. A file has no header, only pictures:
 *
 *   | label 0..9 | 1024 red | 1024 green | 1024 blue |  each colour row by row
 */
#ifndef RM_CIFAR_H
#define RM_CIFAR_H

#include "train/data/array.h"

enum { RM_CIFAR_SIDE = 32, RM_CIFAR_BYTES = 1 + 3 * 32 * 32, RM_CIFAR_CLASSES = 10 };

/* How many pictures there are; IO when it is not such a file. */
remat_status rm_cifar_check(const uint8_t *data, size_t size, const char *name, int64_t *count);
/* The picture whose bytes begin here. */
void rm_cifar_picture(const uint8_t *data, rm_array *out);

#endif
