/* stand_ins.h: the device "cuda" for machines without a GPU: engine/cuda/device.c and its neighbours on the fake
 * runtime, with launchers that run the CPU's kernels when their turn in the stream comes. So a plan gives the same bits
 * as on the device "cpu" with one thread. It defines rm_device_find for the test that includes it. */
#ifndef STAND_INS_H
#define STAND_INS_H

#include "engine/cuda/cuda.h"
#include "tests/engine/fake_cuda/fake.h"

/* Gives engine/cuda/library.c the fake's library, and resets the fake. */
void stand_in_reset(uint64_t seed);
/* The answer of the kernels when the device asks whether they fit its GPU. */
void stand_in_kernels_answer(cudaError_t error);

#endif
