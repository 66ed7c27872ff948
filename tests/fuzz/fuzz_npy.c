/* fuzz_npy.c: any bytes as a .npy file. Every element of an accepted file must be readable. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "train/data/npy.h"

static const struct {
    const char *header;
    size_t data_bytes;
} files[] = {
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }   \n", 16},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }   \n", 5},
    {"{'descr': '<i8', 'fortran_order': False, 'shape': (), }   \n", 8},
    {"{'descr': '>f2', 'fortran_order': True, 'shape': (3, 1, 2), }   \n", 12},
    {"{'descr': '>u8', 'fortran_order': True, 'shape': (2,), }   \n", 16},
    {"{'descr': '|b1', 'fortran_order': False, 'shape': (1, 2, 2, 2), }   \n", 8},
};
enum { SEEDS = sizeof files / sizeof files[0] };

/* In versions 1, 2 and 3 of the format in turn. */
const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    static uint8_t bytes[SEEDS][256];
    static fuzz_seed seeds[SEEDS];
    for (int i = 0; i < SEEDS; i++) {
        rm_array array;
        int version = 1 + i % 3;
        size_t start = version > 1 ? 12 : 10, length = strlen(files[i].header);
        memcpy(bytes[i], "\x93NUMPY", 6);
        bytes[i][6] = (uint8_t)version;
        bytes[i][8] = (uint8_t)length;
        memcpy(bytes[i] + start, files[i].header, length);
        seeds[i] = (fuzz_seed){bytes[i], start + length + files[i].data_bytes};
        if (rm_npy_parse(bytes[i], seeds[i].size, "seed", &array)) abort();
    }
    *count = SEEDS;
    return seeds;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_array array;
    volatile double sum = 0;
    if (rm_npy_parse(data, size, "input", &array)) return 0;
    if (array.count < 1 || array.item < data || array.item >= data + size) abort();
    if (array.rank == 4) return 0; /* no code reads these */
    for (int64_t i = 0; i < array.dim[0]; i++)
        for (int64_t j = 0; j < array.dim[1]; j++)
            for (int64_t k = 0; k < array.dim[2]; k++) sum = sum + rm_array_at(&array, i, j, k);
    return 0;
}
