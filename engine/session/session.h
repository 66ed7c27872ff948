/* session.h: the struct of a session, private to engine/. Only its session, report and times folders know graph, plan
 * and device together.
 *
 *   configure.c, create.c   config and creation
 *   step.c, update.c        forward and backward passes; norm, optimizer and exchange between ranks
 *   loss_mean.c             the mean that the loss is, over micro steps, ranks and shards
 *   rank_consistency.c      settings that must agree between ranks
 *   arrays.c                named arrays, read and written */
#ifndef RM_SESSION_H
#define RM_SESSION_H

#include "engine/session/run.h"
#include "memory/strategy.h"
#include "ops/optimizers/optimizer.h"

typedef struct rm_micro rm_micro; /* parts.c */
typedef struct rm_layer_times rm_layer_times; /* layer_times.h */

/* What the planner knows of one rank of a pipeline. */
typedef struct {
    rm_problem problem, evaluation;
    uint64_t resident_bytes; /* arrays that live as long as the session */
    uint64_t network_bytes;  /* rm_session_network_bytes */
    uint64_t copied_bytes;   /* rm_parts_copied_bytes */
    uint64_t needed_bytes;   /* in all, at the last rm_session_neediest_rank */
} rm_rank_needs;

typedef struct rm_session_array {
    char *name;
    remat_desc desc;
    rm_where where;      /* in the block, or in external memory */
    int64_t first, held; /* elements that this session holds: all, unless they are sharded */
    int64_t bound;       /* of integer inputs: exclusive upper limit; 0: none */
    int64_t ignored;     /* of integer inputs: allowed value outside the limit; 0: none */
    bool elsewhere;      /* another rank of the pipeline holds it */
    int holder;          /* the first rank of the pipeline that holds it */
    bool missing;        /* an input that some layer reads and that has never been written; or an output's gradient that
                            has not been written since the last forward pass */
    bool shown;          /* the program knows the address, so it can write there unnoticed */
    bool hashed;         /* a parameter that the program could change unnoticed when the last pass began, with this hash */
    uint64_t hash;
    struct rm_session_array *theirs; /* the array of `lender` whose memory this is; NULL: its own */
} rm_session_array;

/* The array of the session that owns its memory, or to which the program gave it. */
static inline rm_session_array *rm_session_owned(rm_session_array *array) {
    while (array->theirs) array = array->theirs;
    return array;
}

enum { RM_ARRAY_KINDS = REMAT_BUFFER + 1 };

/* remat_config.recompute, in the order of its names. */
typedef enum { RM_RECOMPUTE_AUTO, RM_RECOMPUTE_EXACT_ONLY, RM_RECOMPUTE_OFF } rm_recompute;

