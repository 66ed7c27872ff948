/* conv.h: convolutions by cuDNN, wherever it can be opened; private to the CUDA device.
 *
 * A node of the op conv or conv_transpose gets another descriptor (device.h, variant), whose scratch includes cuDNN's
 * work space. cuDNN is asked for its size when the session is built. The first algorithm of a fixed list is used, never
 * the fastest of a measurement, and the list has only algorithms that NVIDIA documents as deterministic, so every plan
 * has the same bits. More in docs/notes/cuda.md. */
#ifndef RM_CUDA_CONV_H
#define RM_CUDA_CONV_H

#include "engine/device/device.h"

typedef struct rm_cuda_convs rm_cuda_convs;

void rm_cuda_convs_free(rm_cuda_convs *convs); /* NULL allowed; no call may be pending */

/* rm_device_api.variant. The node keeps its own kernels (ops/layers/conv.cuh), which multiply matrices, if there is no
 * cuDNN, if REMAT_CUDA_CUDNN=OFF, if cuDNN does not support the shape, if all its algorithms need too much memory, and
 * if each filter reads a single channel of several. */
remat_status rm_cuda_conv_variant(rm_device *device, const remat_op *op, const void *attr, const remat_desc *x,
                                  const int64_t tau[2], rm_variant *out);

/* rm_device_api.method: cuDNN's algorithms and work space, or those of the op's own kernels. */
bool rm_cuda_conv_method(rm_device *device, const remat_op *op, const void *attr, const remat_desc *x, rm_method *out);

#endif
