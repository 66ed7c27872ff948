/* convolve.h: float convolutions on the CPU with the kernels of this machine's instruction set. */
#ifndef RM_CONVOLVE_H
#define RM_CONVOLVE_H

#include "ops/layers/conv.h"

/* Floats of scratch for this pass; enough for any number of threads. */
int64_t rm_convolve_scratch(const rm_conv_shape *s, remat_pass pass);

/* y and dx are overwritten, dw is added to. b, dx, dw: NULL if absent. No bits depend on `threads`, and those of
 * y and dx do not depend on the other images of the batch. dw is summed in groups of 256 / positions images, at least
 * one: a batch that is split between such groups gives the same bits. */
void rm_convolve_forward(const rm_conv_shape *s, int threads, const float *x, const float *w, const float *b, float *y,
                         float *scratch);
void rm_convolve_backward(const rm_conv_shape *s, int threads, const float *x, const float *w, const float *dy,
                          float *dx, float *dw, float *scratch);

#endif
