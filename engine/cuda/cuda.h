/* cuda.h: declarations shared by the files of the CUDA device, and private to them.
 *
 *   library.c   CUDA's runtime, linked in or opened; cuBLAS, cuBLASLt and cuDNN, opened at run time
 *   error.c     messages for errors of CUDA and cuBLAS
 *   device.c    the device and its block: opening, memory, speed; the table rm_device_cuda
 *   context.c   the GPU memory of CUDA's context
 *   queue.c     the queue: a stream, cuBLAS, staging memory; copies and kernels
 *   product.c   matrix products by cuBLASLt, with algorithm.c: product.h
 *   dnn.c       cuDNN's handle and errors: dnn.h
 *   rnn.c       recurrent layers by cuDNN: rnn.h
 *   conv.c      convolutions by cuDNN: conv.h
 *   graph.c     CUDA graphs: many small launches recorded once and launched as one
 *   tier.c      the second tier: page-locked host memory
 *   kernels.c   finds the launcher (ops/NAME.cu) of an op
 *
 * A device and its queues belong to one thread. The device remembers the first failure, skips later work, and reports
 * the failure at the next synchronize or tier_wait. After that it can be used again. */
#ifndef RM_CUDA_H
#define RM_CUDA_H

#include "engine/cuda/conv.h"
#include "engine/cuda/dnn.h"
#include "engine/cuda/library.h"
#include "engine/cuda/product.h"
#include "engine/cuda/rnn.h"
#include "engine/device/device.h"
#include "ops/cuda/bf16.h"
#include "ops/cuda/cuda_queue.h"
#include "ops/layers/cudnn_conv.h"
#include "ops/recurrent/cudnn_cells.h"

enum { RM_CUDA_SENTENCE = 480 };

struct rm_device {
    const rm_cuda_library *lib;
    int number;
    int major, minor;        /* compute capability: 8 is Ampere */
    uint64_t blas_bytes;     /* cuBLAS's workspace: fixed, so that its results repeat and nothing is allocated later */
    uint64_t graph_bytes;    /* limit for recorded launches (see below) */
    uint64_t overhead_bytes; /* GPU memory outside blocks: measured when the device was opened, plus graph_bytes and
                                trial_bytes */
    rm_cuda_products *products;
    rm_cuda_dnn *dnn;     /* cuDNN; NULL: no layer has needed it */
    rm_cuda_rnns *rnns;   /* NULL: its recurrent layers were not requested */
    rm_cuda_convs *convs; /* NULL: it runs no convolution */
    bool in_context;      /* rm_cuda_context_begin has been called */
    rm_queue *spare;      /* made, and its memory measured, when the device is opened; NULL while it is in use */
    rm_second_tier *tier; /* NULL: none is open */
    void (*multiply)(const rm_cuda_queue *, const rm_cuda_product *); /* of its queues: rm_cuda_multiply */
    remat_status failed;  /* the first failure that has not been reported yet, and its message */
    char sentence[RM_CUDA_SENTENCE];
    int64_t step;      /* step of the plan that is being queued; -1: outside of a plan */
    const char *doing; /* name of the op that was queued last */
};

/* A staging buffer between pageable host memory and the GPU. The queue has two, and fills one while the other is
 * copied. */
typedef struct {
    char *memory; /* page-locked */
    cudaEvent_t done;
    bool travels; /* a copy from or to it is pending */
    void *to; /* host address for data from the GPU, once they have arrived; NULL: data for the GPU */
    uint64_t bytes;
} rm_cuda_stage;

enum { RM_CUDA_STAGES = 2, RM_CUDA_STAGE_BYTES = 1 << 20 };

/* Recorded launches (graph.c): limits on graphs, on known calls, and on GPU memory, which the budget includes: 1 /
 * SHARE of all GPU memory, but at least GRAPH_BYTES and at most MOST_GRAPH_BYTES. */
enum { RM_CUDA_GRAPHS = 1024, RM_CUDA_CALLS = 4096, RM_CUDA_GRAPH_SHARE = 1024 };
#define RM_CUDA_GRAPH_BYTES ((uint64_t)16 << 20)
#define RM_CUDA_MOST_GRAPH_BYTES ((uint64_t)128 << 20)
/* Upper limit of the memory counted for a recorded launch. Older drivers are said to need this much, current ones a
 * sixth. */
