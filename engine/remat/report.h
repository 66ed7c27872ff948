/* report.h: the plan, its bytes and times, timelines, and what this build is made of. Part of remat.h. */
#ifndef REMAT_REPORT_H
#define REMAT_REPORT_H

#include "graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The plan in numbers ------------------------------------------------------------------------ */

/* What the plan promises. Bytes are exact; times are predictions, in nanoseconds. */
typedef struct {
    const char *strategy, *device, *precision;
    const char *rnn_kernels; /* "remat" or "cudnn" */
    int threads;
    int64_t timesteps, batch, tile, n_tiles, n_stages;
    int64_t segments;           /* segments in the plan */
    int64_t segments_requested; /* larger than `segments` if the network has fewer stages */
    uint64_t params_bytes, gradients_bytes, optimizer_bytes, inputs_bytes, packed_bytes, other_bytes;
    uint64_t activations_peak_bytes;  /* checkpoints, saved values, gradients of activations and scratch */
    uint64_t activations_floor_bytes; /* the most that is alive at one time: a lower bound for any placement */
    uint64_t planned_peak_bytes;      /* the arena: everything that the kernels of the step read and write */
    uint64_t workspace_bytes;         /* outside the arena: packed matrices, spill buffers, gradients to be sent */
    uint64_t tables_bytes;            /* the plan itself and its description, on the host */
    uint64_t budgeted_bytes;          /* the three together: what memory_budget limits */
    uint64_t memory_budget;           /* as configured; 0: no limit */
    uint64_t spill_bytes;             /* size of the spill file */
    int64_t peak_step;                /* the step of the plan at which activations peak */
    uint64_t forward_ns, recompute_ns, backward_ns;
    uint64_t transfer_ns, wait_ns; /* time of transfers to and from the second tier; time that kernels wait for them */
    uint64_t step_ns;              /* forward + recompute + backward + wait */
    uint64_t fixed_ns;             /* work outside of step_ns: packing weights, tables, a second part of forward for
                                      differentiated outputs, clipping, the optimizer. A whole step takes the sum */
    bool measured_times;           /* times are predicted from measurements on this device, not from its rates */
    bool measured_busy;            /* other programs used the processors during the measurement: times are probably too
                                      long and are not stored, so the next session measures again */
    double recompute_factor;       /* forward work done / forward work needed; 1: nothing is recomputed */
    int64_t n_steps;               /* lines of the plan */
    int64_t n_buckets;             /* of gradients: remat_bucket */
    uint64_t reserved[26];         /* zeros */
} remat_plan_summary;
remat_status remat_session_plan(const remat_session *session, remat_plan_summary *out);

/* Matrix products that ran on a GPU, counted by shape and alignment. The first step runs them all. A product stays
 * in fp32 despite config.precision if cuBLAS has no reproducible algorithm for it, or a faster one in fp32. */
typedef struct {
    int64_t shapes, in_fp32; /* different shapes; those that stay in fp32 despite the precision */
    int64_t by_cublas;       /* shapes computed by cuBLAS in fp32, because cuBLASLt has no reproducible algorithm */
    int64_t split;           /* shapes whose sum is split into parts, which are added in a fixed order */
    /* The same products, counted by row stride, too. `alone`: single products. The others have many rows, whose bits
     * must equal those of products of few rows; they run as one product, as a batch, or (slow) block by block. */
    int64_t alone, whole, batched, blocks;
    uint64_t reserved[8]; /* zeros */
} remat_products;
remat_status remat_session_products(const remat_session *session, remat_products *out);

/* Kernel calls recorded as CUDA graphs, which a GPU launches many at a time. After the second step all are recorded. */
typedef struct {
    int64_t calls, graphs;       /* different calls made; how many of them are recorded */
    uint64_t bytes, limit_bytes; /* GPU memory of the graphs, as measured; their share of the budget. 0: no GPU */
    const char *ended;           /* why recording has stopped; NULL: it has not */
    uint64_t reserved[11];       /* zeros */
} remat_recordings;
remat_status remat_session_recordings(const remat_session *session, remat_recordings *out);

/* ---- The plan in words -------------------------------------------------------------------------- */

/* Texts to read and to compare; free them with remat_text_free. NULL: out of memory. */
char *remat_plan_describe(const remat_session *session);     /* a table: what each stage keeps, its bytes, the peak */
char *remat_plan_stages_json(const remat_session *session);  /* the same as a JSON array */
char *remat_plan_peak_json(const remat_session *session);    /* the objects alive at the peak, as a JSON object */
/* How a GPU computes each convolution, as a JSON array: layer, by (cuDNN with its algorithms, or products), bytes of work space. Empty on
 * other devices. */
char *remat_plan_convolutions_json(const remat_session *session);
char *remat_plan_steps_text(const remat_session *session);   /* the plan's program, one RUN or FREE per line */
char *remat_plan_problem_text(const remat_session *session); /* the input of the strategy */
void remat_text_free(REMAT_OPTIONAL char *text);

