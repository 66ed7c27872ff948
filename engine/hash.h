/* hash.h: a fast 64-bit hash of bytes: for recognising that they are not what they were (verify.c) and for short names of
 * long descriptions (calibrate.c). Not for adversaries. */
#ifndef RM_HASH_H
#define RM_HASH_H

#include <stdint.h>

/* A function of the bytes, their number and the seed alone: the same on every machine of the same byte order. Inputs that
 * differ, if only in a bit, meet with a chance of about 2^-64. Any alignment. */
uint64_t rm_hash(const void *data, uint64_t bytes, uint64_t seed);

#endif
