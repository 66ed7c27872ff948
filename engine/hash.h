/* hash.h: a fast 64-bit hash, to detect changed bytes (verify.c) and to make keys of long descriptions (calibrate.c). Not cryptographic. */
#ifndef RM_HASH_H
#define RM_HASH_H

#include <stdint.h>

/* Depends only on the bytes, their number and the seed: the same on every machine of one byte order. Different inputs collide with
 * probability about 2^-64. Any alignment. */
uint64_t rm_hash(const void *data, uint64_t bytes, uint64_t seed);

#endif
