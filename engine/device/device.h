/* device.h: what a device is: one table of functions, for whoever writes a backend.
 *
 * State contracts. Work given to one queue runs in the order given; different queues are ordered by events alone.
 * Every pointer handed to a queue lies in the device's block (or, where a slot says so, in host memory), is valid until
 * the queue has been synchronised, and device buffers are aligned to RM_ALIGN. Sizes are in bytes. Failures of
 * asynchronous work surface at the next synchronize. A queue belongs to one thread.
 *
 * cpu   queues run their work at once, in the caller's thread, on its OpenMP threads; events are no-ops. Its tier is a
 *       file, and a thread beside (memory/spill.h).
 * null  computes nothing and counts everything: plans for networks of any size run in milliseconds.
 * cuda  one GPU; queues are streams. Its tier is page-locked memory of the host. Only in builds with CUDA (cuda/cuda.h).
 */
#ifndef RM_DEVICE_H
#define RM_DEVICE_H

#include <string.h>

#include "engine/status.h"
#include "memory/transfers.h"
#include "ops/cuda/compare.h"
#include "ops/op.h"
#include "ops/optimizers/optimizer.h"

typedef struct rm_device rm_device;
typedef struct rm_block rm_block; /* the one block of memory a session has on its device */
typedef struct rm_queue rm_queue;
typedef struct rm_event rm_event;
typedef struct rm_second_tier rm_second_tier; /* the second tier: where SAVE leaves a copy, and LOAD finds it */

typedef struct {
    double flops_per_s, bytes_per_s; /* what large matrix products and large copies reach */
    double call_ns;                  /* cost of one kernel call that does nothing         */
} rm_rates;

/* What matrix products round their operands to before they multiply. Numbers are stored, and added up, as fp32. */
typedef enum { RM_FP32, RM_TF32, RM_BF16, RM_PRECISIONS } rm_precision;
extern const char *const rm_precision_names[RM_PRECISIONS];

/* Matrix products so far, by what their making is chosen by: numbers of rows and columns, alignment, and so on. */
typedef struct {
    int64_t shapes;
    int64_t in_fp32;   /* ... of which operands are not rounded, although the precision is another than fp32 */
    int64_t by_cublas; /* ... that cuBLASLt has no algorithm for */
    int64_t split;     /* ... whose sums are made in parts */
    int64_t alone, whole, batched,
        blocks;      /* by shape and how far rows are apart; the last three stand for those of fewer rows */
    char latest[96]; /* how that of the latest shape is made, in the library's words */
} rm_products;

/* Launches that were recorded, to be started as one, by one queue so far. */
typedef struct {
    int64_t calls, graphs; /* that came; of them recorded */
    uint64_t bytes, limit_bytes;
    const char *ended; /* why no more are recorded; NULL: they are */
} rm_recordings;

/* Another descriptor of an op, for one node: with kernels, aux, scratch and packed weights of its own. `attr`, which takes the
 * place of the node's, holds numbers alone, no addresses: it is part of the key under which times are kept. attr_bytes 0: the node
 * keeps its own. */
typedef struct {
    const remat_op *op; /* the device's, alive as long as it is; NULL: the op is run as it is */
    uint64_t attr[16];
    size_t attr_bytes;
} rm_variant;