/* ---- Memory against time ------------------------------------------------------------------------ */

/* Predicted bytes and time of every strategy for the session's graph, device and tile. Points of a strategy are in
 * ascending order of bytes; `frontier` marks points that no other point beats in bytes and time. Free the array with
 * remat_text_free((char *)points). */
typedef struct {
    const char *strategy;
    int64_t segments;
    uint64_t activations_peak_bytes, budgeted_bytes, spill_bytes;
    uint64_t step_ns; /* predicted */
    double recompute_factor;
    bool frontier;
    uint64_t reserved[8]; /* zeros */
} remat_pareto_point;
remat_status remat_plan_pareto(const remat_session *session, remat_pareto_point **points, int64_t *count);

/* Bytes alive at each step of the plan, by kind: as planned, or as measured in a traced step. Free the arrays with
 * remat_text_free((char *)points). */
typedef enum {
    REMAT_LIVE_STATES,
    REMAT_LIVE_SAVED,
    REMAT_LIVE_GRADIENTS,
    REMAT_LIVE_SCRATCH,
    REMAT_LIVE_KINDS
} remat_live;
#define REMAT_MAX_LIVE_KINDS 8
typedef struct {
    int64_t step;                         /* line of the plan */
    uint64_t begin_ns;                    /* time since the plan's first step: predicted, or measured */
    uint64_t bytes[REMAT_MAX_LIVE_KINDS]; /* by remat_live */
    uint64_t resident_bytes;              /* resident set of the process, if measured; else 0 */
    uint64_t reserved[5];                 /* zeros */
} remat_live_point;
remat_status remat_plan_timeline(const remat_session *session, remat_live_point **points, int64_t *count);
/* Traces the next remat_gradients, or remat_forward and remat_backward; this costs some microseconds per step of the
 * plan. remat_traced_timeline is INVALID until that pass has ended. */
remat_status remat_trace_next(remat_session *session);
remat_status remat_traced_timeline(const remat_session *session, remat_live_point **points, int64_t *count);

/* ---- Scores ------------------------------------------------------------------------------------- */

/* The number of rows whose target is among the k largest logits of the row: logits (rows,classes), as remat_read returns
 * an output, and targets (rows). Divided by rows it is the top-k accuracy (PyTorch's topk(k)). Of equal logits the first
 * ranks first. NaN logits, and targets that are not a class, such as -1, are never correct. */
int64_t remat_correct(const float *logits, const int32_t *targets, int64_t rows, int64_t classes, int64_t k);

/* ---- This build --------------------------------------------------------------------------------- */

typedef struct {
    const char *version, *compiler, *instruction_set, *gemm_library, *host_allocator;
    int threads;                                        /* a session's default number of threads */
    const char *devices;                                /* comma separated */
    uint64_t host_allocated_bytes, host_resident_bytes; /* the allocator's own statistics; 0: unknown */
    uint64_t reserved[7];                               /* zeros */
} remat_build_info;
remat_status remat_build(remat_build_info *out);

/* The builders of graph.h and layers.h and their arguments, for generators of bindings. All strings live as long as the
 * library. */
typedef enum {
    REMAT_ARGUMENT_VALUE,
    REMAT_ARGUMENT_VALUES, /* const remat_value * */
    REMAT_ARGUMENT_INT,
    REMAT_ARGUMENT_INT64,
    REMAT_ARGUMENT_INT64S, /* const int64_t * */
    REMAT_ARGUMENT_DOUBLE,
    REMAT_ARGUMENT_BOOL,
    REMAT_ARGUMENT_TEXT, /* const char * */
    REMAT_ARGUMENT_INIT, /* remat_init, by value */
    REMAT_ARGUMENT_DTYPE,
    REMAT_ARGUMENT_AXIS,
    REMAT_ARGUMENT_UPSAMPLE,
    REMAT_ARGUMENT_CELL /* const remat_cell * */
} remat_argument_kind;
typedef struct {
    const char *name;
    remat_argument_kind kind;
    bool optional;         /* REMAT_OPTIONAL: NULL, or REMAT_NONE for a value, is allowed */
    int length;            /* number of entries of VALUES and INT64S; 0: see length_is */
    const char *length_is; /* the argument, or the member of the CELL, that has the number of entries; NULL: fixed */
    uint64_t reserved[4];  /* zeros */
} remat_argument;
typedef struct {
    const char *name; /* "remat_linear" */
    const remat_argument *arguments; /* after the graph, in order */
    int n_arguments;
    uint64_t reserved[4]; /* zeros */
} remat_builder;
int64_t remat_builder_count(void);
remat_status remat_builder_info(int64_t index, remat_builder *out); /* 0 <= index < count */

/* Opens a device and closes it. OK, or the status with which a session on it would be refused: MISSING (not in this
 * build, no driver, no such hardware), MEMORY, DEVICE. */
remat_status remat_device_check(const char *device);

#ifdef __cplusplus
}
#endif
#endif
