/* mutants.h: launches of broken kernels (mutants.cu); `out` is one float. `waits` is sound, and so is
 * `counts_its_grid`, which adds 6 in each of its 6 threads. */
#ifndef RM_TEST_CUDA_MUTANTS_H
#define RM_TEST_CUDA_MUTANTS_H

#ifdef __cplusplus
extern "C" {
#endif

void rm_mutant_waits(float *out), rm_mutant_races(float *out), rm_mutant_races_blocks(float *out);
void rm_mutant_returns_early(float *out), rm_mutant_waits_elsewhere(float *out), rm_mutant_leaves_its_warp(float *out);
void rm_mutant_waits_alone(float *out), rm_mutant_counts_its_grid(float *out);

#ifdef __cplusplus
}
#endif

#endif
