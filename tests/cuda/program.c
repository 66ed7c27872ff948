/* program.c: links `remat` with an emulated device "cuda" (tests/train/link_test_emulated.cmake): Remat's own device,
 * ranks and kernels on the fakes of CUDA and NCCL. The number of GPUs is that of the names in CUDA_VISIBLE_DEVICES, or
 * one. FAKE_LT is a number that selects adverse behaviour of cuBLASLt (fake.h); FAKE_KERNELS the error of kernels for
 * another GPU; with FAKE_BREAK=N the Nth kernel accesses an illegal address. The programs of tests/gpu are linked this
 * way, too (emulated_gpu_NAME). */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/emulation.h"
#include "tests/engine/fake_cuda/fake.h"

static void give(void *stream, void (*work)(void *), const void *context, size_t bytes) {
    fake_push(stream, work, context, bytes, NULL, 0);
}

static int count_gpus(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int n = 1;
    for (const char *at = visible; at && *at; at++) n += *at == ',';
    return n;
}

/* Rules may also be broken while a session is freed. */
static void report(void) {
    if (fake_cuda_violation()) {
        fprintf(stderr, "violation of CUDA's rules: %s\n", fake_cuda_violation());
        _Exit(70);
    }
}

__attribute__((constructor)) static void begin(void) {
    static const char *const library[] = {"REMAT_CUDART_LIBRARY", "REMAT_CUBLAS_LIBRARY", "REMAT_CUBLASLT_LIBRARY",
                                          "REMAT_CUDNN_LIBRARY",  "REMAT_NVML_LIBRARY",   "REMAT_NCCL_LIBRARY"};
    for (size_t i = 0; i < sizeof library / sizeof *library; i++) setenv(library[i], FAKE_CUDA, 1);
    fake_cuda_reset((uint64_t)count_gpus());
    fake_cuda_machine(count_gpus(), 13000, (size_t)1 << 30);
    if (getenv("FAKE_LT")) fake_lt_is((unsigned)atoi(getenv("FAKE_LT")));
    if (getenv("FAKE_KERNELS")) rm_emulated_kernel_error = atoi(getenv("FAKE_KERNELS"));
    if (getenv("FAKE_BREAK")) fake_cuda_break_at(atoi(getenv("FAKE_BREAK")));
    rm_emulate_by(give);
    atexit(report);
}
