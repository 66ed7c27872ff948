/* device.h: the table of functions that a device backend implements.
 *
 * Contracts. Work on one queue runs in the order given; only events order different queues. A pointer given to a queue points into the
 * device's block (or into host memory where a slot says so) and stays valid until the queue is synchronised. Device buffers are aligned
 * to RM_ALIGN. Sizes are in bytes. Asynchronous failures are reported by the next synchronize. A queue belongs to one thread.
 *
 * cpu   queues run work immediately on the caller's OpenMP threads; events are no-ops. The second tier is a file with a background
 *       thread (memory/spill.h).
 * null  computes nothing and counts everything: plans for networks of any size run in milliseconds.
 * cuda  one GPU; queues are streams. The second tier is page-locked host memory. Only in builds with CUDA (cuda/cuda.h).
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
typedef struct rm_second_tier rm_second_tier; /* the second tier, which SAVE writes and LOAD reads */

typedef struct {
    double flops_per_s, bytes_per_s; /* of large matrix products and large copies */
    double call_ns;                  /* time of an empty kernel call                      */
} rm_rates;

/* The precision that operands of matrix products are rounded to. Numbers are stored and accumulated in fp32. */
typedef enum { RM_FP32, RM_TF32, RM_BF16, RM_PRECISIONS } rm_precision;
extern const char *const rm_precision_names[RM_PRECISIONS];

/* Counts of matrix products so far, by the shape, strides and alignment that decide how a product is computed. */
typedef struct {
    int64_t shapes;
    int64_t in_fp32;   /* computed in fp32 although the precision is not */
    int64_t by_cublas; /* cuBLASLt has no algorithm for them */
    int64_t split;     /* summed in parts */
    int64_t alone, whole, batched,
        blocks;      /* by shape and row stride; the last three also serve products of fewer rows */
    char latest[96]; /* the latest shape's algorithm, in the library's words */
} rm_products;

/* Graphs that one queue has recorded so far to launch many kernels at once. */
typedef struct {
    int64_t calls, graphs; /* all, and recorded ones */
    uint64_t bytes, limit_bytes;
    const char *ended; /* why recording ended; NULL: it continues */
} rm_recordings;

/* A device's own descriptor of an op for one node, with its own kernels, aux, scratch and packed weights. `attr` replaces the node's
 * attributes unless attr_bytes is 0. It contains numbers and no addresses, because it is part of the key of measured times. */
typedef struct {
    const remat_op *op; /* valid as long as the device; NULL: run the op as it is */
    uint64_t attr[16];
    size_t attr_bytes;
} rm_variant;

/* How a device computes a node: words for people that continue "computed by", and the memory of one call besides its arrays. */
typedef struct {
    char by[96];
    uint64_t work_bytes;
} rm_method;

