/* device.c: launches emulated kernels on the fake's streams (device.h). It replaces engine/device/devices.c. */
#include "tests/cuda/device.h"

#include <stdlib.h>
#include <string.h>

static void give(void *stream, void (*work)(void *), const void *context, size_t bytes) {
    const fake_range unknown = {NULL, 0, false};
    fake_push(stream, work, context, bytes, &unknown, 0);
}

void emulated_device_reset(uint64_t seed) {
    static const char *const library[] = {"REMAT_CUDART_LIBRARY", "REMAT_CUBLAS_LIBRARY", "REMAT_CUBLASLT_LIBRARY",
                                          "REMAT_CUDNN_LIBRARY", "REMAT_NVML_LIBRARY"};
    for (size_t i = 0; i < sizeof library / sizeof *library; i++) setenv(library[i], FAKE_CUDA, 1);
    unsetenv("LOCAL_RANK");
    fake_cuda_reset(seed);
    rm_emulate_by(give);
}

const rm_device_api *rm_device_find(const char *name) {
    const rm_device_api *all[] = {&rm_device_cpu, &rm_device_cuda, &rm_device_null};
    for (int i = 0; i < 3; i++)
        if (!strcmp(all[i]->name, name)) return all[i];
    return NULL;
}
