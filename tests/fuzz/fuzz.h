/* fuzz.h: the contents of a fuzz_NAME.c: one function that accepts any bytes, as libFuzzer calls it, and seeds for
 * driver.c. */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Returns 0. A failure is an abort() or a sanitizer report. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const void *bytes;
    size_t size;
} fuzz_seed;

/* Valid inputs to start from, *count of them, valid until the program ends. Optional: without seeds, inputs are random
 * bytes, which rarely get far. */
const fuzz_seed *rm_fuzz_seeds(size_t *count);

#endif
