/* step.c: a session's passes: forward and backward, alone or as one of several micro steps and ranks. What follows the last
 * gradient (waiting for other ranks, the norm, the optimizer) is update.c. Main entries: remat_gradients, or its two halves,
 * remat_forward and remat_backward; remat_step; remat_evaluate.
 *
 * The last of K micro steps hands each bucket of gradients over as soon as the backward pass is done with it (finish_bucket,
 * called by the executor), and goes on.
 *
 * Pairwise, a micro step's gradients are a leaf of a tree, and begin at zero. Sums wait in the sections after at.sums_offset,
 * as the bits of a binary counter: section l, where bit l of the number of leaves so far is set, holds a sum of 2^l of them.
 * The last leaf meets all of them, bucket by bucket. */
#include <math.h>

#include "engine/abi.h"
#include "engine/session/session.h"

/* ---- What every pass begins and ends with --------------------------------------------------------------------- */

/* Fresh packed weights if what they are made of changed, tables, zeroed loss slots. */
static remat_status begin_pass(remat_session *s, bool training) {
    s->runner.training = training;
    s->runner.finished = NULL;
    s->runner.trace = NULL;
    s->ran_forward = false;
    bool pack = s->packed_is_stale || s->chain.at.packs_inputs;
    if (pack) rm_run_packing(&s->runner, true);
    s->api->fill(s->runner.queue, s->runner.resident + s->chain.at.loss_offset, 0, s->chain.at.loss_bytes);
    rm_run_tables(&s->runner, &s->chain.prologue);
    if (pack) rm_run_packing(&s->runner, false);
    s->packed_is_stale = false;
    return rm_session_count(s);
}

/* The tiles' shares of the loss, added in tile order whatever order the plan made them in. Carried states go on, but not where
 * a session that trains is evaluated in between. */
static remat_status end_pass(remat_session *s, remat_step_result *result) {
    const rm_residents *at = &s->chain.at;
    rm_queue *queue = s->runner.queue;
    uint64_t carried_bytes = at->carried_next - at->carried;
    if (carried_bytes && (s->runner.training || s->inference))
        s->api->copy(queue, s->runner.resident + at->carried, s->runner.resident + at->carried_next, carried_bytes);
    s->api->copy_out(queue, s->loss, s->runner.resident + at->loss_offset, at->loss_bytes);
    TRY(s->api->synchronize(queue));
    double loss = 0;
    for (int64_t i = 0; i < s->chain.n_stages; i++) loss += s->loss[i];
    result->loss = (float)loss;
    result->counted = s->counts && !s->mean_of_parts ? s->count : 0;
    result->arena_peak_bytes = s->api->high_water(s->runner.block);
    return REMAT_OK;
}

/* ---- Gradients of one micro step ------------------------------------------------------------------------------ */

static float *bucket_in(const remat_session *s, uint64_t section_offset, const rm_bucket *bucket) {
    return (float *)(s->runner.resident + section_offset) + bucket->at;
}

static float *waiting_sum(const remat_session *s, int level, const rm_bucket *bucket) {
    return bucket_in(s, s->chain.at.sums_offset + (uint64_t)level * s->chain.at.section_bytes, bucket);
}

/* The leaf numbered n_made joins the sums that are of its size: as many as it has ones at the end. */
static int add_waiting(const remat_session *s, const rm_bucket *bucket) {
    int level = 0;
    for (; s->n_made >> level & 1; level++)
        rm_run_add(&s->runner, bucket_in(s, s->chain.at.gradients_offset, bucket), waiting_sum(s, level, bucket),
                   bucket->count);
    return level;
}

/* A leaf that is not the last: its sum waits. */
static void set_aside(const remat_session *s) {
    const rm_buckets *buckets = &s->chain.at.buckets;
    for (int32_t b = 0; b < buckets->n; b++) {
        const rm_bucket *bucket = &buckets->item[b];
        int level = add_waiting(s, bucket);
        s->api->copy(s->runner.queue, waiting_sum(s, level, bucket), bucket_in(s, s->chain.at.gradients_offset, bucket),
                     (uint64_t)bucket->count * sizeof(float));
    }
}

