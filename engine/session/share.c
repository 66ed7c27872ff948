/* share.c: sessions that share: one uses parameters, buffers and the arena of another, and, if both train, gradients,
 * optimizer state and counters (remat_config.share). To the executor shared arrays are external ones, whose memory is
 * the other session's. Packed weights of all of them lie in the root's block, one session's at a time. */
#include "engine/session/budget.h"
#include "engine/session/planning.h"

#include <string.h>

/* ---- Who owns what --------------------------------------------------------------------------------------------- */

remat_session *rm_session_root(remat_session *s) {
    while (s->lender) s = s->lender;
    return s;
}

remat_session *rm_session_trainer(remat_session *s) {
    while (s->lender && !s->lender->inference) s = s->lender;
    return s;
}

void rm_session_read_counters(remat_session *s) {
    const remat_session *trainer = rm_session_trainer(s);
    s->runner.updates = trainer->runner.updates;
    s->last_lr = trainer->last_lr;
}

bool rm_session_can_continue(remat_session *s) {
    const remat_session *root = rm_session_root(s);
    return s->ran_forward && root->arena_user == s && root->parameters_version == s->packed_version &&
           rm_session_trainer(s)->runner.updates == s->runner.updates;
}

/* ---- While it is created --------------------------------------------------------------------------------------- */

remat_status rm_session_join(remat_session *s, remat_session *lender) {
    if (!lender) return REMAT_OK;
    REQUIRE(s->api == lender->api && s->plan_only == lender->plan_only, INVALID,
            "share: the other session is on the device \"%s\"%s; use the same device, and plan_only in both or neither",
            lender->api->name, lender->plan_only ? " and plans only" : "");
    REQUIRE(s->pipeline.size == 1 && lender->pipeline.size == 1, INVALID,
            "share: sessions of a pipeline cannot share, since each rank holds only a part; leave out share");
    bool both_train = !s->inference && !lender->inference;
    REQUIRE(!both_train || !s->optimizer || !lender->optimizer || s->optimizer == lender->optimizer, INVALID,
            "share: the optimizer is %s, and %s in the other session, whose state it would use; use the same",
            s->optimizer->name, lender->optimizer->name);
    REQUIRE(!both_train || (s->ranks.context == lender->ranks.context && s->ranks.size == lender->ranks.size), INVALID,
            "share: the other session has other ranks; use the same ranks in both");
    s->lender = lender;
    lender->n_sharing++;
    return REMAT_OK;
}

void rm_session_leave(remat_session *s) {
    remat_session *lender = s->lender;
    s->lender = NULL;
    if (lender && --lender->n_sharing == 0 && lender->freed) remat_session_free(lender);
}

bool rm_session_shares(const void *session, remat_kind kind, const char *name, uint64_t bytes) {
    const remat_session *s = session, *lender = s->lender;
    int64_t index = lender ? remat_find(lender, kind, name) : -1;
    if (index < 0) return false;
    switch (kind) {
    case REMAT_PARAM:
    case REMAT_BUFFER:
    case REMAT_OPTIMIZER:
        return true;
    case REMAT_GRADIENT:
        return index < lender->chain.at.buckets.n_trained;
    case REMAT_CARRIED: /* carried states of another batch size are its own */
        return !s->inference && !lender->inference && rm_session_held_bytes(&lender->array[kind][index]) == bytes;
    default:
        return false;
    }
}

/* Index of the parameter with the same name; -1: none. */
static int32_t param_of(const remat_session *s, const char *name) {
    for (int32_t i = 0; i < s->chain.at.buckets.n_params; i++)
        if (!strcmp(s->graph->value[s->chain.at.buckets.param[i].value].name, name)) return i;
    return -1;
}

/* The name of the n-th parameter in the graph's order of definition; "": there is none. */
static const char *name_of_param(const remat_graph *graph, int32_t n) {
    for (int32_t v = 1; v < graph->n_values; v++)
        if (graph->value[v].origin == RM_VALUE_PARAM && n-- == 0) return graph->value[v].name;
    return "";
}

