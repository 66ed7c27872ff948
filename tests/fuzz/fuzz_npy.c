/* fuzz_npy.c: any bytes as a .npy file. Every element of what is accepted must be readable. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "train/npy.h"

static const struct {
    const char *header;
    size_t data_bytes;
} files[] = {
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }   \n", 16},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }   \n", 5},
    {"{'descr': '<i8', 'fortran_order': False, 'shape': (), }   \n", 8},
};
enum { SEEDS = sizeof files / sizeof files[0] };

/* Versions 1, 2, 3 of the format. */
const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    static uint8_t bytes[SEEDS][256];
    static fuzz_seed seeds[SEEDS];
    for (int i = 0; i < SEEDS; i++) {
        rm_npy array;
        size_t start = i ? 12 : 10, length = strlen(files[i].header);
        memcpy(bytes[i], "\x93NUMPY", 6);
        bytes[i][6] = (uint8_t)(i + 1);
        bytes[i][8] = (uint8_t)length;
        memcpy(bytes[i] + start, files[i].header, length);
        seeds[i] = (fuzz_seed){bytes[i], start + length + files[i].data_bytes};
        if (rm_npy_parse(bytes[i], seeds[i].size, "seed", &array)) abort();
    }
    *count = SEEDS;
    return seeds;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_npy array;
    volatile double sum = 0;
    if (rm_npy_parse(data, size, "input", &array)) return 0;
    if (array.count < 1 || array.item < data || array.item >= data + size) abort();
    for (int64_t i = 0; i < array.count; i++) sum = sum + rm_npy_real(&array, i);
    if (rm_npy_is_integer(&array)) sum = sum + (double)rm_npy_integer(&array, array.count - 1);
    return 0;
}