/* Called by the executor, in the last micro step. Pairwise, leaves are gradients of loss / (K W) on any number of ranks, and
 * ranks take the mean over W: times W, which is a power of two, and exact. */
static remat_status finish_bucket(void *session, int32_t index) {
    remat_session *s = session;
    const rm_bucket *bucket = &s->chain.at.buckets.item[index];
    if (s->deterministic_world) add_waiting(s, bucket);
    if (s->deterministic_world && s->ranks.size > 1)
        rm_run_scale(&s->runner, bucket_in(s, s->chain.at.gradients_offset, bucket), s->ranks.size, bucket->count);
    if (!s->ranks.reduce) return REMAT_OK;
    remat_bucket shown;
    TRY(rm_session_hand_over(s, index, &shown));
    return s->ranks.reduce(s->ranks.context, &shown);
}

static int64_t own_shard(const remat_session *s, int64_t t) {
    return s->ranks.rank + s->ranks.size * remat_micro_shard(t, s->micro_steps, s->deterministic_world);
}

/* Of the micro step that comes next: after the last one, the first. */
static int64_t shard_of(const remat_session *s) { return own_shard(s, s->n_made % s->micro_steps); }

/* Up to the first backward run. */
static remat_status forward_half(remat_session *s) {
    TRY(begin_pass(s, true));
    s->runner.shard = (uint32_t)shard_of(s);
    if (s->trace_next) rm_trace_begin(s->runner.trace = s->trace);
    TRY(rm_run(&s->runner, &s->chain.problem, &s->training, RM_TO_BACKWARD));
    s->ran_forward = true;
    return REMAT_OK;
}

/* What outputs' gradients are multiplied by, and the loss's too. */
static void take_share(const remat_session *s) {
    double share = rm_session_loss_share(s);
    for (int i = 0; i < s->chain.n_differentiated && share != 1; i++) {
        const rm_session_array *array = &s->array[REMAT_OUTPUT_GRADIENT][i];
        rm_run_scale(&s->runner, s->runner.resident + array->offset, share, array->held);
    }
}

/* Pairwise, the gradients of inputs are in their shares of all ranks' batch, too: what finish_bucket does for parameters. Nobody
 * reads those of tables any more. */
static void finish_inputs(const remat_session *s) {
    const rm_residents *at = &s->chain.at;
    double scale = s->ranks.size * (s->weighs ? s->correction : 1);
    if (s->deterministic_world && scale != 1)
        rm_run_scale(&s->runner, s->runner.resident + at->table_gradients_offset, scale,
                     (int64_t)(at->table_gradients_bytes / sizeof(float)));
}

/* Of this rank's losses: by its rows, where it does not weigh them by what counts. */
static double rank_weight(const remat_session *s) { return s->weighs ? 1 : s->ranks.weight; }

static remat_status backward_half(remat_session *s, remat_step_result *result) {
    const rm_residents *at = &s->chain.at;
    bool last = s->n_made + 1 == s->micro_steps;
    if (last) s->runner.finished = finish_bucket;
    if (s->n_made == 0 || s->deterministic_world)
        s->api->fill(s->runner.queue, s->runner.resident + at->gradients_offset, 0, at->section_bytes);
    s->api->fill(s->runner.queue, s->runner.resident + at->table_gradients_offset, 0, at->table_gradients_bytes);
    take_share(s);
    TRY(rm_session_weigh_part(s, shard_of(s)));
    remat_status status = rm_run(&s->runner, &s->chain.problem, &s->training, RM_FROM_BACKWARD);
    if (s->runner.trace && !status) s->trace_next = false;
    s->runner.trace = NULL;
    s->ran_forward = false;
    TRY(status);
    TRY(rm_run_epilogue(&s->runner));
    finish_inputs(s);
    if (s->deterministic_world && !last) set_aside(s);
    if (s->runner.verify) TRY(rm_verify_end(s->runner.verify, &s->training.plan));
    TRY(end_pass(s, result));
    s->trained = true;
    s->shard_loss[shard_of(s)] = result->loss * rank_weight(s);
    return REMAT_OK;
}

