/* device.h: the whole device "cuda" for machines without a GPU: Remat's own device (engine/cuda) and kernels
 * (ops/NAME.cu, compiled as C++ for the CPU: shim.h) on the streams of the fake CUDA (tests/engine/fake_cuda). Recorded
 * graphs keep their kernels' arguments, as CUDA's do. It defines rm_device_find for the test that includes it. */
#ifndef RM_TEST_CUDA_DEVICE_H
#define RM_TEST_CUDA_DEVICE_H

#include "engine/cuda/cuda.h"
#include "tests/cuda/emulation.h"
#include "tests/engine/fake_cuda/fake.h"

/* Resets the fake. `seed` decides in which order streams take turns; rm_emulate_in does so for threads and blocks. */
void emulated_device_reset(uint64_t seed);

#endif
