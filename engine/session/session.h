/* session.h: what a session is made of; private to configure.c and create.c (life), step.c (forward and backward), update.c
 * (what follows), loss_mean.c (what the loss is a mean over), rank_consistency.c (what ranks must have alike), arrays.c (named arrays in and out), summary.c,
 * plan_report.c and describe.c (what it will do, in numbers and texts), timeline.c and pareto.c (numbers for pictures). The
 * only place that knows graph, plan and device together. */
#ifndef RM_SESSION_H
#define RM_SESSION_H

#include "engine/session/run.h"
#include "memory/strategy.h"
#include "ops/optimizers/optimizer.h"

typedef struct {
    char *name;
    remat_desc desc;
    uint64_t offset;     /* in the block */
    int64_t first, held; /* elements that this session holds: all, unless it shards them */
    int64_t bound;       /* inputs of integers: exclusive upper limit; 0: none */
    int64_t ignored;     /* ... and a value beyond it that is allowed; 0: none */
    int32_t external;    /* 1 + which of the program's pieces of memory; 0: none */
    bool missing;        /* an input that some layer reads, and that nobody has written yet; of an output's gradient,
                            since the last forward pass */
} rm_session_array;

enum { RM_ARRAY_KINDS = REMAT_BUFFER + 1 };

/* remat_config.recompute, in its words' order. */
typedef enum { RM_RECOMPUTE_AUTO, RM_RECOMPUTE_EXACT_ONLY, RM_RECOMPUTE_OFF } rm_recompute;

struct remat_session {
    remat_graph *graph; /* own copy, rewritten */
    rm_chain chain;
    rm_schedule training, evaluation;
    int64_t segments_requested;
    const rm_strategy *strategy;
    const rm_device_api *api;
    rm_device *device;
    rm_precision precision;
    bool cudnn; /* recurrent layers are run by its kernels */
    rm_runner runner;
    rm_trace *trace; /* NULL until a trace is asked for */
    bool trace_next;
    rm_recompute recompute;
    uint64_t memory_budget; /* 0: no limit */
    int threads, n_folded;
    bool plan_only, inference, stateful, verify_recompute;
    const rm_optimizer *optimizer;
    rm_update update; /* lr, step and gradient_scale change from update to update */
    double clip_grad_norm, grad_norm;
    bool momentum_correction, adapt_vectors, decay_vectors;
    double last_lr;   /* 0: there was no update yet */
    double coming_lr; /* of the update that gradients are being made for; -1: not known yet */
    bool packed_is_stale;
    bool evaluated, trained, handed_out; /* such a pass, or half of one, has been made: outputs hold something */
    bool ran_forward;                    /* and nothing has come between: remat_backward can go on */
    remat_ranks ranks; /* own copy; size 1 and no slots where there are none, and where nothing runs */
    int n_mapped;      /* sections of the block that ranks.map was called for */
    remat_bucket *bucket; /* as ranks are shown them, but for `ready` */
    rm_event **ready;  /* by bucket; NULL: ranks are given what the device is done with */
    bool deterministic_world;
    int micro_steps, n_made; /* ... of them since gradients were last begun anew */
    double
        *shard_loss; /* by shard, of this update: those of other ranks are 0; then ranks' words (rank_consistency.c) */
    int32_t counts;  /* what the loss divides by: a table; 0: by nothing that is counted */
    bool weighs, mean_of_parts; /* parts of an update weigh by what counts in them; the loss counts, and they do not */
    float count, divisor,
        share; /* of the last pass; what its loss was divided by; of the loss's gradient, what backward takes */
    double *shard_count; /* weighs: by shard, of this update */
    double first_divisor, total_count,
        correction;  /* loss_mean.c. correction: deterministic_world, of gradients when all are added up */
    double *squares; /* by parameter: sum of squares of this rank's part of its gradient */
    double *sums;    /* by parameter: what an optimizer with a `measure` adds up */
    uint64_t arena_bytes;
    bool measured_times; /* of the programs; guessed from the device's rates before */
    bool measured_busy;  /* ... while other programs took the processors */
    uint64_t fixed_ns;   /* predicted: what a step does beside its plan */
    float *loss;         /* one a stage, on the host */
    rm_session_array *array[RM_ARRAY_KINDS];
    int64_t n_arrays[RM_ARRAY_KINDS], array_capacity[RM_ARRAY_KINDS];
};

