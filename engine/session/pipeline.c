/* pipeline.c: a session whose layers are distributed over several ranks (remat_pipeline). Every rank builds the
 * whole network's chain and every rank's part of it, and plans for the rank that needs the most bytes and time. All
 * ranks therefore make the same plan without communicating. Outside of the programs' messages, ranks only exchange
 * losses and norms, which are the same on all ranks at the end. */
#include <string.h>

#include "engine/abi.h"
#include "engine/session/budget.h"
#include "engine/session/parts.h"
#include "engine/session/planning.h"
#include "engine/times/layer_times.h"
#include "memory/host.h"

/* ---- As configured ---------------------------------------------------------------------------------------------- */

/* A session that only plans needs nobody to talk to. */
static remat_status check_device(const remat_session *s) {
    const remat_pipeline *p = &s->pipeline;
    if (s->plan_only) return REMAT_OK;
    const char *own = s->api->reachable || !rm_session_is_real(s) ? "cpu" : s->api->name, *theirs = p->device;
    REQUIRE(
        !strcmp(theirs ? theirs : "cpu", own), MISSING,
        "remat_pipeline sends from memory of the device \"%s\", but this session's is on the device \"%s\"; use the "
        "same device for both",
        theirs ? theirs : "cpu", s->api->name);
    REQUIRE(!theirs || (p->give_send && p->give_receive && p->poll && s->api->stream), INVALID,
            "remat_pipeline lacks give_send, give_receive or poll, which a session on the device \"%s\" needs",
            s->api->name);
    return REMAT_OK;
}

remat_status rm_session_set_up_pipeline(remat_session *s, const remat_config *config) {
    remat_pipeline *p = &s->pipeline;
    *p = (remat_pipeline){.size = 1};
    if (!config->pipeline) return REMAT_OK;
    TRY(rm_take(p, sizeof *p, config->pipeline, "remat_pipeline"));
    REQUIRE(p->size >= 1 && p->size <= RM_MOST_PIPELINE_RANKS && p->rank >= 0 && p->rank < p->size, INVALID,
            "rank %d of a pipeline of %d: ranks are numbered from 0, and at most %d", p->rank, p->size,
            RM_MOST_PIPELINE_RANKS);
    if (p->size == 1) return REMAT_OK;
    REQUIRE(s->plan_only || (p->send && p->receive), INVALID, "remat_pipeline lacks send or receive");
    TRY(check_device(s));
    REQUIRE(!config->n_differentiated, MISSING,
            "a pipeline does not support differentiated outputs; set n_differentiated to 0, or use one rank");
    REQUIRE(!config->n_external, MISSING,
            "a pipeline does not support external memory; set n_external to 0, or use one rank");
    return REMAT_OK;
}

/* ---- Cut, for all ranks ----------------------------------------------------------------------------------------- */

/* Gives the part the lists of the whole chain, notes what it needs, and raises s->most to its bytes and times. */
static remat_status join_part(remat_session *s, rm_chain *part, const rm_chain *whole) {
    TRY(rm_chain_adopt(part, whole));
    rm_rank_needs *needs = &s->of_rank[part->rank];
    needs->resident_bytes = part->at.bytes;
    needs->network_bytes = rm_session_network_bytes(s, part);
    needs->copied_bytes = rm_parts_copied_bytes(part);
    TRY(rm_problem_copy(&part->problem, &needs->problem));
    TRY(rm_problem_copy(&part->evaluation, &needs->evaluation));
    if (part->rank > 0) {
        rm_problem_raise(&s->most.problem, &part->problem);
        rm_problem_raise(&s->most.evaluation, &part->evaluation);
        return REMAT_OK;
    }
    TRY(rm_problem_copy(&part->problem, &s->most.problem));
    return rm_problem_copy(&part->evaluation, &s->most.evaluation);
}

static remat_status build_parts(remat_session *s, int32_t loss, const int32_t *keep, int n_keep, rm_chain_config config,
                                const rm_chain *whole) {
    const remat_ranks quiet = {.size = config.ranks->size,
                               .rank = config.ranks->rank,
                               .shard_optimizer = config.ranks->shard_optimizer,
                               .first_bucket_bytes = config.ranks->first_bucket_bytes,
                               .bucket_bytes = config.ranks->bucket_bytes},
                      *ranks = config.ranks;
    s->of_rank = rm_calloc((size_t)s->pipeline.size, sizeof *s->of_rank);
    REQUIRE(s->of_rank, MEMORY, "out of memory for %d ranks", s->pipeline.size);
    for (int r = 0; r < s->pipeline.size; r++) {
        rm_chain other = {0}, *part = r == s->pipeline.rank ? &s->chain : &other;
        config.pipeline_rank = r;
        config.ranks = part == &other ? &quiet : ranks;
        remat_status status = rm_chain_build(s->graph, loss, keep, n_keep, &config, part);
        if (!status) status = join_part(s, part, whole);
        rm_chain_free(&other);
        TRY(status);
    }
    return REMAT_OK;
}