/* Over this rank's micro steps so far, and what counts in them. */
static void take_own_loss(const remat_session *s, remat_step_result *result) {
    double sum = 0, counted = 0, n = (double)s->n_made;
    for (int64_t t = 0; t < s->n_made && s->weighs; t++) counted += s->shard_count[own_shard(s, t)];
    for (int64_t t = 0; t < s->n_made; t++) {
        int64_t shard = own_shard(s, t);
        sum += s->shard_loss[shard] * rm_session_part_weight(s, shard, counted, n);
    }
    result->loss = (float)(sum / (n * rank_weight(s)));
    result->counted = counted;
}

/* In order of shards, of which only this rank's are not zero until they have been added up: the same bits on all ranks, and,
 * where shards are the same, for any number of ranks. */
static remat_status mean_loss(remat_session *s, remat_step_result *result) {
    int64_t n = (int64_t)s->ranks.size * s->micro_steps;
    if (s->ranks.sum) TRY(s->ranks.sum(s->ranks.context, s->shard_loss, rm_session_exchange_count(s)));
    TRY(rm_session_check_exchange(s));
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += s->shard_loss[i] * rm_session_part_weight(s, i, s->total_count, (double)n);
    result->loss = (float)(sum / (double)n);
    if (s->weighs) result->counted = s->total_count;
    return REMAT_OK;
}

static remat_status check_runs(const remat_session *s) {
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it cannot run");
    REQUIRE(!s->inference, INVALID, "this session was made for inference; it has no gradients");
    return rm_session_check_inputs(s);
}

/* The second half of a micro step, up to the moment where all its buckets have been handed over, if it is the last. lr: of the
 * update that follows; -1: nobody has said so. */
static remat_status add_gradients(remat_session *s, double lr, remat_step_result *result) {
    *result = (remat_step_result){.recomputed_stages = (uint64_t)s->training.verdict.recomputed_stages};
    if (s->n_made == s->micro_steps) s->n_made = 0;
    if (s->n_made == 0)
        for (int64_t i = 0; i < rm_session_exchange_count(s); i++) s->shard_loss[i] = 0;
    if (s->n_made == 0) rm_session_begin_counting(s);
    s->coming_lr = lr;
    rm_session_fill_exchange(s);
    remat_status status = backward_half(s, result);
    s->n_made = status ? 0 : s->n_made + 1;
    return status;
}

/* Both halves at once need no word from outside. */
static remat_status begin_gradients(remat_session *s) {
    TRY(check_runs(s));
    REQUIRE(!s->chain.n_differentiated, INVALID,
            "this session differentiates outputs, whose gradients come from outside: call remat_forward, write them, "
            "then call remat_backward");
    remat_status status = forward_half(s);
    if (status) s->n_made = 0;
    return status;
}

/* After the last bucket has been taken: numbers over all ranks. */
static remat_status sum_up(remat_session *s, remat_step_result *result) {
    TRY(mean_loss(s, result));
    TRY(rm_session_gradient_norm(s));
    TRY(s->api->synchronize(s->runner.queue)); /* squares that failed to come say so here */
    result->grad_norm = s->grad_norm;
    return REMAT_OK;
}

static remat_status take_all(remat_session *s, remat_step_result *result) {
    for (int32_t b = 0; b < s->chain.at.buckets.n; b++) TRY(rm_session_take_bucket(s, b));
    return sum_up(s, result);
}

static remat_status finish_gradients(remat_session *s, double lr, remat_step_result *result) {
    TRY(add_gradients(s, lr, result));
    if (!rm_session_has_gradients(s)) {
        take_own_loss(s, result);
        return REMAT_OK;
    }
    remat_status status = take_all(s, result);
    if (status) s->n_made = 0;
    return status;
}

remat_status remat_gradients(remat_session *s, remat_step_result *result) {
    remat_step_result made = {0};
    NEED(s, "a session");
    TRY(begin_gradients(s));
    TRY(finish_gradients(s, -1, &made));
    if (result) *result = made;
    return REMAT_OK;
}

