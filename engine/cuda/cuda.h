/* cuda.h: what the files of the CUDA device share; private to them.
 *
 *   library.c   CUDA's runtime, linked in or opened; cuBLAS, cuBLASLt and cuDNN, opened at run time
 *   error.c     what they answer, in words
 *   device.c    the device and its block: opening, memory, speed; the table rm_device_cuda
 *   context.c   what CUDA's own context takes of the GPU's memory
 *   queue.c     its queue: a stream, cuBLAS, staging memory; copies and kernels
 *   product.c   matrix products, by cuBLASLt; with algorithm.c: product.h
 *   rnn.c       recurrent layers by cuDNN: rnn.h
 *   graph.c     many small launches, recorded once and launched as one
 *   tier.c     its second tier: page-locked memory of the host
 *   kernels.c   which launcher (ops/NAME.cu) an op has here
 *
 * A device belongs to one thread, as its queues do: it remembers the first failure of whatever it was given, skips what
 * comes after, and says it at the next synchronize or tier_wait; then it can be used afresh. */
#ifndef RM_CUDA_H
#define RM_CUDA_H

#include "engine/cuda/library.h"
#include "engine/cuda/product.h"
#include "engine/cuda/rnn.h"
#include "engine/device/device.h"
#include "ops/cuda/cuda_queue.h"
#include "ops/recurrent/cudnn_cells.h"

enum { RM_CUDA_SENTENCE = 480 };

struct rm_device {
    const rm_cuda_library *lib;
    int number;
    int major, minor;        /* compute capability: 8 is Ampere */
    uint64_t blas_bytes;     /* cuBLAS's workspace: fixed, so that its results repeat and nothing is allocated later */
    uint64_t graph_bytes;    /* that graphs may take, as cuda.h says below */
    uint64_t overhead_bytes; /* of the GPU's memory, beside blocks: measured when the device was opened; and what graphs
                                may take */
    rm_cuda_products *products;
    rm_cuda_rnns *rnns;   /* NULL: cuDNN was not asked for */
    bool in_context;      /* it has begun to use the GPU (context.c) */
    rm_queue *spare;      /* made when the device is opened, and measured there; NULL while it is in use */
    rm_second_tier *tier; /* that is open; NULL: none */
    void (*multiply)(const rm_cuda_queue *, const rm_cuda_product *); /* of its queues: rm_cuda_multiply */
    remat_status failed;  /* the first failure that nobody has been told of yet, and its sentence */
    char sentence[RM_CUDA_SENTENCE];
    int64_t step;      /* of the plan, that is being given to a queue; -1: outside of it */
    const char *doing; /* what was given last: an op's name */
};

/* Memory between pageable memory and the GPU's. The queue has two of them, and fills one while the other travels. */
typedef struct {
    char *memory; /* page-locked */
    cudaEvent_t done;
    bool travels;
    void *to; /* where it is to be copied when it has arrived from the GPU; NULL: it went there */
    uint64_t bytes;
} rm_cuda_stage;

enum { RM_CUDA_STAGES = 2, RM_CUDA_STAGE_BYTES = 1 << 20 };

/* Recorded launches (graph.c): so many at most, of so many calls that are looked out for, in so much of the GPU's memory
 * as the budget sets aside: this share of all of it, but never less than the one nor more than the other. */
enum { RM_CUDA_GRAPHS = 1024, RM_CUDA_CALLS = 4096, RM_CUDA_GRAPH_SHARE = 1024 };
#define RM_CUDA_GRAPH_BYTES ((uint64_t)16 << 20)
#define RM_CUDA_MOST_GRAPH_BYTES ((uint64_t)128 << 20)
/* The most that a recorded launch is taken to need: older drivers are said to take so much, present ones a sixth of it. */
#define RM_CUDA_NODE_BYTES ((uint64_t)64 << 10)
typedef struct rm_cuda_graphs rm_cuda_graphs;

struct rm_queue {
    rm_cuda_queue shown; /* to launchers; the first, so that it leads back here */
    rm_device *device;
    cudaStream_t stream;
    cublasHandle_t blas;
    char *own; /* device memory: cuBLAS's workspace, then partial sums, then sums */
    double *sums;
    rm_cuda_graphs *graphs;
    uint64_t running[2]; /* the op and the pass whose launcher runs: part of the key of what it records */
    rm_cuda_stage stage[RM_CUDA_STAGES];
    int next_stage;
};

struct rm_event {
    rm_device *device;
    cudaEvent_t event;
};

/* error.c. Success is OK and costs nothing; otherwise CUDA's own memory of the error is cleared. MEMORY or DEVICE with
 * a sentence: for calls that are answered at once. */