remat_status rm_session_build_chain(remat_session *s, int32_t loss, const int32_t *keep, int n_keep,
                                    const rm_chain_config *config) {
    if (s->pipeline.size == 1) return rm_chain_build(s->graph, loss, keep, n_keep, config, &s->chain);
    const remat_ranks alone = {.size = 1};
    rm_chain whole = {0};
    rm_chain_config ours = *config;
    rm_layer_times *times = s->layer_times;
    if (times && !times->node_ns) TRY(rm_session_time_layers(s, loss, keep, n_keep, config, times));
    ours.node_ns = times ? times->node_ns : NULL;
    ours.pipeline = &s->pipeline;
    ours.pipeline_rank = RM_EVERY_RANK;
    ours.ranks = &alone;
    remat_status status = rm_chain_build(s->graph, loss, keep, n_keep, &ours, &whole);
    ours.ranks = config->ranks;
    if (!status) status = build_parts(s, loss, keep, n_keep, ours, &whole);
    rm_chain_free(&whole);
    return status;
}

/* ---- Planned for the rank that needs most ----------------------------------------------------------------------- */

void rm_session_swap_problems(remat_session *s) {
    rm_problem training = s->chain.problem, evaluation = s->chain.evaluation;
    s->chain.problem = s->most.problem;
    s->chain.evaluation = s->most.evaluation;
    s->chain.problem.tier = training.tier;
    s->most.problem = training;
    s->most.evaluation = evaluation;
}

/* Keeps the plan and replaces its bytes by this rank's. */
static remat_status settle(const rm_problem *problem, bool forward_only, rm_schedule *schedule) {
    rm_lifetimes_free(&schedule->lifetimes);
    rm_placement_free(&schedule->placement);
    rm_transfers_free(&schedule->transfers);
    return rm_schedule_settle(problem, forward_only, schedule);
}

static remat_status settle_for(remat_session *s, const rm_problem *problem, const rm_problem *evaluation,
                               uint64_t copied) {
    TRY(settle(evaluation, true, &s->evaluation));
    if (s->inference) return REMAT_OK;
    TRY(settle(problem, false, &s->training));
    return rm_parts_place(s, copied, &s->training);
}

remat_status rm_session_settle_part(remat_session *s) {
    return settle_for(s, &s->chain.problem, &s->chain.evaluation, rm_parts_copied_bytes(&s->chain));
}

static remat_status settle_for_rank(remat_session *s, int rank, uint64_t *bytes) {
    rm_rank_needs *needs = &s->of_rank[rank];
    needs->problem.tier = s->chain.problem.tier;
    TRY(settle_for(s, &needs->problem, &needs->evaluation, needs->copied_bytes));
    *bytes = rm_session_budgeted_bytes(s) - rm_session_network_bytes(s, &s->chain) + needs->network_bytes;
    return REMAT_OK;
}

remat_status rm_session_neediest_rank(remat_session *s, int *rank, uint64_t *bytes) {
    *rank = 0;
    *bytes = rm_session_budgeted_bytes(s);
    if (s->pipeline.size == 1) return REMAT_OK;
    *bytes = 0;
    for (int r = 0; r < s->pipeline.size; r++) {
        uint64_t needed;
        TRY(settle_for_rank(s, r, &needed));
        s->of_rank[r].needed_bytes = needed;
        if (needed <= *bytes) continue;
        *rank = r;
        *bytes = needed;
    }
    return *rank < s->pipeline.size - 1 ? settle_for_rank(s, *rank, bytes) : REMAT_OK;
}

void rm_session_free_needs(remat_session *s) {
    for (int r = 0; s->of_rank && r < s->pipeline.size; r++) {
        rm_problem_free(&s->of_rank[r].problem);
        rm_problem_free(&s->of_rank[r].evaluation);
    }
    rm_free(s->of_rank);
    s->of_rank = NULL;
}

/* ---- Numbers that all ranks know -------------------------------------------------------------------------------- */

/* Added up on rank 0, in the order of ranks. */
remat_status rm_session_sum_over_pipeline(const remat_session *s, double *values, int64_t count) {
    const remat_pipeline *p = &s->pipeline;
    enum { CHUNK = 256 };
    double chunk[CHUNK];
    if (p->size == 1) return REMAT_OK;
    for (int64_t i = 0, n; i < count; i += n) {
        n = count - i < CHUNK ? count - i : CHUNK;
        uint64_t bytes = (uint64_t)n * sizeof *chunk;
        if (p->rank) {
            TRY(p->send(p->context, 0, values + i, bytes));
            TRY(p->receive(p->context, 0, values + i, bytes));
            continue;
        }
        for (int r = 1; r < p->size; r++) {
            TRY(p->receive(p->context, r, chunk, bytes));
            for (int64_t k = 0; k < n; k++) values[i + k] += chunk[k];
        }
        for (int r = 1; r < p->size; r++) TRY(p->send(p->context, r, values + i, bytes));
    }
    return REMAT_OK;
}

/* ---- Arrays of all ranks, on rank 0 ----------------------------------------------------------------------------- */

remat_status remat_pipeline_read(remat_session *s, remat_kind kind, int64_t index, uint64_t first, void *data,
                                 uint64_t bytes) {
    remat_array array;
    NEED(s, "a session");
    TRY(remat_array_info(s, kind, index, &array));
    const remat_pipeline *p = &s->pipeline;
    int holder = s->array[kind][index].holder;
    if (p->rank == holder || p->size == 1) TRY(remat_read_part(s, kind, index, first, data, bytes));
    if (holder == 0 || p->size == 1) return REMAT_OK;
    if (p->rank == holder) return p->send(p->context, 0, data, bytes);
    return p->rank == 0 ? p->receive(p->context, holder, data, bytes) : REMAT_OK;
}

const char *remat_pipeline_cut(const remat_session *s) { return s ? s->chain.cut : NULL; }
