/* device.h: the device "cuda" for machines without a GPU, from end to end: Remat's own (engine/cuda*.c) with its own kernels
 * (ops/NAME.cu, as C++ on the CPU: shim.h), launched on the streams of the fake CUDA (tests/engine/fake_cuda). What is
 * recorded there keeps its kernels' arguments, as CUDA's graphs do. Included by a test, it brings rm_device_find with it. */
#ifndef RM_TEST_CUDA_DEVICE_H
#define RM_TEST_CUDA_DEVICE_H

#include "engine/cuda/cuda.h"
#include "tests/cuda/emulation.h"
#include "tests/engine/fake_cuda/fake.h"

/* Forgets what was before; `seed` says in what order streams take turns. Threads and blocks: rm_emulate_in. */
void emulated_device_reset(uint64_t seed);

#endif