/* remat_ranks.agree: the other session's order, if both have the same parameters, so that buckets are the same, too. */
static remat_status agree(void *session, int32_t *order, uint8_t *used, int64_t n_parameters) {
    const remat_session *s = session;
    const rm_buckets *theirs = &s->lender->chain.at.buckets;
    if (theirs->n_params != n_parameters || s->lender->inference) return REMAT_OK;
    for (int32_t i = 0; i < n_parameters; i++)
        if (param_of(s->lender, name_of_param(s->graph, i)) != i) return REMAT_OK;
    memcpy(order, theirs->order, (size_t)n_parameters * sizeof *order);
    for (int32_t i = 0; i < n_parameters; i++) used[i] = theirs->param[i].used;
    return REMAT_OK;
}

remat_ranks rm_session_layout_ranks(remat_session *s) {
    remat_ranks ranks = s->ranks;
    if (!s->lender) return ranks;
    ranks.agree = agree;
    ranks.context = s;
    return ranks;
}

static remat_status connect(remat_session *s, remat_kind kind, rm_session_array *array) {
    int64_t index = remat_find(s->lender, kind, array->name);
    const rm_session_array *theirs = &s->lender->array[kind][index];
    char here[REMAT_DESC_TEXT], there[REMAT_DESC_TEXT];
    REQUIRE(rm_desc_equal(&array->desc, &theirs->desc) && array->held == theirs->held, INVALID,
            "share: %s is %s here and %s in the other session; give it the same shape, or another name", array->name,
            rm_desc_text(&array->desc, here), rm_desc_text(&theirs->desc, there));
    array->theirs = &s->lender->array[kind][index];
    return REMAT_OK;
}

remat_status rm_session_connect(remat_session *s) {
    for (int kind = 0; kind < RM_ARRAY_KINDS && s->lender; kind++)
        for (int64_t i = 0; i < s->n_arrays[kind]; i++) {
            rm_session_array *array = &s->array[kind][i];
            if (array->where.space == RM_EXTERNAL && s->chain.at.external[array->where.slot].entry < 0)
                TRY(connect(s, (remat_kind)kind, array));
        }
    return REMAT_OK;
}

remat_status rm_session_share_buckets(remat_session *s) {
    const rm_buckets *ours = &s->chain.at.buckets;
    if (!s->lender || s->inference || s->lender->inference) return REMAT_OK;
    const rm_buckets *theirs = &s->lender->chain.at.buckets;
    bool same = ours->n == theirs->n && ours->n_params == theirs->n_params;
    for (int32_t i = 0; same && i < ours->n_params; i++)
        same = ours->param[i].at == theirs->param[i].at && ours->param[i].bucket == theirs->param[i].bucket &&
               ours->param[i].count == theirs->param[i].count;
    REQUIRE(same || s->ranks.size == 1, INVALID,
            "share: with other ranks both sessions have to train the same parameters, defined in the same order");
    if (same) memcpy(s->bucket, s->lender->bucket, (size_t)ours->n * sizeof *s->bucket);
    return REMAT_OK;
}

remat_status rm_session_share_arena(remat_session *s) {
    const remat_session *root = rm_session_root(s);
    uint64_t wanted = rm_session_activations_bytes(s), there = root->arena_bytes - root->chain.at.bytes;
    REQUIRE(wanted <= there, INVALID,
            "share: this session needs %llu bytes for activations, and the arena of the other has %llu; create the one "
            "that needs more first, or set {memory_budget} to at most %llu",
            (unsigned long long)wanted, (unsigned long long)there,
            (unsigned long long)(rm_session_budgeted_bytes(s) - wanted + there));
    s->runner.block = root->runner.block;
    s->runner.arena_offset = root->runner.arena_offset;
    return REMAT_OK;
}

/* ---- While it runs --------------------------------------------------------------------------------------------- */

void rm_session_find_shared(remat_session *s) {
    for (int kind = 0; kind < RM_ARRAY_KINDS && s->lender; kind++)
        for (int64_t i = 0; i < s->n_arrays[kind]; i++) {
            const rm_session_array *array = &s->array[kind][i];
            if (array->theirs) s->runner.external[array->where.slot] = rm_session_address(s, array);
        }
    const rm_where *packed = &s->chain.at.packed_at;
    const remat_session *root = rm_session_root(s);
    if (packed->space == RM_EXTERNAL)
        s->runner.external[packed->slot] = rm_run_address(&root->runner, &root->chain.at.packed_at);
}
