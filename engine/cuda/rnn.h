/* rnn.h: recurrent layers by cuDNN, for sessions that request it (remat_config.rnn_kernels); private to the CUDA
 * device.
 *
 * A layer gets another descriptor (device.h, variant): aux is cuDNN's reserve space, packed weights are its weight
 * space, and scratch holds its work space. cuDNN is asked for their sizes when the session is built, for both tile
 * lengths. They are stored in the descriptor's attributes, so planning needs no call to cuDNN. More in
 * docs/notes/cuda.md. */
#ifndef RM_CUDA_RNN_H
#define RM_CUDA_RNN_H

#include "engine/device/device.h"

typedef struct rm_cuda_rnns rm_cuda_rnns;

/* MISSING: no cuDNN, or it does not support what the session needs (precision, repeatable bits). */
remat_status rm_cuda_rnns_create(rm_device *device, rm_cuda_rnns **out);
void rm_cuda_rnns_free(rm_cuda_rnns *rnns); /* NULL allowed; no call may be pending */

/* rm_device_api.variant: lstm, gru, rnn_tanh and rnn_relu on float inputs get a descriptor if cuDNN is used. */
remat_status rm_cuda_rnn_variant(rm_device *device, const remat_op *op, const remat_desc *x, const int64_t tau[2],
                                 rm_variant *out);

#endif