struct remat_session {
    remat_graph *graph; /* a copy, after folding and choosing variants */
    rm_chain chain;
    rm_schedule training, evaluation;
    int64_t segments_requested;
    const rm_strategy *strategy;
    const rm_device_api *api;
    rm_device *device;
    rm_precision precision;
    bool cudnn; /* recurrent layers run cuDNN's kernels */
    rm_runner runner;
    rm_trace *trace; /* NULL until a trace is requested */
    bool trace_next;
    rm_recompute recompute;
    uint64_t memory_budget; /* 0: no limit */
    int threads, n_folded;
    bool plan_only, inference, stateful, verify_recompute;
    const rm_optimizer *optimizer;
    rm_update update; /* lr, step and gradient_scale change from update to update */
    double clip_grad_norm, grad_norm;
    bool momentum_correction, adapt_vectors, decay_vectors;
    double last_lr;   /* 0: no update yet */
    double coming_lr; /* of the update for which gradients are being computed; -1: not known yet */
    remat_session *lender; /* the session whose arrays and arena this one uses (share.c); NULL: none */
    int n_sharing;         /* sessions that use this one's arrays */
    bool freed;            /* the program has freed it; it is kept for the sessions that use its memory */
    rm_block *block;       /* memory of its own; runner.block has the arena */
    /* Of the session that owns the arena (rm_session_root): counts changes of parameters; the last pass's session. */
    uint64_t parameters_version;
    const remat_session *arena_user;
    const remat_session *gradients_of;   /* of rm_session_trainer: the session whose micro steps are in its gradients */
    uint64_t packed_version;             /* parameters_version at the last pass */
    const remat_session *packed_by;      /* the session whose packed weights are in this one's block */
    bool evaluated, trained, handed_out; /* remat_evaluate, a backward pass, remat_forward has made its outputs */
    bool ran_forward;                    /* and nothing has changed since, so remat_backward can continue */
    remat_pipeline pipeline;             /* a copy; without one, size is 1 */
    struct {
        rm_problem problem, evaluation;
    } most;                     /* pipeline: with the largest bytes and times of any rank */
    rm_rank_needs *of_rank;     /* pipeline, until plans have been made: by rank */
    const rm_node_run *full;    /* pipeline: n_full of them, as in rm_chain_config */
    int n_full;
    bool tries_cut;             /* rm_session_try_cut */
    rm_layer_times *layer_times; /* its argument */
    struct {
        int n;                 /* micro steps that are in flight together; 1: each ends before the next begins */
        int ahead;             /* how many have run forward only */
        bool complete;         /* the last pass was the backward half of them all */
        uint64_t shared, each; /* bytes of the arena */
        rm_micro *item;
    } parts;                    /* parts.h */
    remat_ranks ranks;          /* a copy; without ranks, or if nothing runs, size is 1 and its functions are NULL */
    int n_mapped;               /* sections of the block passed to ranks.map */
    remat_bucket *bucket;       /* as passed to ranks, except for `ready` */
    rm_event **ready;           /* by bucket; NULL: the queue is synchronized before a bucket is passed to ranks */
    bool deterministic_world;
    int micro_steps, n_made; /* n_made: micro steps since gradients were last initialised */
    double *shard_loss;   /* losses of this update by shard; 0: another rank's. Then the values of rank_consistency.c */
    int32_t counts;       /* the table that the loss is divided by; 0: it is not divided by a count */
    bool weighs;          /* the parts of an update are weighted by their counts (loss_mean.c) */
    bool mean_of_parts;   /* the loss has a count, but its parts are not weighted by it */
    float count, divisor; /* of the last pass: the count, and the divisor of its loss */
    float share;          /* factor of the loss's gradient in the last backward pass */
    double *shard_count;  /* if `weighs`: by shard, of this update */
    double first_divisor, total_count; /* loss_mean.c */
    double correction;                 /* loss_mean.c: factor for the summed gradients if deterministic_world is set */
    double *squares;                   /* by parameter: sum of squares of this rank's part of its gradient */
    double *sums;                      /* by parameter: the sums of an optimizer that has `measure` */
    uint64_t arena_bytes;
    bool measured_times; /* of the programs; before that they are guessed from the device's rates */
    bool measured_busy;  /* other programs used the processors during the measurement */
    rm_rates rates;                      /* of predictions */
    uint64_t fixed_ns;   /* predicted time of a step outside its plan */
    float *loss;         /* one per stage, on the host */
    rm_session_array *array[RM_ARRAY_KINDS];
    int64_t n_arrays[RM_ARRAY_KINDS], array_capacity[RM_ARRAY_KINDS];
};

/* The plan that the session runs, and the problem that it solves: training, or evaluation for an inference session. */
static inline const rm_schedule *rm_session_schedule(const remat_session *session) {
    return session->inference ? &session->evaluation : &session->training;
}
static inline const rm_problem *rm_session_problem(const remat_session *session) {
    return session->inference ? &session->chain.evaluation : &session->chain.problem;
}

/* Whether the device has memory and computes. */
static inline bool rm_session_is_real(const remat_session *session) { return session->api != &rm_device_null; }

