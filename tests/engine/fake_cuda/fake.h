/* fake.h: libcudart and libcublas in one, without a GPU. The calls of Remat's CUDA device are recorded, checked against
 * the rules, and executed later on the CPU. (tests/dist/fake_nccl is the fake for ranks.)
 *
 *   fake_memory.c  allocations; the GPU's memory, which the host cannot access
 *   fake_order.c   streams and events, the order of execution, and conflicting accesses
 *   fake_calls.c   the functions of CUDA, cuBLAS and NVML themselves; faults on demand
 *   fake_lt.c      those of cuBLASLt, with products in plain loops, and adverse behaviour on demand
 *   fake_dnn.c     those of cuDNN's RNN, if cudnn.h is installed
 *   fake_conv.c    those of cuDNN's convolutions
 *
 * Work stays in its stream until someone waits for it. Then streams take turns in an order drawn from a seed,
 * limited only by the order within each stream and by events, so work without a necessary event runs too early under
 * some seed. In addition, each access is compared with earlier accesses of other streams: if one of them writes and
 * no event orders them, that is a violation even if the result is right (vector clocks: Fidge 1988, Mattern 1989).
 *
 * Several threads may use it; work runs in the waiting thread. A wait of one thread counts for all threads, so
 * violations between threads may stay undetected. A violation is kept as a message. Only an access of the host to
 * the GPU's memory ends the process, by a segmentation fault. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- For tests ------------------------------------------------------------------------------------------------- */

void fake_cuda_reset(uint64_t seed);   /* forgets everything; no objects may be alive */
const char *fake_cuda_violation(void); /* the first violation; NULL: none */
int64_t fake_cuda_live(void);          /* memory, streams, events, handles that were not released */
int64_t fake_cuda_calls(void);         /* since the reset */
int64_t fake_cuda_allocations(void);   /* calls that allocate memory or create a handle */
int64_t fake_cuda_graphs(void);        /* instantiated graphs */
int64_t fake_cuda_replays(void);       /* launches of graphs */
/* GPU memory that each of these takes permanently with its first handle after the reset. */
enum { FAKE_CUBLAS, FAKE_CUBLASLT, FAKE_CUDNN, FAKE_LIBRARIES, FAKE_LIBRARY_BYTES = 4 << 20 };
void fake_cuda_fail_at(int64_t call, cudaError_t error); /* the call with this number (from 1) fails; 0: none */
void fake_cuda_break_at(int64_t work); /* the kernel with this number fails later, and everything after it */
void fake_cuda_machine(int gpus, int driver, size_t free_bytes); /* until the next reset: 1, 13000, 1 GiB */

void fake_cuda_others_take(size_t bytes); /* GPU memory, while the next graph is created */

/* Adverse behaviour of cuBLASLt, until the next reset. */
enum {
    FAKE_LT_OTHER_WHOLE = 1,        /* an algorithm's order of sums depends on the number of columns      */
    FAKE_LT_OTHER_BATCHED = 2,      /* ... and on batching                                               */
    FAKE_LT_REFUSES_OTHERS = 4,     /* ... or it is not available for them                              */
    FAKE_LT_KNOWS_NOTHING = 8,      /* no algorithm is available                                        */
    FAKE_LT_NO_TENSOR_CORES = 16,   /* only for fp32                                                    */
    FAKE_LT_REFUSES_FAR = 32,       /* the first suitable algorithm refuses widely spaced rows           */
    FAKE_LT_FASTER_IN_FP32 = 64,    /* ... reads its operands in fp32, though it need not                */
    FAKE_LT_REFUSES_LATE = 128,     /* ... fails at the multiplication, after all checks passed          */
    FAKE_LT_NEVER_MULTIPLIES = 256, /* ... and so does every other                                     */
    FAKE_LT_NEVER_REPEATS = 512,    /* split sums have another order each time                         */
    FAKE_LT_SELDOM_REPEATS = 1024,  /* ... each third time                                            */
};
void fake_lt_is(unsigned whims);
typedef struct {
    int64_t searches, products, batches, splits; /* the last two count as products, too */
} fake_lt_count;
fake_lt_count fake_lt_counted(void); /* since the reset */
int64_t fake_dnn_counted(void);      /* passes of recurrent layers through cuDNN, since the reset */
int64_t fake_conv_counted(void);     /* convolutions by cuDNN, since the reset */
/* Until the next reset: cuDNN supports no groups; all algorithms with a work space need so much more. */
void fake_conv_refuses_groups(void);
void fake_conv_wants(int64_t bytes);

