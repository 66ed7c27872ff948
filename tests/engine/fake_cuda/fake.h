/* fake.h: a libcudart and a libcublas in one, without a GPU: what Remat's CUDA device asks of them is recorded, held against
 * the rules, and done on the CPU, late. (tests/dist/fake_nccl is the fake for ranks.)
 *
 *   fake_memory.c  what is taken and given back; the GPU's memory, which the host cannot touch
 *   fake_order.c   streams and events, the order in which work is done, and who may touch what when
 *   fake_calls.c   the functions of CUDA, cuBLAS and NVML themselves; faults on demand
 *   fake_lt.c      those of cuBLASLt, with products in plain loops, and whims on demand
 *   fake_dnn.c     those of cuDNN's RNN, where there is cudnn.h
 *
 * Work waits in its stream until somebody waits for it; then streams take turns as a seed says, in no order but their own
 * and that of events: what lacks an event runs too early under some seed. Apart from that, each access is held against those
 * of other streams before it: if one writes and no event stands between them, that is a violation whether it shows or not
 * (vector clocks: Fidge 1988, Mattern 1989).
 *
 * Several threads may use it; work runs in whichever of them waits. What one of them has waited for counts as waited for by all,
 * so between threads fewer violations are found than there may be. A violation is kept as a sentence; nothing ends the process but the host touching the GPU's
 * memory, which is a segmentation fault. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- For tests ------------------------------------------------------------------------------------------------- */

void fake_cuda_reset(uint64_t seed);   /* forgets everything; nothing may be alive */
const char *fake_cuda_violation(void); /* the first; NULL: none */
int64_t fake_cuda_live(void);          /* memory, streams, events, handles that were not given back */
int64_t fake_cuda_calls(void);         /* since the reset */
int64_t fake_cuda_allocations(void);   /* calls that take memory or make a handle */
int64_t fake_cuda_graphs(void);        /* that were instantiated */
int64_t fake_cuda_replays(void);       /* ... and launched, how often in all */
/* Of the GPU's memory each of these takes so much with the first handle since the reset, for good. */
enum { FAKE_CUBLAS, FAKE_CUBLASLT, FAKE_CUDNN, FAKE_LIBRARIES, FAKE_LIBRARY_BYTES = 4 << 20 };
void fake_cuda_fail_at(int64_t call, cudaError_t error); /* the call numbered so (from 1) fails; 0: none */
void fake_cuda_break_at(int64_t work); /* so does, later, the so many-th kernel, and everything after it */
void fake_cuda_machine(int gpus, int driver, size_t free_bytes); /* until the next reset: 1, 13000, 1 GiB */

void fake_cuda_others_take(size_t bytes); /* of the GPU's memory, while the next graph is made */

/* cuBLASLt's whims, until the next reset: none. */
enum {
    FAKE_LT_OTHER_WHOLE = 1,        /* an algorithm adds in another order for another number of columns  */
    FAKE_LT_OTHER_BATCHED = 2,      /* ... and in batches                                               */
    FAKE_LT_REFUSES_OTHERS = 4,     /* ... or is not to be had for them                                 */
    FAKE_LT_KNOWS_NOTHING = 8,      /* there is no algorithm for anything                               */
    FAKE_LT_NO_TENSOR_CORES = 16,   /* there is none but for fp32                                       */
    FAKE_LT_REFUSES_FAR = 32,       /* the first that would do takes no rows that lie far apart         */
    FAKE_LT_FASTER_IN_FP32 = 64,    /* ... reads its operands as they are, though it need not           */
    FAKE_LT_REFUSES_LATE = 128,     /* ... is refused when it should multiply, after all was well       */
    FAKE_LT_NEVER_MULTIPLIES = 256, /* ... and so is every other                                      */
    FAKE_LT_NEVER_REPEATS = 512,    /* what splits sums adds them up in another order each time       */
    FAKE_LT_SELDOM_REPEATS = 1024,  /* ... each third time                                            */
};
void fake_lt_is(unsigned whims);
typedef struct {
    int64_t searches, products, batches, splits; /* the last two are products, too */
} fake_lt_count;
fake_lt_count fake_lt_counted(void); /* since the reset */
int64_t fake_dnn_counted(void);      /* passes of recurrent layers by cuDNN, since the reset */

/* ---- For whoever launches: what a stream is to do -------------------------------------------------------------- */

typedef struct {
    const void *start;
    uint64_t bytes; /* 0: nothing */
    bool writes;
} fake_range;

/* `work` runs when the stream gets there, on a copy of the context; it can touch the GPU's memory. If the stream records, it
 * runs whenever the graph is launched, each time on a fresh copy. */
void fake_push(cudaStream_t stream, void (*work)(void *context), const void *context, size_t bytes,
               const fake_range *range, int n);

/* ---- Between the files ----------------------------------------------------------------------------------------- */

cublasStatus_t fake_blas_answer(void); /* what a call of cuBLAS or cuBLASLt answers, if it is well in itself */
void fake_blas_handle(int more);       /* handles taken or given back */
void fake_load(int library);           /* FAKE_CUBLAS ... has its first handle, or another */
void fake_lt_reset(void);
void fake_dnn_reset(void);
/* Held by every function here but cudaSetDevice; nests. FAKE_INSIDE: until the block ends. */
void fake_enter(void);
void fake_leave(const int *unused);
#define FAKE_INSIDE __attribute__((cleanup(fake_leave), unused)) const int fake_inside_ = (fake_enter(), 0)

void fake_violate(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *fake_take(size_t bytes, bool on_gpu); /* NULL: none */
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
bool fake_query_stream(cudaStream_t stream); /* is it empty? Lets something be done otherwise */
bool fake_query_event(cudaEvent_t event);    /* was it reached? Does nothing */
bool fake_stream_lives(cudaStream_t stream);
bool fake_records(void); /* some stream, on behalf of this thread */
bool fake_record_begin(cudaStream_t stream);
cudaGraph_t fake_record_end(cudaStream_t stream); /* NULL: it did not record */
void fake_graph_end(cudaGraph_t graph);
cudaGraphExec_t fake_graph_make(cudaGraph_t graph);
size_t fake_graph_launches(cudaGraph_t graph);
void fake_graph_launch(cudaGraphExec_t graph, cudaStream_t stream);
void fake_graph_exec_end(cudaGraphExec_t graph);
int64_t fake_graphs_live(void);
bool fake_in_flight(const void *start, uint64_t bytes);
void fake_order_reset(uint64_t seed);
int64_t fake_order_live(void);
extern int64_t fake_break; /* kernels until the GPU breaks; 0: never */
extern bool fake_broken;

#endif