/* create.c. Chooses a pipeline's cut in a session that finds out whether all ranks fit, and cannot run. INFEASIBLE: some
 * do not; session->of_rank has what each needs. times: measures layers, unless they have been; NULL: cuts by counted work.
 * Free the session even after an error. */
remat_status rm_session_try_cut(const remat_graph *graph, int32_t loss, const remat_config *config,
                                const rm_node_run *full, int n_full, rm_layer_times *times,
                                remat_session **out);

int rm_default_threads(void); /* for remat_config.threads = 0; configure.c */
remat_status rm_session_configure(remat_session *session, const remat_config *config); /* configure.c */
/* configure.c. Before anything computes. INVALID: the process was forked, and lacks the threads of its parent. */
remat_status rm_session_check_fork(const remat_session *session);
remat_status rm_session_list_arrays(remat_session *session);                           /* arrays.c */
void rm_session_free_arrays(remat_session *session);                                   /* arrays.c */
remat_status rm_session_draw_parameters(remat_session *session);                       /* arrays.c */
/* arrays.c. Before a pass. INVALID names the first input that was never written, external array without memory, or
 * integer out of range in memory that the program writes directly. gradients: the pass writes gradients. */
remat_status rm_session_check_arrays(const remat_session *session, bool gradients);
/* arrays.c. After a pass. If its loss is not finite, INVALID names the first non-finite element of an input. */
remat_status rm_session_explain_loss(const remat_session *session, double loss);
uint64_t rm_session_held_bytes(const rm_session_array *array);
void *rm_session_address(const remat_session *session, const rm_session_array *array);

/* arrays.c. Reads all parameters that the program can change unnoticed. True: one changed since the last call. */
bool rm_session_parameters_changed(remat_session *session);
/* The name of a parameter that the program changed unnoticed since the last pass began; NULL: none. */
const char *rm_session_changed_since(const remat_session *session);

/* step.c. Of all trained parameters; no sum over ranks is in progress. */
void rm_session_scale_gradients(const remat_session *session, double factor);

/* pipeline.c. Builds session->chain, and session->most and ->of_rank from the parts of all ranks. Exchanges the problems
 * of the first two while plans are made, and settles the plans for this rank's bytes. Sums over the pipeline's ranks. */
remat_status rm_session_set_up_pipeline(remat_session *session, const remat_config *config);
remat_status rm_session_build_chain(remat_session *session, int32_t loss, const int32_t *keep, int n_keep,
                                    const rm_chain_config *config);
void rm_session_swap_problems(remat_session *session);
remat_status rm_session_settle_part(remat_session *session);
void rm_session_free_needs(remat_session *session);
/* The rank that needs the most bytes for the session's plans, and these bytes (rm_session_budgeted_bytes). In a pipeline
 * it leaves the plans settled for that rank. */
remat_status rm_session_neediest_rank(remat_session *session, int *rank, uint64_t *bytes);
remat_status rm_session_sum_over_pipeline(const remat_session *session, double *values, int64_t count);

/* loss_mean.c. Finds the loss's count and decides whether the parts of an update are weighted by it. The graph must
 * have been cut into stages. */
remat_status rm_session_choose_mean(remat_session *session, int32_t loss, const remat_config *config);
/* Share of a micro step in the mean over all, if parts are not weighted by counts: the factor of the loss's gradient,
 * which is 1, and of external output gradients. With deterministic_world it must not depend on how many shards a rank
 * computes; step.c compensates for this once a bucket is final. */
double rm_session_loss_share(const remat_session *session);
/* count: after the tables have run, reads the pass's count. begin_counting: before the first part of an update.
 * weigh_part: before a part's backward pass; collective in the last part of an update. part_weight: weight of a part in
 * the mean of n parts whose counts sum to `total`; 1 if parts are not weighted. */
remat_status rm_session_count(remat_session *session);
void rm_session_begin_counting(remat_session *session);
remat_status rm_session_weigh_part(remat_session *session, int64_t shard);
double rm_session_part_weight(const remat_session *session, int64_t shard, double total, double n);

