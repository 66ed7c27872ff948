/* kernels.c: finds the launcher of an op or optimizer on the CUDA device, in its descriptor. */
#include "engine/cuda/cuda.h"

static remat_kernel *kernel(const remat_op *op, remat_pass pass) { return rm_op_kernel(op, REMAT_ON_CUDA, pass); }
static __typeof__(((rm_optimizer *)0)->update_cuda) update(const rm_optimizer *optimizer) {
    return optimizer->update_cuda;
}
static __typeof__(((rm_optimizer *)0)->measure_cuda) measure(const rm_optimizer *optimizer) {
    return optimizer->measure_cuda;
}

const rm_cuda_kernels rm_cuda_kernels_built = {kernel,           update,
                                               measure,          rm_sum_of_squares_cuda,
                                               rm_compare_cuda,  rm_add_pieces_cuda,
                                               rm_round_cuda,    rm_kernels_error_cuda,
                                               rm_clusters_cuda, &rm_cudnn_conv_kernels_built};
