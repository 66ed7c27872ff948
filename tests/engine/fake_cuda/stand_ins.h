/* stand_ins.h: the device "cuda" for machines without a GPU: Remat's own (engine/cuda/device.c and its neighbours), on the fake
 * runtime, with "launchers" that let the CPU's kernels run when the stream gets there: so the same plan gives the same bits
 * as on the device "cpu" with one thread. Included by a test, it brings rm_device_find with it. */
#ifndef STAND_INS_H
#define STAND_INS_H

#include "engine/cuda/cuda.h"
#include "tests/engine/fake_cuda/fake.h"

/* Names the fake's library to engine/cuda/library.c, and forgets what was before. */
void stand_in_reset(uint64_t seed);
/* Asked whether they are made for this GPU. */
void stand_in_kernels_answer(cudaError_t error);

#endif
