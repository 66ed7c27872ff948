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
    int64_t segments;           /* that run */
    int64_t segments_requested; /* more than `segments` if there are fewer stages */
    uint64_t params_bytes, gradients_bytes, optimizer_bytes, inputs_bytes, packed_bytes, other_bytes;
    uint64_t activations_peak_bytes;  /* checkpoints, saved values, gradients of activations and scratch */
    uint64_t activations_floor_bytes; /* the most that is alive at one time: a lower bound for any placement */
    uint64_t planned_peak_bytes;      /* the arena: everything that the kernels of the step touch */
    uint64_t workspace_bytes;         /* outside the arena: packed matrices, spill buffers, gradients on their way */
    uint64_t tables_bytes;            /* the plan itself and its description, on the host */
    uint64_t budgeted_bytes;          /* the three together: what memory_budget limits */
    uint64_t memory_budget;           /* as configured; 0: no limit */
    uint64_t spill_bytes;             /* size of the spill file */
    int64_t peak_step;                /* the step of the plan at which activations peak */
    uint64_t forward_ns, recompute_ns, backward_ns;
    uint64_t transfer_ns, wait_ns; /* the second tier is busy; computing waits for it */
    uint64_t step_ns;              /* forward + recompute + backward + wait */
    uint64_t fixed_ns;             /* beside step_ns: packing weights, tables, the forward pass that only differentiated
                                      outputs need, clipping, the optimizer. A whole step takes the sum */
    bool measured_times;           /* predicted from measurements on this device, not from its rates */
    bool measured_busy;            /* measured while other programs used the processors: probably too long, and not
                                      stored, so the next session measures again */
    double recompute_factor;       /* forward work done / forward work needed; 1: nothing is recomputed */
    int64_t n_steps;               /* lines of the plan */
    int64_t n_buckets;             /* of gradients: remat_bucket */
    uint64_t reserved[26];         /* zeros */
} remat_plan_summary;
remat_status remat_session_plan(const remat_session *session, remat_plan_summary *out);

/* Matrix products that ran on a GPU, counted by shape and alignment: all of them after the first step. A product stays
 * in fp32 in spite of config.precision if cuBLAS has no reproducible algorithm for it, or a faster one in fp32. */
typedef struct {
    int64_t shapes, in_fp32; /* in_fp32: in spite of the precision; 0 if that is fp32 */
    int64_t by_cublas;       /* of the shapes: by cuBLAS in fp32, as cuBLASLt has no reproducible algorithm */
    int64_t split;           /* of the shapes: the sum is split and added in a fixed order */
    /* The same products, also by row stride: single ones; and products of many rows that must have the bits of few, run
     * as one product, as a batch, or (slow) block by block. */
    int64_t alone, whole, batched, blocks;
    uint64_t reserved[8]; /* zeros */
} remat_products;
remat_status remat_session_products(const remat_session *session, remat_products *out);

/* Kernels that a GPU starts many at a time (CUDA graphs). All are recorded after the second step. */
typedef struct {
    int64_t calls, graphs;       /* different calls made, and how many of them are recorded */
    uint64_t bytes, limit_bytes; /* GPU memory that graphs take, as measured, and that is set aside; 0: no GPU */
    const char *ended;           /* the reason why no more are recorded; NULL: recording goes on */
    uint64_t reserved[11];       /* zeros */
} remat_recordings;
remat_status remat_session_recordings(const remat_session *session, remat_recordings *out);

/* ---- The plan in words -------------------------------------------------------------------------- */

/* Texts to read and to compare; free them with remat_text_free. NULL: out of memory. */
char *remat_plan_describe(const remat_session *session);     /* a table: per stage what is kept, bytes, the peak */
char *remat_plan_stages_json(const remat_session *session);  /* the same as a JSON array */
char *remat_plan_peak_json(const remat_session *session);    /* what is alive at the peak, as a JSON object */
char *remat_plan_steps_text(const remat_session *session);   /* the plan's program, one RUN or FREE per line */
char *remat_plan_problem_text(const remat_session *session); /* the input of the strategy */
void remat_text_free(REMAT_OPTIONAL char *text);

/* ---- Memory against time ------------------------------------------------------------------------ */

/* What each strategy would take for the session's graph, device and tile. Points of a strategy are in ascending order
 * of bytes; `frontier` marks points that no other beats in both. Free the array with remat_text_free((char *)points).
 */
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

/* Bytes alive at each step of the plan, by kind: planned, and measured once a step has been traced. Free the arrays
 * with remat_text_free((char *)points). */
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
    uint64_t begin_ns;                    /* since the plan's first step: predicted, or measured */
    uint64_t bytes[REMAT_MAX_LIVE_KINDS]; /* by remat_live */
    uint64_t resident_bytes;              /* of the process, if measured; else 0 */
    uint64_t reserved[5];                 /* zeros */
} remat_live_point;
remat_status remat_plan_timeline(const remat_session *session, remat_live_point **points, int64_t *count);
/* Traces the next remat_gradients, or remat_forward and remat_backward; this costs some microseconds per step of the
 * plan. remat_traced_timeline is INVALID until that pass has ended. */
remat_status remat_trace_next(remat_session *session);
remat_status remat_traced_timeline(const remat_session *session, remat_live_point **points, int64_t *count);

/* ---- This build --------------------------------------------------------------------------------- */

typedef struct {
    const char *version, *compiler, *instruction_set, *gemm_library, *host_allocator;
    int threads;                                        /* of a session by default */
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
    int length;            /* of VALUES and INT64S: entries; 0: `length_is` says */
    const char *length_is; /* the argument, or else the member of the CELL, with the number of entries; NULL: fixed */
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

/* Opens a device and closes it. OK, or why a session on it would be refused: MISSING (not in this build, no driver, no
 * such hardware), MEMORY, DEVICE. */
remat_status remat_device_check(const char *device);

#ifdef __cplusplus
}
#endif
#endif