typedef struct rm_device_api {
    const char *name, *doc;
    remat_device_kind kernels; /* which column of an op's kernel table it runs */
    bool reachable;            /* the host reads and writes its block directly: ranks of the host need that */

    remat_status (*open)(int threads, rm_device **out);
    void (*close)(rm_device *);                 /* NULL allowed */
    uint64_t (*free_bytes)(rm_device *);        /* that a block could have; 0: unknown */
    uint64_t (*overhead_bytes)(rm_device *);    /* taken when it was opened; NULL: nothing worth counting */
    int (*number)(const rm_device *);           /* of the GPU, as CUDA counts here; NULL: it is none */
    bool (*runs)(const remat_op *, remat_pass); /* NULL: all of them */
    uint64_t (*identity)(rm_device *);          /* another for other hardware, or libraries; NULL: the host's */
    remat_status (*set_precision)(rm_device *, rm_precision); /* before anything runs; MISSING: it lacks it */
    void (*products)(rm_device *, rm_products *out);          /* NULL: nothing is chosen */
    void (*recordings)(const rm_queue *, rm_recordings *out); /* NULL: nothing is recorded */
    remat_status (*use_cudnn)(rm_device *);                   /* after set_precision; NULL: it has none */
    /* What a node with these inputs is to be run by; it is called for tiles of tau[0] and tau[1] timesteps. Asked once a
     * node, before a chain is built. NULL: every op is run as it is. */
    remat_status (*variant)(rm_device *, const remat_op *, const remat_desc *x, const int64_t tau[2], rm_variant *out);
    const char *rounded; /* layers whose products another precision than fp32 rounds, by variants; NULL: all products */
    remat_status (*rates)(rm_device *, rm_rates *out); /* measured once, in milliseconds */

    remat_status (*block_create)(rm_device *, uint64_t bytes, rm_block **out); /* zero-filled */
    void (*block_free)(rm_block *);                                            /* NULL allowed */
    void *(*claim)(rm_block *, uint64_t offset, uint64_t bytes); /* in use from now on; returns its address */
    uint64_t (*high_water)(const rm_block *);                    /* the furthest byte ever claimed */

    remat_status (*queue_create)(rm_device *, rm_queue **out);
    void (*queue_free)(rm_queue *); /* NULL allowed; synchronises first */
    remat_status (*event_create)(rm_device *, rm_event **out);
    void (*event_free)(rm_event *); /* NULL allowed */
    void (*event_record)(rm_queue *, rm_event *);
    void (*event_wait)(rm_queue *, rm_event *);                /* later work on the queue waits for the event */
    remat_status (*timer_create)(rm_device *, rm_event **out); /* an event that knows when it was reached; NULL: none */
    uint64_t (*between_ns)(rm_event *from,
                           rm_event *to);    /* of timers that a synchronize has found reached; 0: unknown */
    remat_status (*synchronize)(rm_queue *); /* returns when all is done; reports failures */
    /* For libraries with queues of their own on the device, which can wait for *native: it is reached when all is done that
     * this queue was given so far. Does not wait itself; reports failures that are known by then. NULL: synchronize. */
    remat_status (*hand_over)(rm_queue *, rm_event *, void **native);
    void (*note)(rm_queue *, int64_t step); /* of the plan, that comes next; -1: none. For sentences */

    void (*copy_in)(rm_queue *, void *device, const void *host, uint64_t bytes);
    void (*copy_out)(rm_queue *, void *host, const void *device, uint64_t bytes);
    void (*copy)(rm_queue *, void *to, const void *from, uint64_t bytes); /* within the device */
    void (*fill)(rm_queue *, void *device, int byte, uint64_t bytes);
    void (*run)(rm_queue *, const remat_op *, remat_pass, const remat_call *);
    void (*pack)(rm_queue *, const remat_op *, const remat_call *,
                 void *packed); /* NULL: its kernels read no packed weights */
    void (*update)(rm_queue *, const rm_optimizer *, const rm_update *, int64_t n, float *parameter,
                   const float *gradient, float *const *state);
    void (*measure)(rm_queue *, const rm_optimizer *, const rm_update *, int64_t n, const float *parameter,
                    const float *gradient, float *const *state, double sum[RM_MAX_OPTIMIZER_SUMS]); /* synchronises */
    double (*sum_of_squares)(rm_queue *, const float *x, int64_t n);                                /* synchronises */
    void (*compare)(rm_queue *, const rm_comparison *); /* NULL: the host reads and compares states, where it can */

    /* The second tier; open is NULL where a device has none. Transfers are given part by part (memory/transfers.h) and
     * done one at a time, in this order, beside what the queue does next; each begins after the work the queue was given
     * before it. tier_wait: later work on the queue comes after the first `count` transfers since opening. Its IO says
     * that one failed; none is under way then, what was saved is worthless, and the tier can be used afresh. */
    uint64_t tier_host_bytes; /* memory that a tier takes on the host beside the data */
    remat_status (*tier_open)(rm_device *, const char *where, rm_second_tier **out);
    remat_status (*tier_measure)(rm_second_tier *, rm_tier *rates); /* in tenths of a second */
    remat_status (*tier_reserve)(rm_second_tier *, uint64_t bytes); /* IO, MEMORY: there is no such room */
    void (*tier_close)(rm_second_tier *);                           /* finishes what is under way */
    void (*tier_save)(rm_queue *, rm_second_tier *, const rm_part *);
    void (*tier_load)(rm_queue *, rm_second_tier *, const rm_part *);
    remat_status (*tier_wait)(rm_queue *, rm_second_tier *, uint64_t count);
    uint64_t (*tier_given)(const rm_second_tier *); /* transfers, since opening */
} rm_device_api;

extern const rm_device_api rm_device_cpu, rm_device_null, rm_device_cuda; /* the last in builds with CUDA */

/* precision.c. `name` NULL: fp32. INVALID: there is no such precision; MISSING: not on this device. */
remat_status rm_device_set_precision(const rm_device_api *api, rm_device *device, const char *name, rm_precision *out);

/* variant.c. Whose kernels recurrent layers are run by: "auto", "remat" or "cudnn"; NULL: "auto". INVALID, MISSING: as above,
 * or what cuDNN lacks here. *cudnn: it is cuDNN's. */
remat_status rm_device_choose_cells(const rm_device_api *api, rm_device *device, const char *name, bool *cudnn);

/* devices.c. Which GPU a session on this device would take, from 0; -1: none, it is no GPU. Opens it, as does
 * remat_device_check. */
remat_status rm_device_number(const char *name, int *number);
const rm_device_api *rm_device_find(const char *name); /* NULL: this build has no such device */

/* Behind the sentence that a build has no such device: how one is made that has it. */
static inline const char *rm_device_remedy(const char *name) {
    return name && !strcmp(name, "cuda") ? "; for cuda, install CUDA's compiler and build with -DREMAT_CUDA=ON" : "";
}

#endif
