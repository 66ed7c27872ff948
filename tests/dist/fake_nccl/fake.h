/* fake.h: a libcudart and a libnccl that compute on the CPU, to test dist/nccl/group_nccl.c on machines without a GPU.
 * They have the names, types and constants of the real ones, but only the functions that Remat calls. A call that
 * breaks NVIDIA's rules (a communicator used while it is InProgress or after an error, host memory where GPU memory is
 * needed, a wait for a GPU that will never finish) ends the process with a line on stderr.
 *
 *   fake_cuda.c  devices, memory (malloc's, so that sanitizers watch it), streams: a thread and a queue each
 *   fake_nccl.c  communicators: their life cycle and their faults
 *   fake_ring.c  the sums, between processes, over a shared file
 *
 * The variable FAKE_NCCL requests faults, as a list like "in_progress=3,remote_at=2" that is read at each call:
 *
 *   gpus=N            number of GPUs (8)             slow_init=MS      the start takes this much longer
 *   in_progress=N     every call is InProgress for   init_hangs        the start never ends
 *                     N polls                        init_fails        the start fails with ncclSystemError and a text
 *   remote_at=K       collective K (from 1) fails with ncclRemoteError, later; the GPU keeps waiting
 *   system_at=K       with ncclSystemError, at once  cuda_at=K         with an error of the stream
 *   hang_at=K         never ends                     no_memory         cudaMalloc fails
 *   abort_hangs   destroy_hangs   finalize_hangs     slow_mean=MS     an op of its own takes this much longer to make
 *   pair_remote_at=K   pair_hang_at=K   split_hangs     the same for communicators from ncclCommSplit
 */
#ifndef FAKE_H
#define FAKE_H

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>

/* The number after NAME= in FAKE_NCCL; 1 if it has none; `otherwise` if NAME is not in the list. */
long fake_fault(const char *name, long otherwise);

/* Ends the process: the caller has broken a rule. */
void fake_violation(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Runs work(context) on the stream after everything queued there. It returns 0, the error that the stream then has, or
 * cudaErrorNotReady: it waits for another process, and is called again. It reads `in` and writes `out`. */
typedef struct {
    const void *in;
    void *out;
    size_t in_bytes, out_bytes;
} fake_touched;
void fake_push(cudaStream_t stream, cudaError_t (*work)(void *context), void *context, fake_touched touched);
/* Whoever waits for work of streams calls it again and again. False: the GPU has failed, and no work runs any more. */
bool fake_streams_go_on(void);
int fake_stream_device(cudaStream_t stream);
int fake_current_device(void);
void fake_need_device_memory(const void *start, size_t bytes, const char *who);

/* An event that a stream waits for until the test marks it as reached. For tests, by dlsym; exists until the process
 * ends. */
cudaEvent_t fake_event(void);
void fake_event_reach(cudaEvent_t event);

/* The number of objects that exist: memory and streams; in libnccl, communicators. For tests, by dlsym. */
int fake_cuda_live(void);
int fake_nccl_live(void);

/* ---- fake_ring.c: ranks that meet in a shared file --------------------------------------------------------------- */

enum { FAKE_RANKS = 8, FAKE_SLOT = 1 << 18 };

typedef struct fake_ring fake_ring;

typedef enum { FAKE_DONE, FAKE_STOPPED, FAKE_PEER_GONE, FAKE_SAME_GPU, FAKE_NOT_YET } fake_end;

typedef enum { FAKE_ALL_REDUCE, FAKE_BROADCAST, FAKE_ALL_GATHER, FAKE_REDUCE_SCATTER, FAKE_SEND, FAKE_RECEIVE } fake_kind;

typedef struct {
    fake_kind kind;
    ncclDataType_t type;
    bool maximum, scaled; /* scaled: by the first bytes of scale, in the type of the data */
    _Alignas(8) unsigned char scale[8];
    int root; /* of messages: the other rank */
    size_t count;
    const void *in;
    void *out;
    size_t at;      /* messages: bytes exchanged so far */
    bool offered;   /* a part of this message to send is in the box */
} fake_collective;

/* `stop` becomes true when the caller no longer wants to wait. */
fake_ring *fake_ring_open(const char *path, int rank, int size, const _Atomic bool *stop);
fake_end fake_ring_meet(fake_ring *ring, int device, int same[2]); /* same: ranks with the same GPU */
fake_end fake_ring_tell(fake_ring *ring, int mine, int *all);
/* Collectives wait in there; messages return NOT_YET while they would have to. */
fake_end fake_ring_run(fake_ring *ring, fake_collective *what);
void fake_ring_close(fake_ring *ring); /* the other ranks then see this rank as gone */
size_t fake_type_bytes(ncclDataType_t type);

#endif
