/* gpu_program.h: runs a program of tests/gpu on the emulated device (device.h), so that mistakes in the program itself
 * are found without a GPU. Include the program first, with its main renamed to `program`. */
#ifndef RM_TEST_GPU_PROGRAM_H
#define RM_TEST_GPU_PROGRAM_H

#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/device.h"

/* Returns 0 if it passed, broke no rule of order or lifetime, and released everything. `flags` ends with NULL. */
static inline int run_gpu_program(int (*program)(int, char **), char **flags) {
    int count = 0;
    while (flags[count]) count++;
    emulated_device_reset(1);
    setenv("REMAT_CUDNN_LIBRARY", FAKE_CUDA, 1);
    int code = program(count, flags);
    if (fake_cuda_violation()) printf("%s\n", fake_cuda_violation());
    if (fake_cuda_live()) printf("%lld objects were not released\n", (long long)fake_cuda_live());
    return code || fake_cuda_violation() || fake_cuda_live();
}

#endif