typedef struct rm_device_api {
    const char *name, *doc;
    remat_device_kind kernels; /* the column of an op's kernel table */
    bool reachable;            /* the host can read and write the block directly; ranks of one host need it */

    remat_status (*open)(int threads, rm_device **out);
    void (*close)(rm_device *);                 /* NULL allowed */
    uint64_t (*free_bytes)(rm_device *);        /* largest possible block; 0: unknown */
    uint64_t (*overhead_bytes)(rm_device *);    /* taken by opening it; NULL: negligible */
    int (*number)(const rm_device *);           /* CUDA's number of the GPU; NULL: not a GPU */
    bool (*runs)(const remat_op *, remat_pass); /* NULL: all of them */
    uint64_t (*identity)(rm_device *);          /* differs by hardware and libraries; NULL: the host's */
    remat_status (*set_precision)(rm_device *, rm_precision); /* before any work; MISSING: unsupported */
    void (*products)(rm_device *, rm_products *out);          /* NULL: none */
    void (*recordings)(const rm_queue *, rm_recordings *out); /* NULL: no recording */
    remat_status (*use_cudnn)(rm_device *);                   /* after set_precision; NULL: no cuDNN */
    /* Chooses the descriptor for a node with these attributes and inputs, and with tiles of tau[0] and tau[1] timesteps (0: not a
     * sequence). Called once for each node, before the chain is built. NULL: ops run as they are. */
    remat_status (*variant)(rm_device *, const remat_op *, const void *attr, const remat_desc *x, const int64_t tau[2], rm_variant *out);
    /* How a node with this descriptor and a tile's inputs is computed, for the plan's text. Returns false if the op has only one
     * way. NULL: all ops have. */
    bool (*method)(rm_device *, const remat_op *, const void *attr, const remat_desc *x, rm_method *out);
    const char *rounded; /* layers whose variants round products to a precision other than fp32; NULL: all products are rounded */
    remat_status (*rates)(rm_device *, rm_rates *out); /* measured once, in milliseconds */

    remat_status (*block_create)(rm_device *, uint64_t bytes, rm_block **out); /* zero-filled */
    void (*block_free)(rm_block *);                                            /* NULL allowed */
    void *(*claim)(rm_block *, uint64_t offset, uint64_t bytes); /* marks as used; returns the address */
    uint64_t (*high_water)(const rm_block *);                    /* the furthest byte ever claimed */

    remat_status (*queue_create)(rm_device *, rm_queue **out);
    void (*queue_free)(rm_queue *); /* NULL allowed; synchronises first */
    remat_status (*event_create)(rm_device *, rm_event **out);
    void (*event_free)(rm_event *); /* NULL allowed */
    void (*event_record)(rm_queue *, rm_event *);
    void (*event_wait)(rm_queue *, rm_event *);                /* later work on the queue waits for it */
    remat_status (*timer_create)(rm_device *, rm_event **out); /* an event that records its time; NULL: no timers */
    uint64_t (*between_ns)(rm_event *from,
                           rm_event *to);    /* of timers reached before a synchronize; 0: unknown */
    remat_status (*synchronize)(rm_queue *); /* waits for all work; reports failures */
    /* For libraries with their own queues on the device: *native is an event that is reached when all work given to this queue so far
     * is done. It does not wait, and reports failures known by then. NULL: use synchronize. */
    remat_status (*hand_over)(rm_queue *, rm_event *, void **native);
    /* For libraries that put messages to other processes on this queue: returns its native stream. From then on the host calls `poll`
     * again and again while it waits for the queue; if poll fails, so does the wait, once the queue is empty. NULL: no such stream. */
    void *(*stream)(rm_queue *, remat_status (*poll)(void *context), void *context);
    void (*note)(rm_queue *, int64_t step); /* the plan's next step, for error messages; -1: none */

    void (*copy_in)(rm_queue *, void *device, const void *host, uint64_t bytes);
    void (*copy_out)(rm_queue *, void *host, const void *device, uint64_t bytes);
    void (*copy)(rm_queue *, void *to, const void *from, uint64_t bytes); /* within the device */
    void (*fill)(rm_queue *, void *device, int byte, uint64_t bytes);
    void (*run)(rm_queue *, const remat_op *, remat_pass, const remat_call *);
    void (*pack)(rm_queue *, const remat_op *, const remat_call *,
                 void *packed); /* NULL: kernels do not read packed weights */
    void (*update)(rm_queue *, const rm_optimizer *, const rm_update *, int64_t n, float *parameter,
                   const float *gradient, float *const *state);
    void (*measure)(rm_queue *, const rm_optimizer *, const rm_update *, int64_t n, const float *parameter,
                    const float *gradient, float *const *state, double sum[RM_MAX_OPTIMIZER_SUMS]); /* synchronises */
    double (*sum_of_squares)(rm_queue *, const float *x, int64_t n);                                /* synchronises */
    void (*compare)(rm_queue *, const rm_comparison *); /* NULL: the host compares states */

    /* The second tier; tier_open is NULL if the device has none. Transfers are given part by part (memory/transfers.h). They run one at
     * a time, in order, concurrently with later work of the queue, and each starts after the work given to the queue before it.
     * tier_wait makes later work on the queue wait for the first `count` transfers since opening. If it returns IO, a transfer failed:
     * none is in progress, saved data are invalid, and the tier can be used again. */
    uint64_t tier_host_bytes; /* host memory of a tier in addition to its data */
    remat_status (*tier_open)(rm_device *, const char *where, rm_second_tier **out);
    remat_status (*tier_measure)(rm_second_tier *, rm_tier *rates); /* in tenths of a second */
    remat_status (*tier_reserve)(rm_second_tier *, uint64_t bytes); /* IO, MEMORY: not enough space */
    void (*tier_close)(rm_second_tier *);                           /* waits for transfers in progress */
    void (*tier_save)(rm_queue *, rm_second_tier *, const rm_part *);
    void (*tier_load)(rm_queue *, rm_second_tier *, const rm_part *);
    remat_status (*tier_wait)(rm_queue *, rm_second_tier *, uint64_t count);
    uint64_t (*tier_given)(const rm_second_tier *); /* number of transfers since opening */
    /* Calls `moved` after every transfer from now on; before the first one. NULL: the device cannot. */
    void (*tier_watch)(rm_second_tier *, rm_moved *, void *context);
} rm_device_api;

extern const rm_device_api rm_device_cpu, rm_device_null, rm_device_cuda; /* the last in builds with CUDA */

/* settings.c. `name` NULL: fp32. INVALID: unknown precision; MISSING: not supported by this device. */
remat_status rm_device_set_precision(const rm_device_api *api, rm_device *device, const char *name, rm_precision *out);

/* Chooses the kernels of recurrent layers: "auto", "remat" or "cudnn"; NULL: "auto". *cudnn: cuDNN was chosen. INVALID: unknown
 * name; MISSING: cuDNN is missing or lacks something. */
remat_status rm_device_choose_cells(const rm_device_api *api, rm_device *device, const char *name, bool *cudnn);

/* devices.c. The number of the GPU that a session on this device would use, from 0; -1: not a GPU. Opens the device, as
 * remat_device_check does. */
remat_status rm_device_number(const char *name, int *number);
const rm_device_api *rm_device_find(const char *name); /* NULL: not in this build */

/* The end of the message that a build has no such device: how to build with it. */
static inline const char *rm_device_remedy(const char *name) {
    return name && !strcmp(name, "cuda") ? "; for cuda, install CUDA's compiler and build with -DREMAT_CUDA=ON" : "";
}

#endif
