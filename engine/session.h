/* session.h: what a session is made of; private to session.c (life and steps), arrays.c (named arrays in and out),
 * describe.c (texts), timeline.c and pareto.c (numbers for pictures). The only place that knows graph, plan and device
 * together. */
#ifndef RM_SESSION_H
#define RM_SESSION_H

#include "engine/run.h"
#include "memory/strategy.h"
#include "ops/optimizer.h"

typedef struct {
    char *name;
    rm_desc desc;
    uint64_t offset; /* in the block */
    int64_t bound;   /* inputs of integers: exclusive upper limit; 0: none */
} rm_array;

enum { RM_ARRAY_KINDS = REMAT_CARRIED + 1 };

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
    bool packed_is_stale, has_gradients;
    uint64_t arena_bytes;
    bool measured_times; /* of the programs; guessed from the device's rates before */
    uint64_t fixed_ns;   /* predicted: what a step does beside its plan */
    float *loss; /* one a stage, on the host */
    rm_array *array[RM_ARRAY_KINDS];
    int64_t n_arrays[RM_ARRAY_KINDS];
};

/* Does its device have memory, and compute? */
static inline bool rm_session_is_real(const remat_session *session) { return session->api != &rm_device_null; }

remat_status rm_session_list_arrays(remat_session *session);       /* arrays.c */
void rm_session_free_arrays(remat_session *session);               /* arrays.c */
remat_status rm_session_draw_parameters(remat_session *session);   /* arrays.c */

/* store.c. Opens the second tier of config->spill_dir, if any, and puts its speed into the training problem. When the plan
 * is known: makes room for its copies, or closes a store that it does not use. And what a store takes on the host. */
remat_status rm_session_open_store(remat_session *session, const remat_config *config);
remat_status rm_session_settle_store(remat_session *session);
uint64_t rm_session_store_bytes(const remat_session *session);

#endif
