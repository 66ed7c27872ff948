/* fuzz.h: what a fuzz_NAME.c is: one function that takes any bytes, as libFuzzer calls it, and seeds for driver.c. */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Returns 0. Wrong behaviour is an abort() or a sanitizer's report. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const void *bytes;
    size_t size;
} fuzz_seed;

/* Good inputs to start from, *count of them, valid until the program ends. May be left out: then inputs are random bytes,
 * which seldom get far. */
const fuzz_seed *rm_fuzz_seeds(size_t *count);

#endif