/* The plan that it runs, and the problem which that solves: of training, or of a session that only evaluates. */
static inline const rm_schedule *rm_session_schedule(const remat_session *session) {
    return session->inference ? &session->evaluation : &session->training;
}
static inline const rm_problem *rm_session_problem(const remat_session *session) {
    return session->inference ? &session->chain.evaluation : &session->chain.problem;
}

/* Does its device have memory, and compute? */
static inline bool rm_session_is_real(const remat_session *session) { return session->api != &rm_device_null; }

int rm_default_threads(void); /* where the user says 0; configure.c */
remat_status rm_session_configure(remat_session *session, const remat_config *config); /* configure.c */
remat_status rm_session_list_arrays(remat_session *session);                           /* arrays.c */
void rm_session_free_arrays(remat_session *session);                                   /* arrays.c */
remat_status rm_session_draw_parameters(remat_session *session);                       /* arrays.c */
remat_status
rm_session_check_inputs(const remat_session *session); /* arrays.c; INVALID names the first that is missing */

/* loss_mean.c. Whether the loss counts, and parts of an update weigh by it; when the graph is cut. */
remat_status rm_session_choose_mean(remat_session *session, int32_t loss, const remat_config *config);
/* The share of a batch in the mean over all, where parts do not weigh by what counts: what backward takes of the loss's gradient,
 * 1, and of those that come from outside. Pairwise it must not depend on how many of the shards a rank computes; that is made up
 * for when a bucket is final (step.c). */
double rm_session_loss_share(const remat_session *session);
/* When tables have been run: reads the count. Where parts weigh by it: before the first part of an update; before a part's backward
 * pass, where ranks meet in the last; the weight of a part in the mean of n, which count `total`, 1 where they do not weigh. */
remat_status rm_session_count(remat_session *session);
void rm_session_begin_counting(remat_session *session);
remat_status rm_session_weigh_part(remat_session *session, int64_t shard);
double rm_session_part_weight(const remat_session *session, int64_t shard, double total, double n);

/* For sentences: the call, or calls, that make gradients in this session. */
static inline const char *rm_session_pass_text(const remat_session *session) {
    return session->chain.n_differentiated ? "remat_forward and remat_backward" : "remat_gradients";
}

/* update.c. Waits for a bucket, and takes its gradients' squares for the norm. Measures its arrays, for an optimizer that does:
 * once an update. Updates its parameters, of this rank's part, and gives them to the others. Waits until those of all buckets
 * are there. */
remat_status rm_session_take_bucket(remat_session *session, int32_t bucket);
void rm_session_measure_bucket(remat_session *session, int32_t bucket);
remat_status rm_session_update_bucket(remat_session *session, int32_t bucket);
remat_status rm_session_end_update(remat_session *session, double lr);
remat_status rm_session_update(remat_session *session, double lr); /* all of an update, once all gradients are there */
void rm_session_begin_update(remat_session *session, double lr); /* lr, step and so on into session->update */
remat_status rm_session_gradient_norm(remat_session *session);   /* once all are taken: session->grad_norm */
uint64_t rm_session_sums_bytes(const remat_session *session); /* on the host: of losses by shard, norms by parameter */
bool rm_session_is_fused(const remat_session *session);       /* buckets are updated as they arrive */
/* The bucket as other ranks may have it: the device is done with what it was given so far, or will be when bucket->ready is
 * reached. */
remat_status rm_session_hand_over(const remat_session *session, int64_t index, remat_bucket *bucket);

static inline bool rm_session_has_gradients(const remat_session *session) {
    return session->n_made == session->micro_steps;
}

/* rank_consistency.c. How many numbers are added up over ranks once an update, beside the losses: what each rank says that all
 * must have alike. This rank's words, before its update; and what is made of all of them, when they have been added up: PEER. */
int64_t rm_session_exchange_count(const remat_session *session); /* losses by shard included */
void rm_session_fill_exchange(remat_session *session);
remat_status rm_session_check_exchange(const remat_session *session);

/* groups.c. Weight decays and rates of parameters; and the weight decay of one that no group gives one. */
remat_status rm_session_choose_groups(remat_session *session, const char *groups);
double rm_session_weight_decay(const remat_session *session, int32_t param);

/* tier.c. Opens the second tier of config->spill_dir, if any, and puts its speed into the training problem. When the plan
 * is known: makes room for its copies, or closes a tier that it does not use. */
remat_status rm_session_open_tier(remat_session *session, const remat_config *config);
remat_status rm_session_settle_tier(remat_session *session);

#endif
