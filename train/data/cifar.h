/* cifar.h: CIFAR-10's binary files. Reads from memory, so a fuzzer can drive it. A file has no header, only images:
 *
 *   | label 0..9 | 1024 red | 1024 green | 1024 blue |  each channel row by row
 */
#ifndef RM_CIFAR_H
#define RM_CIFAR_H

#include "train/data/array.h"

enum { RM_CIFAR_SIDE = 32, RM_CIFAR_BYTES = 1 + 3 * 32 * 32, RM_CIFAR_CLASSES = 10 };

/* Counts the images; IO when the data is not a CIFAR-10 file. */
remat_status rm_cifar_check(const uint8_t *data, size_t size, const char *name, int64_t *count);
/* The image whose record starts at `data`. */
void rm_cifar_image(const uint8_t *data, rm_array *out);

#endif