/* For messages: the calls that compute gradients in this session. */
static inline const char *rm_session_pass_text(const remat_session *session) {
    return session->chain.n_differentiated ? "remat_forward and remat_backward" : "remat_gradients";
}

/* update.c. take_bucket: waits for a bucket's gradients and computes their squares for the norm. measure_bucket: for
 * optimizers with `measure`; once per update. update_bucket: updates this rank's part of the parameters and starts
 * sending it to the other ranks. end_update: waits for the parameters of all buckets. */
remat_status rm_session_take_bucket(remat_session *session, int32_t bucket);
void rm_session_measure_bucket(remat_session *session, int32_t bucket);
remat_status rm_session_update_bucket(remat_session *session, int32_t bucket);
remat_status rm_session_end_update(remat_session *session, double lr);
remat_status rm_session_update(remat_session *session, double lr); /* a whole update; all gradients must be final */
void rm_session_begin_update(remat_session *session, double lr);   /* sets lr, step and so on in session->update */
remat_status rm_session_gradient_norm(remat_session *session);     /* sets session->grad_norm; after all take_bucket */
/* A pass or an update has ended, successfully. */
void rm_session_observed(const remat_session *session, uint64_t begin_ns, remat_event_kind kind);
uint64_t rm_session_sums_bytes(const remat_session *session); /* host bytes of losses by shard, norms by parameter */
bool rm_session_is_fused(const remat_session *session);       /* each bucket is updated as soon as it arrives */
/* Prepares a bucket for other ranks: all work queued so far is complete when this returns, or when bucket->ready is
 * reached. */
remat_status rm_session_hand_over(const remat_session *session, int64_t index, remat_bucket *bucket);

/* share.c. The session that owns the arena, and the one whose gradients, optimizer state and counters this one uses. */
remat_session *rm_session_root(remat_session *session);
remat_session *rm_session_trainer(remat_session *session);
void rm_session_read_counters(remat_session *session); /* into session->runner.updates and last_lr */
bool rm_session_can_continue(remat_session *session);  /* after remat_forward: no session has changed anything since */
void rm_session_find_shared(remat_session *session);   /* updates the addresses of shared arrays */

/* share.c, in the order of remat_session_create. join: INVALID if the two cannot share. shares: rm_chain_config.shared.
 * layout_ranks: ranks that lay parameters out like the other session. connect: arrays are listed. */
remat_status rm_session_join(remat_session *session, remat_session *lender);
bool rm_session_shares(const void *session, remat_kind kind, const char *name, uint64_t bytes);
remat_ranks rm_session_layout_ranks(remat_session *session);
remat_status rm_session_connect(remat_session *session);
remat_status rm_session_share_arena(remat_session *session);
remat_status rm_session_share_buckets(remat_session *session);
void rm_session_leave(remat_session *session); /* when it is freed */

static inline bool rm_session_has_gradients(remat_session *session) {
    return session->n_made == session->micro_steps && rm_session_trainer(session)->gradients_of == session;
}

/* rank_consistency.c. Once per update, ranks sum their losses by shard and, in the same sum, the values that must agree
 * between ranks. fill writes this rank's values before the sum; check compares those of all ranks after it: PEER. */
int64_t rm_session_exchange_count(const remat_session *session); /* numbers in the sum, losses included */
void rm_session_fill_exchange(remat_session *session);
remat_status rm_session_check_exchange(const remat_session *session);

/* groups.c. Sets the learning-rate factor and weight decay of every parameter; returns the default weight decay of
 * one. */
remat_status rm_session_choose_groups(remat_session *session, const char *groups);
double rm_session_weight_decay(const remat_session *session, int32_t param);

/* tier.c. open: opens the second tier of config->spill_dir, if any, and writes its speed into the training problem.
 * settle: after planning, reserves room for the plan's copies, or closes a tier that the plan does not use. */
remat_status rm_session_open_tier(remat_session *session, const remat_config *config);
remat_status rm_session_settle_tier(remat_session *session);

#endif