remat_status rm_cuda_status(const rm_cuda_library *lib, cudaError_t error, const char *doing);
remat_status rm_cublas_status(const rm_cuda_library *lib, cublasStatus_t error, const char *doing);

/* For work that is given: true if all is well. Otherwise the device keeps the failure, with the step of the plan. */
bool rm_cuda_went(rm_device *device, cudaError_t error, const char *doing);
bool rm_cublas_went(rm_device *device, cublasStatus_t error, const char *doing);
remat_status rm_cuda_tell(rm_device *device); /* ... and says it, once */
/* "doing at step 7 of the plan (given last: lstm)", for the sentence that the device keeps. Returns text. */
enum { RM_CUDA_WHEN = 160 };
const char *rm_cuda_when(const rm_device *device, const char *doing, char *text);
/* True if work may be given: nothing has failed, and CUDA's calls of this thread mean this GPU. */
bool rm_cuda_ready(rm_device *device);

/* context.c. Begins to use the GPU: before it, other calls may not mean it. *bytes: what that takes of its memory, seen
 * by the driver's NVML when this process did it first; 0 where there is no NVML, or another library was first, or another device
 * of this process has begun and not ended: they share it. */
remat_status rm_cuda_context_begin(const rm_cuda_library *lib, int number, uint64_t *bytes);
void rm_cuda_context_end(int number); /* the context stays; whoever begins next counts it */

/* What was seen to be taken of the GPU's memory just now, or the most that was ever seen so in this process: the libraries
 * take some of it once for all, when they are first asked for something, and it stays when a device is closed. So a device that
 * is opened again, as `remat train` does after it has looked whether it can be, counts it, too. Devices of one process are to be
 * opened one after the other: each takes for its own what another takes meanwhile. */
typedef enum { RM_CUDA_OPENING, RM_CUDA_CUDNN, RM_CUDA_TAKERS } rm_cuda_taker;
uint64_t rm_cuda_context_most(int number, rm_cuda_taker taker, uint64_t bytes);

/* product.c and graph.c: the functions of rm_cuda_queue, and the life of what is recorded. */
void rm_cuda_multiply(const rm_cuda_queue *queue, const rm_cuda_product *product);
bool rm_cuda_graph_records(const rm_queue *queue); /* between begin and end, now */
bool rm_cuda_graph_begin(const rm_cuda_queue *queue, const void *key, size_t bytes);
void rm_cuda_graph_end(const rm_cuda_queue *queue);
remat_status rm_cuda_graphs_make(rm_queue *queue);
void rm_cuda_graphs_known(const rm_queue *queue, rm_recordings *out); /* the slot of rm_device_api */
void rm_cuda_graphs_forget(rm_queue *queue); /* waits for the queue; it has none then, and may record afresh */
void rm_cuda_graphs_destroy(rm_queue *queue);

/* queue.c */
int rm_cuda_clusters(void); /* rm_cuda_queue.clusters, of the GPU that is chosen */
remat_status rm_cuda_queue_make(rm_device *device, rm_queue **out);
void rm_cuda_queue_destroy(rm_queue *queue);
void rm_cuda_queue_settle(rm_queue *queue); /* waits for all of it; what arrived is where it was wanted */

/* The slots of rm_device_api that queue.c and tier.c fill. */
remat_status rm_cuda_queue_create(rm_device *device, rm_queue **out);
void rm_cuda_queue_free(rm_queue *queue);
remat_status rm_cuda_event_create(rm_device *device, rm_event **out);
remat_status rm_cuda_timer_create(rm_device *device, rm_event **out);
uint64_t rm_cuda_between_ns(rm_event *from, rm_event *to);
void rm_cuda_event_free(rm_event *event);
void rm_cuda_event_record(rm_queue *queue, rm_event *event);
void rm_cuda_event_wait(rm_queue *queue, rm_event *event);
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

/* kernels.c: the launchers; NULL: there is none. Tests have their own file in its place, whose "launchers" let the
 * CPU's kernels run when a recording stream gets there. */
typedef struct {
    remat_kernel *(*kernel)(const remat_op *op, remat_pass pass);
    __typeof__(((rm_optimizer *)0)->update_cuda) (*update)(const rm_optimizer *optimizer);
    __typeof__(((rm_optimizer *)0)->measure_cuda) (*measure)(const rm_optimizer *optimizer);
    __typeof__(rm_sum_of_squares_cuda) *sum_of_squares;
    __typeof__(rm_compare_cuda) *compare;
    __typeof__(rm_add_pieces_cuda) *add_pieces; /* beside cuDNN */
    __typeof__(rm_kernels_error_cuda) *error;
    __typeof__(rm_clusters_cuda) *clusters;
} rm_cuda_kernels;
extern const rm_cuda_kernels rm_cuda_kernels_built;

#endif