#define RM_CUDA_NODE_BYTES ((uint64_t)64 << 10)
typedef struct rm_cuda_graphs rm_cuda_graphs;

struct rm_queue {
    rm_cuda_queue shown; /* the part that launchers see; the first member, so that it can be cast back */
    rm_device *device;
    cudaStream_t stream;
    cublasHandle_t blas;
    char *own; /* device memory: cuBLAS's workspace, then partial sums, then sums */
    char *rounded; /* device memory for operands in bf16 (rounded.c); NULL: at other precisions, or never */
    double *sums;
    rm_cuda_graphs *graphs;
    uint64_t running[2]; /* op and pass of the running launcher: part of the key of its recordings */
    rm_cuda_stage stage[RM_CUDA_STAGES];
    int next_stage;
    remat_status (*poll)(void *context); /* while the host waits for the stream (rm_device_api.stream); NULL: nothing */
    void *poller;
};

struct rm_event {
    rm_device *device;
    cudaEvent_t event;
};

/* error.c. For synchronous calls: the status and message of an error. Also clears CUDA's own record of the error. */
remat_status rm_cuda_status(const rm_cuda_library *lib, cudaError_t error, const char *doing);
remat_status rm_cublas_status(const rm_cuda_library *lib, cublasStatus_t error, const char *doing);

/* For queued work: returns true on success. Otherwise the device keeps the failure, with the step of the plan. */
bool rm_cuda_went(rm_device *device, cudaError_t error, const char *doing);
bool rm_cublas_went(rm_device *device, cublasStatus_t error, const char *doing);
remat_status rm_cuda_tell(rm_device *device); /* reports the kept failure, once */
/* "doing at step 7 of the plan (given last: lstm)", for the message that the device keeps. Returns text. */
enum { RM_CUDA_WHEN = 160 };
const char *rm_cuda_when(const rm_device *device, const char *doing, char *text);
/* Returns true if work can be queued: nothing has failed, and this thread's CUDA calls go to this GPU. */
bool rm_cuda_ready(rm_device *device);

/* context.c. Starts using the GPU; no other call may use it before. *bytes: GPU memory of the context, measured through
 * the driver's NVML when this process created it. 0 without NVML, if another library created the context, or while
 * another device of this process, which shares it, is open. */
remat_status rm_cuda_context_begin(const rm_cuda_library *lib, int number, uint64_t *bytes);
void rm_cuda_context_end(int number); /* the context stays; the next device to begin counts it */

/* The larger of `bytes`, the GPU memory just measured, and the most that was ever measured for this taker in this
 * process. Libraries allocate some memory once, at their first call, and keep it when a device is closed; a device that
 * is opened again, as in `remat train`, must count it, too. Open the devices of a process one after another: each
 * counts all memory that is allocated meanwhile. */
typedef enum { RM_CUDA_OPENING, RM_CUDA_CUDNN, RM_CUDA_TAKERS } rm_cuda_taker;
uint64_t rm_cuda_context_most(int number, rm_cuda_taker taker, uint64_t bytes);

/* device.c: opens cuDNN for the device, unless it is open, and counts the GPU memory that it takes. */
remat_status rm_cuda_use_dnn(rm_device *device);

/* product.c and graph.c: the functions of rm_cuda_queue, and the life of recordings. */
void rm_cuda_multiply(const rm_cuda_queue *queue, const rm_cuda_product *product);
bool rm_cuda_graph_records(const rm_queue *queue); /* a recording is between begin and end */
bool rm_cuda_graph_begin(const rm_cuda_queue *queue, const void *key, size_t bytes);
void rm_cuda_graph_end(const rm_cuda_queue *queue);
remat_status rm_cuda_graphs_make(rm_queue *queue);
void rm_cuda_graphs_known(const rm_queue *queue, rm_recordings *out); /* rm_device_api.recordings */
void rm_cuda_graphs_forget(rm_queue *queue); /* waits for the queue and frees all recordings; it can record again */
void rm_cuda_graphs_destroy(rm_queue *queue);

