/* convolve.h: convolutions in float on the CPU, by the kernels of this machine's instruction set. */
#ifndef RM_CONVOLVE_H
#define RM_CONVOLVE_H

#include "ops/layers/conv.h"

/* Floats of scratch that either pass wants, on any number of threads. */
int64_t rm_convolve_scratch(const rm_conv_shape *s, remat_pass pass);

/* y and dx are overwritten, dw added to. b, dx, dw: NULL where there is none. An element's bits do not depend on `threads`, nor those of
 * y and dx on the images beside its own. dw is summed over 256 / positions images at a time, at least one: a batch that is cut
 * between such images has the same bits. */
void rm_convolve_forward(const rm_conv_shape *s, int threads, const float *x, const float *w, const float *b, float *y,
                         float *scratch);
void rm_convolve_backward(const rm_conv_shape *s, int threads, const float *x, const float *w, const float *dy,
                          float *dx, float *dw, float *scratch);

#endif
