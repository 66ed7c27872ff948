/* mutants.cu: kernels with the mistakes that the emulation must find (test_kernels.c). */
#include "ops/cuda/reduce.cuh"

#include "tests/cuda/emulation.h"
#include "tests/cuda/mutants.h"

/* Thread 0 reads what the others may not have written yet: no __syncthreads between. */
static __global__ void races(float *out) {
    __shared__ float seen[64];
    seen[threadIdx.x] = 0;
    __syncthreads();
    seen[threadIdx.x] = (float)(threadIdx.x + 1);
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += seen[i];
    if (threadIdx.x == 0) *out = sum;
    __syncthreads();
}

/* The same with it. */
static __global__ void waits(float *out) {
    __shared__ float seen[64];
    seen[threadIdx.x] = (float)(threadIdx.x + 1);
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += seen[i];
    if (threadIdx.x == 0) *out = sum;
}

/* Half of the block returns, and the other half waits for it. */
static __global__ void returns_early(float *out) {
    if (threadIdx.x >= 32) return;
    __syncthreads();
    *out = 1;
}

/* Both halves wait, but not at the same place. */
static __global__ void waits_elsewhere(float *out) {
    if (threadIdx.x >= 32)
        __syncthreads();
    else {
        *out = 1;
        __syncthreads();
    }
}

/* A loop that some lanes of a warp leave before the others. */
static __global__ void leaves_its_warp(float *out) {
    float sum = 0;
    for (unsigned i = threadIdx.x; i < 40; i += RM_WARP) sum += rm_warp_sum(1.0f);
    *out = sum;
}

/* Blocks race for one number. */
static __global__ void races_blocks(float *out) { *out = 2 * *out + (float)blockIdx.x; }

/* As if another thread of the host launched something while this runs. */
static __global__ void counts_its_grid(float *out) {
    RM_LAUNCH(races_blocks, 4, 1, &rm_emulated_queue, out);
    *out += (float)(gridDim.x * blockDim.x);
}

void rm_mutant_races(float *out) { RM_LAUNCH_TOGETHER(races, 1, 64, NULL, out); }
void rm_mutant_waits(float *out) { RM_LAUNCH_TOGETHER(waits, 1, 64, NULL, out); }
void rm_mutant_returns_early(float *out) { RM_LAUNCH_TOGETHER(returns_early, 1, 64, NULL, out); }
void rm_mutant_waits_elsewhere(float *out) { RM_LAUNCH_TOGETHER(waits_elsewhere, 1, 64, NULL, out); }
void rm_mutant_leaves_its_warp(float *out) { RM_LAUNCH_TOGETHER(leaves_its_warp, 1, 32, NULL, out); }
void rm_mutant_waits_alone(float *out) { RM_LAUNCH(waits, 1, 64, NULL, out); }
void rm_mutant_races_blocks(float *out) { RM_LAUNCH(races_blocks, 4, 1, NULL, out); }
void rm_mutant_counts_its_grid(float *out) { RM_LAUNCH(counts_its_grid, 3, 2, &rm_emulated_queue, out); }
