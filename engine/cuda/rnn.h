/* rnn.h: recurrent layers by cuDNN, for sessions that ask for it (remat_config.rnn_kernels); private to the CUDA device.
 *
 * A layer gets another descriptor (device.h, variant): aux is cuDNN's reserve space, packed weights are its weight space,
 * scratch holds its work space. How large these are cuDNN says when the session is built, for tiles of two lengths: they are
 * the descriptor's attributes, so that whoever plans asks nobody. docs/notes/cuda.md has the rest. */
#ifndef RM_CUDA_RNN_H
#define RM_CUDA_RNN_H

#include "engine/device/device.h"

typedef struct rm_cuda_rnns rm_cuda_rnns;

/* MISSING: no cuDNN, or it cannot do what the session needs of it (precision, bits that repeat). */
remat_status rm_cuda_rnns_create(rm_device *device, rm_cuda_rnns **out);
void rm_cuda_rnns_free(rm_cuda_rnns *rnns);                           /* NULL allowed; no call is under way */
uint64_t rm_cuda_rnns_version(const rm_cuda_rnns *rnns);              /* NULL: 0 */

/* The slot of rm_device_api: lstm, gru and rnn_tanh on real inputs get a descriptor, once cuDNN is used. */
remat_status rm_cuda_rnn_variant(rm_device *device, const remat_op *op, const remat_desc *x, const int64_t tau[2],
                                 rm_variant *out);

#endif