/* queue.c */
int rm_cuda_clusters(void); /* rm_cuda_queue.clusters of the current GPU */
remat_status rm_cuda_queue_make(rm_device *device, rm_queue **out);
/* Takes or frees the memory for rounded operands, as the device's precision requires. NULL allowed. */
remat_status rm_cuda_queue_fit(rm_queue *queue);
void rm_cuda_queue_destroy(rm_queue *queue);
void rm_cuda_queue_settle(rm_queue *queue); /* waits for all work and copies arrived data to their destination */

/* Functions of rm_device_api in queue.c and tier.c. */
remat_status rm_cuda_queue_create(rm_device *device, rm_queue **out);
void rm_cuda_queue_free(rm_queue *queue);
remat_status rm_cuda_event_create(rm_device *device, rm_event **out);
remat_status rm_cuda_timer_create(rm_device *device, rm_event **out);
uint64_t rm_cuda_between_ns(rm_event *from, rm_event *to);
void rm_cuda_event_free(rm_event *event);
void rm_cuda_event_record(rm_queue *queue, rm_event *event);
void rm_cuda_event_wait(rm_queue *queue, rm_event *event);
void *rm_cuda_stream(rm_queue *queue, remat_status (*poll)(void *context), void *context);
void rm_cuda_note(rm_queue *queue, int64_t step);
void rm_cuda_copy_in(rm_queue *queue, void *device, const void *host, uint64_t bytes);
void rm_cuda_copy_out(rm_queue *queue, void *host, const void *device, uint64_t bytes);
void rm_cuda_copy(rm_queue *queue, void *to, const void *from, uint64_t bytes);
void rm_cuda_fill(rm_queue *queue, void *device, int byte, uint64_t bytes);
void rm_cuda_run(rm_queue *queue, const remat_op *op, remat_pass pass, const remat_call *call);
void rm_cuda_pack(rm_queue *queue, const remat_op *op, const remat_call *call, void *packed);
void rm_cuda_update(rm_queue *queue, const rm_optimizer *optimizer, const rm_update *update, int64_t n,
                    float *parameter, const float *gradient, float *const *state);
void rm_cuda_measure(rm_queue *queue, const rm_optimizer *optimizer, const rm_update *update, int64_t n,
                     const float *parameter, const float *gradient, float *const *state, double *sum);
double rm_cuda_sum_of_squares(rm_queue *queue, const float *x, int64_t n);
void rm_cuda_compare(rm_queue *queue, const rm_comparison *check);

void rm_cuda_tier_settle(rm_second_tier *tier); /* waits for its transfers; NULL allowed */
remat_status rm_cuda_tier_open(rm_device *device, const char *where, rm_second_tier **out);
remat_status rm_cuda_tier_measure(rm_second_tier *tier, rm_tier *rates);
remat_status rm_cuda_tier_reserve(rm_second_tier *tier, uint64_t bytes);
void rm_cuda_tier_close(rm_second_tier *tier);
void rm_cuda_tier_save(rm_queue *queue, rm_second_tier *tier, const rm_part *part);
void rm_cuda_tier_load(rm_queue *queue, rm_second_tier *tier, const rm_part *part);
remat_status rm_cuda_tier_wait(rm_queue *queue, rm_second_tier *tier, uint64_t count);
uint64_t rm_cuda_tier_given(const rm_second_tier *tier);

/* kernels.c: the launchers; NULL: none. Tests replace this file by one whose launchers run the CPU's kernels when a
 * recording stream reaches them. */
typedef struct {
    remat_kernel *(*kernel)(const remat_op *op, remat_pass pass);
    __typeof__(((rm_optimizer *)0)->update_cuda) (*update)(const rm_optimizer *optimizer);
    __typeof__(((rm_optimizer *)0)->measure_cuda) (*measure)(const rm_optimizer *optimizer);
    __typeof__(rm_sum_of_squares_cuda) *sum_of_squares;
    __typeof__(rm_compare_cuda) *compare;
    __typeof__(rm_add_pieces_cuda) *add_pieces; /* for layers by cuDNN */
    __typeof__(rm_round_cuda) *round; /* for operands in bf16 */
    __typeof__(rm_kernels_error_cuda) *error;
    __typeof__(rm_clusters_cuda) *clusters;
    const rm_cudnn_conv_kernels *conv; /* for convolutions by cuDNN */
} rm_cuda_kernels;
extern const rm_cuda_kernels rm_cuda_kernels_built;

#endif