/* Zeros, until the program writes them, whole or in parts: the last pass's would pass for this one's. */
static void begin_output_gradients(const remat_session *s) {
    for (int i = 0; i < s->chain.n_differentiated; i++) {
        rm_session_array *array = &s->array[REMAT_OUTPUT_GRADIENT][i];
        s->api->fill(s->runner.queue, s->runner.resident + array->offset, 0, (uint64_t)array->held * sizeof(float));
        array->missing = true;
    }
}

remat_status remat_forward(remat_session *s) {
    NEED(s, "a session");
    TRY(check_runs(s));
    TRY(forward_half(s));
    begin_output_gradients(s);
    s->handed_out = true;
    return s->api->synchronize(s->runner.queue);
}

remat_status remat_backward(remat_session *s, remat_step_result *result) {
    remat_step_result made = {0};
    NEED(s, "a session");
    TRY(check_runs(s));
    REQUIRE(s->ran_forward, INVALID,
            "there is no forward pass to go on from: call remat_forward, and no other pass or update, and write no "
            "inputs, parameters, outputs or carried states, before remat_backward");
    for (int i = 0; i < s->chain.n_differentiated && rm_session_is_real(s); i++)
        REQUIRE(!s->array[REMAT_OUTPUT_GRADIENT][i].missing, INVALID,
                "the gradient of output %d has not been written since remat_forward: write it, zeros where there is "
                "none, before remat_backward",
                i);
    TRY(finish_gradients(s, -1, &made));
    if (result) *result = made;
    return REMAT_OK;
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

static remat_status update_as_they_arrive(remat_session *s, double lr, remat_step_result *result) {
    rm_session_begin_update(s, lr);
    for (int32_t b = 0; b < s->chain.at.buckets.n; b++) {
        TRY(rm_session_take_bucket(s, b));
        rm_session_measure_bucket(s, b);
        TRY(rm_session_update_bucket(s, b));
    }
    TRY(rm_session_end_update(s, lr));
    return sum_up(s, result);
}

static remat_status fused_step(remat_session *s, double lr, remat_step_result *result) {
    TRY(begin_gradients(s));
    TRY(add_gradients(s, lr, result));
    remat_status status = update_as_they_arrive(s, lr, result);
    s->n_made = 0;
    return status;
}

static remat_status step(remat_session *s, double lr, remat_step_result *result) {
    if (rm_session_is_fused(s)) return fused_step(s, lr, result);
    TRY(begin_gradients(s));
    TRY(finish_gradients(s, lr, result));
    return rm_session_update(s, lr);
}

remat_status remat_step(remat_session *s, double lr, remat_step_result *result) {
    remat_step_result made = {0};
    NEED(s, "a session");
    REQUIRE(s->optimizer, INVALID, "this session has no optimizer; name one in the config");
    REQUIRE(s->micro_steps == 1, INVALID,
            "the batch of this session's updates comes in %d micro steps; call %s for each, then remat_update",
            s->micro_steps, rm_session_pass_text(s));
    REQUIRE(lr >= 0 && isfinite(lr), INVALID, "the learning rate is %g; use a finite number of at least 0", lr);
    TRY(step(s, lr, &made));
    if (result) *result = made;
    return REMAT_OK;
}

remat_status remat_evaluate(remat_session *s, remat_step_result *result) {
    remat_step_result made = {0};
    NEED(s, "a session");
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it cannot run");
    TRY(rm_session_check_inputs(s));
    TRY(begin_pass(s, false));
    TRY(rm_run(&s->runner, &s->chain.evaluation, &s->evaluation, RM_WHOLE_PLAN));
    TRY(end_pass(s, &made));
    s->evaluated = true;
    if (result) *result = made;
    return REMAT_OK;
}

/* ---- Counting ------------------------------------------------------------------------------------------------- */

int64_t remat_step_count(const remat_session *s) { return s ? (int64_t)s->runner.updates : 0; }
void remat_set_step_count(remat_session *s, int64_t steps) {
    if (!s) return;
    s->runner.updates = (uint64_t)steps;
    s->ran_forward = false;
}
void remat_set_last_lr(remat_session *s, double lr) {
    if (s) s->last_lr = lr;
}