/* ---- For launchers: work for a stream -------------------------------------------------------------------------- */

typedef struct {
    const void *start;
    uint64_t bytes; /* 0: no access */
    bool writes;
} fake_range;

/* `work` runs when its turn in the stream comes, on a copy of the context, and can access the GPU's memory. If the
 * stream records, it runs at each launch of the graph, on a fresh copy. */
void fake_push(cudaStream_t stream, void (*work)(void *context), const void *context, size_t bytes,
               const fake_range *range, int n);

/* The same for work that may have to wait for another process: it returns false, and is called again. No graph records
 * it. */
void fake_push_patient(cudaStream_t stream, bool (*work)(void *context), const void *context, size_t bytes,
                       const fake_range *range, int n);
void fake_take_turns(void); /* some work runs, if any can */

/* ---- Between the files ----------------------------------------------------------------------------------------- */

cublasStatus_t fake_blas_answer(void); /* the status of a valid call of cuBLAS or cuBLASLt */
uint64_t fake_blas_bytes(cudaDataType_t type); /* of a number in fp32 or bf16; another type is a violation */
float fake_blas_number(const void *x, cudaDataType_t type, int64_t i); /* x[i] */
void fake_blas_handle(int more);       /* handles created or destroyed */
void fake_load(int library);           /* FAKE_CUBLAS ... creates its first handle, or another */
void fake_lt_reset(void);
void fake_dnn_reset(void);
void fake_conv_reset(void);
/* The lock, held by every function here except cudaSetDevice; it is recursive. FAKE_INSIDE: until the end of the
 * block. */
void fake_enter(void);
void fake_leave(const int *unused);
#define FAKE_INSIDE __attribute__((cleanup(fake_leave), unused)) const int fake_inside_ = (fake_enter(), 0)

void fake_violate(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *fake_take(size_t bytes, bool on_gpu); /* NULL: no memory left */
void fake_give_back(void *start, bool on_gpu);
bool fake_lies_in(const void *start, uint64_t bytes, bool on_gpu);
void fake_unlock(bool unlock); /* the GPU's memory, for work */
void fake_memory_reset(void);
int64_t fake_memory_live(void);

int fake_cuda_current(void); /* this thread's GPU */

cudaStream_t fake_stream_make(void);
cudaEvent_t fake_event_make(void);
void fake_event_keeps_time(cudaEvent_t event);
float fake_event_between_ms(cudaEvent_t from, cudaEvent_t to);
void fake_stream_end(cudaStream_t stream);
void fake_event_end(cudaEvent_t event);
void fake_record(cudaEvent_t event, cudaStream_t stream);
void fake_wait(cudaStream_t stream, cudaEvent_t event);
void fake_finish_stream(cudaStream_t stream);
void fake_finish_event(cudaEvent_t event);
bool fake_query_stream(cudaStream_t stream); /* is it empty? If not, runs some work */
bool fake_query_event(cudaEvent_t event);    /* was it reached? If not, runs some work */
bool fake_stream_lives(cudaStream_t stream);
bool fake_records(void); /* does a stream record for this thread? */
bool fake_record_begin(cudaStream_t stream);
cudaGraph_t fake_record_end(cudaStream_t stream); /* NULL: the stream did not record */
void fake_graph_end(cudaGraph_t graph);
cudaGraphExec_t fake_graph_make(cudaGraph_t graph);
size_t fake_graph_launches(cudaGraph_t graph);
void fake_graph_launch(cudaGraphExec_t graph, cudaStream_t stream);
void fake_graph_exec_end(cudaGraphExec_t graph);
int64_t fake_graphs_live(void);
bool fake_in_flight(const void *start, uint64_t bytes);
void fake_order_reset(uint64_t seed);
int64_t fake_order_live(void);
extern int64_t fake_break; /* kernels until the GPU fails; 0: never */
extern bool fake_broken;

#endif
