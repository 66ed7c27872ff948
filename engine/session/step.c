/* step.c: a session's passes: forward and backward, in one or several micro steps, on one or several ranks. update.c
 * does the rest of an update: waiting for other ranks, the norm, the optimizer. Main entries: remat_gradients, or its
 * two halves, remat_forward and remat_backward; remat_step; remat_evaluate.
 *
 * In the last of K micro steps, each bucket of gradients is passed to the other ranks as soon as it is final
 * (finish_bucket, called by the executor), while the backward pass continues.
 *
 * With deterministic_world, the gradients of a micro step are a leaf of a summation tree and start at zero. Partial
 * sums are in the sections after at.sums_offset, like the bits of a binary counter: if bit l of the number of leaves so
 * far is set, section l holds a sum of 2^l leaves. The last leaf is added to all of them, bucket by bucket. */
#include <math.h>

#include "engine/abi.h"
#include "engine/session/frame.h"
#include "engine/session/parts.h"

/* ---- Start and end of a pass ---------------------------------------------------------------------------------- */

/* Packs weights again if they changed, zeroes the loss slots and runs the tables. */
static remat_status begin_pass(remat_session *s, bool training) {
    s->runner.training = training;
    s->runner.own_shift = 0;
    s->parts.complete = false;
    s->runner.finished = NULL;
    s->runner.trace = NULL;
    s->ran_forward = false;
    remat_session *root = rm_session_root(s);
    root->arena_user = s;
    rm_session_read_counters(s);
    rm_session_find_shared(s);
    remat_session *holder = s->chain.at.packed_at.space == RM_EXTERNAL ? root : s;
    bool stale = root->parameters_version != s->packed_version || holder->packed_by != s;
    bool changed = rm_session_parameters_changed(s);
    bool pack = stale || changed || s->chain.at.packs_inputs;
    if (pack) rm_run_packing(&s->runner, true);
    s->api->fill(s->runner.queue, s->runner.resident + s->chain.at.loss_offset, 0, s->chain.at.loss_bytes);
    rm_run_tables(&s->runner, &s->chain.prologue);
    if (pack) rm_run_packing(&s->runner, false);
    s->packed_version = root->parameters_version;
    holder->packed_by = s;
    return rm_session_count(s);
}

/* Copies the states to where the next call starts. */
static void carry_states(const remat_session *s) {
    for (int32_t k = 0; k < s->chain.n_carried; k++) {
        const rm_carried *carried = &s->chain.carried[k];
        if (!rm_frame_keeps(&s->runner, k)) continue;
        s->api->copy(s->runner.queue, rm_run_address(&s->runner, &s->chain.at.carried[k]),
                     s->runner.resident + s->chain.at.carried_next + carried->kept, carried->bytes);
    }
}

/* In a pipeline one rank computes the loss; other ranks that read it have a copy. */
static bool makes_loss(const remat_session *s) {
    return s->chain.loss && rm_runs_on(&s->chain, s->graph->value[s->chain.loss].node, s->chain.rank);
}

/* Sums the losses of the stages in their order, whatever the order of the plan. Keeps carried states for the next call,
 * except after an evaluation in a training session. in_flight: the ranks of a pipeline do not wait for each other yet. */
static remat_status end_pass(remat_session *s, bool in_flight, remat_step_result *result) {
    const rm_residents *at = &s->chain.at;
    rm_queue *queue = s->runner.queue;
    if (s->runner.training || s->inference) carry_states(s);
    s->api->copy_out(queue, s->loss, s->runner.resident + at->loss_offset, at->loss_bytes);
    TRY(s->api->synchronize(queue));
    double loss = 0;
    for (int64_t i = 0; i < s->chain.n_stages && makes_loss(s); i++) loss += s->loss[i];
    if (!in_flight) TRY(rm_session_sum_over_pipeline(s, &loss, 1));
    result->loss = (float)loss;
    result->counted = s->counts && !s->mean_of_parts ? s->count : 0;
    result->arena_peak_bytes = s->lender ? s->chain.at.bytes + s->runner.furthest : s->api->high_water(s->runner.block);
    return REMAT_OK;
}

/* ---- Gradients of one micro step ------------------------------------------------------------------------------ */

/* Gradients in the arena are one run of floats; external ones are handled one by one. In the list, gradients of inputs
 * follow those of parameters. */
typedef void gradient_work(const remat_session *, float *, uint64_t bytes, double factor);
static void on_gradients(const remat_session *s, bool of_inputs, gradient_work *work, double factor) {
    const rm_residents *at = &s->chain.at;
    int64_t n_trained = at->buckets.n_trained;
    uint64_t offset = of_inputs ? at->table_gradients_offset : at->gradients_offset;
    work(s, (float *)(s->runner.resident + offset), of_inputs ? at->table_gradients_bytes : at->gradients_bytes,
         factor);
    for (int64_t i = of_inputs ? n_trained : 0; i < (of_inputs ? s->n_arrays[REMAT_GRADIENT] : n_trained); i++) {
        const rm_session_array *array = &s->array[REMAT_GRADIENT][i];
        if (array->where.space == RM_EXTERNAL)
            work(s, rm_session_address(s, array), (uint64_t)array->held * sizeof(float), factor);
    }
}

static void zero(const remat_session *s, float *x, uint64_t bytes, double factor) {
    (void)factor;
    s->api->fill(s->runner.queue, x, 0, bytes);
}

static void scale(const remat_session *s, float *x, uint64_t bytes, double factor) {
    rm_run_scale(&s->runner, x, factor, (int64_t)(bytes / sizeof(float)));
}

void rm_session_scale_gradients(const remat_session *s, double factor) { on_gradients(s, false, scale, factor); }

static float *gradient_of(const remat_session *s, const rm_parameter *p) {
    return rm_run_address(&s->runner, &s->chain.at.gradient[p->value]);
}

static float *waiting_sum(const remat_session *s, int level, const rm_parameter *p) {
    uint64_t section = s->chain.at.sums_offset + (uint64_t)level * s->chain.at.section_bytes;
    return (float *)(s->runner.resident + section) + p->at;
}

/* Adds the waiting sums of 1, 2, 4, ... leaves to leaf number n_made, one for each trailing 1 bit of n_made. Returns
 * the level of the result. */
static int add_waiting(const remat_session *s, const rm_bucket *bucket) {
    const rm_buckets *buckets = &s->chain.at.buckets;
    int level = 0;
    for (; s->n_made >> level & 1; level++)
        for (int32_t k = bucket->first_param; k < bucket->first_param + bucket->n_params; k++) {
            const rm_parameter *p = &buckets->param[buckets->order[k]];
            rm_run_add(&s->runner, gradient_of(s, p), waiting_sum(s, level, p), p->count);
        }
    return level;
}

/* Stores the sum that ends with this leaf, which is not the last, until its second half is there. */
static void set_aside(const remat_session *s) {
    const rm_buckets *buckets = &s->chain.at.buckets;
    for (int32_t b = 0; b < buckets->n; b++) {
        const rm_bucket *bucket = &buckets->item[b];
        int level = add_waiting(s, bucket);
        for (int32_t k = bucket->first_param; k < bucket->first_param + bucket->n_params; k++) {
            const rm_parameter *p = &buckets->param[buckets->order[k]];
            s->api->copy(s->runner.queue, waiting_sum(s, level, p), gradient_of(s, p),
                         (uint64_t)p->count * sizeof(float));
        }
    }
}

/* Called by the executor, in the last micro step. With deterministic_world, leaves are gradients of loss / (K W), and
 * ranks take the mean over W, so the sum is multiplied by W, a power of two, without rounding. */
static remat_status finish_bucket(void *session, int32_t index) {
    remat_session *s = session;
    const rm_bucket *bucket = &s->chain.at.buckets.item[index];
    if (s->deterministic_world) add_waiting(s, bucket);
    if (s->deterministic_world && s->ranks.size > 1)
        rm_run_scale(&s->runner, s->bucket[index].gradients, s->ranks.size, bucket->count);
    if (!s->ranks.reduce) return REMAT_OK;
    remat_bucket shown;
    TRY(rm_session_hand_over(s, index, &shown));
    return s->ranks.reduce(s->ranks.context, &shown);
}

static int64_t own_shard(const remat_session *s, int64_t t) {
    return s->ranks.rank + s->ranks.size * remat_micro_shard(t, s->micro_steps, s->deterministic_world);
}

/* The shard of the next micro step; after the last one, that of the first. */
static int64_t shard_of(const remat_session *s) { return own_shard(s, (s->n_made + s->parts.ahead) % s->micro_steps); }

/* Up to the first backward run. */
static remat_status forward_half(remat_session *s) {
    TRY(begin_pass(s, true));
    if (s->parts.n > 1) rm_parts_begin(s, s->parts.ahead);
    s->runner.shard = (uint32_t)shard_of(s);
    if (s->parts.n == 1 && (s->trace_next || s->runner.observer.event))
        rm_trace_begin(s->runner.trace = s->trace, s->trace_next);
    TRY(rm_run(&s->runner, &s->chain.problem, &s->training, RM_TO_BACKWARD));
    s->ran_forward = true;
    return REMAT_OK;
}

/* Multiplies external output gradients by the factor that the loss's gradient has. */
static void scale_output_gradients(const remat_session *s) {
    double share = rm_session_loss_share(s);
    for (int i = 0; i < s->chain.n_differentiated && share != 1; i++) {
        const rm_session_array *array = &s->array[REMAT_OUTPUT_GRADIENT][i];
        rm_run_scale(&s->runner, rm_session_address(s, array), share, array->held);
    }
}

/* With deterministic_world, scales the gradients of inputs as finish_bucket does those of parameters. The gradients of
 * tables, in the same section, are no longer needed. */
static void finish_inputs(const remat_session *s) {
    double factor = s->ranks.size * (s->weighs ? s->correction : 1);
    if (s->deterministic_world && factor != 1) on_gradients(s, true, scale, factor);
}

/* Weight of this rank's losses in the mean: by its rows, unless parts are weighted by counts. */
static double rank_weight(const remat_session *s) { return s->weighs ? 1 : s->ranks.weight; }

static remat_status backward_half(remat_session *s, remat_step_result *result) {
    bool last = s->n_made + 1 == s->micro_steps;
    if (last) s->runner.finished = finish_bucket;
    if (s->n_made == 0 || s->deterministic_world) on_gradients(s, false, zero, 0);
    on_gradients(s, true, zero, 0);
    scale_output_gradients(s);
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
    TRY(end_pass(s, s->parts.n > 1, result));
    s->trained = true;
    s->shard_loss[shard_of(s)] = result->loss * rank_weight(s);
    return REMAT_OK;
}

/* The mean loss over this rank's micro steps so far, and their count. */
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

/* Sums over ranks, then over shards in their order. Before the sum over ranks, other ranks' shards are 0. The result
 * has the same bits on all ranks, and for any number of ranks if the shards are the same. */
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

static remat_status check_runs(const remat_session *s, bool gradients) {
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it cannot run");
    REQUIRE(!s->inference, INVALID, "this session was made for inference; it has no gradients");
    TRY(rm_session_check_fork(s));
    return rm_session_check_arrays(s, gradients);
}

/* The second half of a micro step. In the last one, all buckets have been passed to the other ranks when it returns.
 * lr: learning rate of the update that follows; -1: not known. */
static remat_status add_gradients(remat_session *s, double lr, remat_step_result *result) {
    *result = (remat_step_result){.recomputed_stages = (uint64_t)s->training.verdict.recomputed_stages};
    remat_session *trainer = rm_session_trainer(s);
    if (s->n_made == s->micro_steps) s->n_made = 0;
    if (s->n_made == 0) trainer->gradients_of = s;
    if (trainer->gradients_of != s) {
        s->n_made = 0;
        FAIL(INVALID, "another session that shares this one's gradients has overwritten them; start the update's "
                      "micro steps again");
    }
    if (s->n_made == 0)
        for (int64_t i = 0; i < rm_session_exchange_count(s); i++) s->shard_loss[i] = 0;
    if (s->n_made == 0) rm_session_begin_counting(s);
    s->coming_lr = lr;
    rm_session_fill_exchange(s);
    remat_status status = backward_half(s, result);
    s->n_made = status ? 0 : s->n_made + 1;
    return status;
}

/* The first half of remat_gradients and remat_step, where the caller provides no gradients. */
static remat_status begin_gradients(remat_session *s) {
    TRY(check_runs(s, true));
    REQUIRE(!s->chain.n_differentiated, INVALID,
            "this session differentiates outputs, whose gradients you provide; call remat_forward, write them, then "
            "call remat_backward");
    remat_status status = forward_half(s);
    if (status) s->n_made = 0;
    return status;
}

/* Computes loss and norm over all ranks. Call it after the last bucket has been taken. */
static remat_status sum_up(remat_session *s, remat_step_result *result) {
    TRY(mean_loss(s, result));
    TRY(rm_session_gradient_norm(s));
    TRY(s->api->synchronize(s->runner.queue)); /* a failure to compute the squares is reported here */
    result->grad_norm = s->grad_norm;
    return REMAT_OK;
}

static remat_status take_all(remat_session *s, remat_step_result *result) {
    for (int32_t b = 0; b < s->chain.at.buckets.n; b++) TRY(rm_session_take_bucket(s, b));
    return sum_up(s, result);
}

static remat_status finish_gradients(remat_session *s, double lr, remat_step_result *result) {
    remat_status status;
    TRY(add_gradients(s, lr, result));
    if (!rm_session_has_gradients(s)) {
        take_own_loss(s, result);
        status = rm_session_explain_loss(s, result->loss);
    } else {
        status = take_all(s, result);
        if (!status) status = rm_session_explain_loss(s, result->loss);
    }
    if (status) s->n_made = 0;
    return status;
}

/* The ranks of a pipeline learn the losses of all parts at once. */
static remat_status share_losses(remat_session *s) {
    enum { MOST = 64 };
    double loss[MOST];
    for (int64_t from = 0, n; from < s->micro_steps; from += n) {
        n = s->micro_steps - from < MOST ? s->micro_steps - from : MOST;
        for (int64_t t = 0; t < n; t++) loss[t] = s->shard_loss[own_shard(s, from + t)];
        TRY(rm_session_sum_over_pipeline(s, loss, n));
        for (int64_t t = 0; t < n; t++) s->shard_loss[own_shard(s, from + t)] = loss[t];
    }
    return REMAT_OK;
}

static remat_status run_parts_backward(remat_session *s, double lr, remat_step_result *result) {
    for (int i = 0; i < s->parts.n; i++) {
        rm_parts_take(s, i);
        s->runner.shard = (uint32_t)shard_of(s);
        TRY(add_gradients(s, lr, result));
        rm_parts_keep_outputs(s, i);
    }
    s->parts.complete = true;
    TRY(share_losses(s));
    TRY(take_all(s, result));
    return rm_session_explain_loss(s, result->loss);
}

/* A micro step whose parts are in flight together: the last one runs them all backward. */
static remat_status add_part(remat_session *s, double lr, remat_step_result *result) {
    if (s->n_made == s->micro_steps) s->n_made = 0;
    remat_status status = begin_gradients(s);
    if (!status) rm_parts_keep(s, s->parts.ahead);
    bool last = s->parts.ahead + 1 == s->parts.n;
    s->parts.ahead = status || last ? 0 : s->parts.ahead + 1;
    s->ran_forward = false; /* remat_backward cannot continue it */
    if (status || !last) return status;
    status = run_parts_backward(s, lr, result);
    if (status) s->n_made = 0;
    return status;
}

static remat_status gradients(remat_session *s, double lr, remat_step_result *result) {
    uint64_t begin_ns = rm_observe(&s->runner.observer);
    if (s->parts.n > 1) {
        TRY(add_part(s, lr, result));
    } else {
        TRY(begin_gradients(s));
        TRY(finish_gradients(s, lr, result));
    }
    rm_session_observed(s, begin_ns, REMAT_EVENT_GRADIENTS);
    return REMAT_OK;
}

remat_status remat_gradients(remat_session *s, remat_step_result *result) {
    remat_step_result made = {0};
    NEED(s, "a session");
    TRY(gradients(s, -1, &made));
    if (result) *result = made;
    return REMAT_OK;
}

/* Zeroes the output gradients, so that those of the last pass are not used again. The caller then writes all or
 * parts of them. External ones are not zeroed, because only the caller writes them. */
static void begin_output_gradients(const remat_session *s) {
    for (int i = 0; i < s->chain.n_differentiated; i++) {
        rm_session_array *array = &s->array[REMAT_OUTPUT_GRADIENT][i];
        if (array->where.space == RM_EXTERNAL) continue;
        s->api->fill(s->runner.queue, rm_session_address(s, array), 0, (uint64_t)array->held * sizeof(float));
        array->missing = !array->shown;
    }
}

remat_status remat_forward(remat_session *s) {
    NEED(s, "a session");
    TRY(check_runs(s, false));
    REQUIRE(
        s->parts.n == 1, INVALID,
        "the %d micro steps of this pipeline's update are in flight together; call remat_gradients for each instead "
        "of remat_forward and remat_backward",
        s->parts.n);
    uint64_t begin_ns = rm_observe(&s->runner.observer);
    TRY(forward_half(s));
    begin_output_gradients(s);
    s->handed_out = true;
    TRY(s->api->synchronize(s->runner.queue));
    rm_session_observed(s, begin_ns, REMAT_EVENT_GRADIENTS);
    return REMAT_OK;
}

remat_status remat_backward(remat_session *s, remat_step_result *result) {
    remat_step_result made = {0};
    NEED(s, "a session");
    TRY(check_runs(s, true));
    REQUIRE(
        rm_session_can_continue(s), INVALID,
        "there is no forward pass to continue; call remat_forward before remat_backward, and between them run no other "
        "pass or update, and write no inputs, parameters, outputs or carried states");
    for (int i = 0; i < s->chain.n_differentiated && rm_session_is_real(s); i++)
        REQUIRE(!s->array[REMAT_OUTPUT_GRADIENT][i].missing &&
                    rm_session_address(s, &s->array[REMAT_OUTPUT_GRADIENT][i]),
                INVALID,
                "the gradient of output %d has not been written since remat_forward; write it before remat_backward, "
                "with zeros if there is none",
                i);
    const char *changed = rm_session_changed_since(s);
    s->ran_forward &= !changed;
    REQUIRE(
        !changed, INVALID,
        "the parameter %s has changed since the forward pass, whose gradients need its old values; call remat_forward "
        "again",
        changed);
    uint64_t begin_ns = rm_observe(&s->runner.observer);
    TRY(finish_gradients(s, -1, &made));
    rm_session_observed(s, begin_ns, REMAT_EVENT_GRADIENTS);
    if (result) *result = made;
    return REMAT_OK;
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

static remat_status update_as_they_arrive(remat_session *s, double lr, remat_step_result *result) {
    uint64_t begin_ns = rm_observe(&s->runner.observer);
    rm_session_begin_update(s, lr);
    for (int32_t b = 0; b < s->chain.at.buckets.n; b++) {
        TRY(rm_session_take_bucket(s, b));
        rm_session_measure_bucket(s, b);
        TRY(rm_session_update_bucket(s, b));
    }
    TRY(rm_session_end_update(s, lr));
    remat_status status = sum_up(s, result);
    rm_session_observed(s, begin_ns, REMAT_EVENT_UPDATE);
    return status;
}

static remat_status fused_step(remat_session *s, double lr, remat_step_result *result) {
    uint64_t begin_ns = rm_observe(&s->runner.observer);
    TRY(begin_gradients(s));
    TRY(add_gradients(s, lr, result));
    rm_session_observed(s, begin_ns, REMAT_EVENT_GRADIENTS);
    remat_status status = update_as_they_arrive(s, lr, result);
    s->n_made = 0;
    return status ? status : rm_session_explain_loss(s, result->loss);
}

/* An update that is refused leaves a result, but no step whose loss or gradients failed. */
static remat_status step(remat_session *s, double lr, remat_step_result *result) {
    remat_step_result made = {0};
    bool fused = rm_session_is_fused(s);
    TRY(fused ? fused_step(s, lr, &made) : gradients(s, lr, &made));
    *result = made;
    return fused ? REMAT_OK : rm_session_update(s, lr);
}

remat_status remat_step(remat_session *s, double lr, remat_step_result *result) {
    remat_step_result made = {0};
    NEED(s, "a session");
    REQUIRE(s->optimizer, INVALID, "this session has no optimizer; name one in the config");
    REQUIRE(s->micro_steps == 1, INVALID,
            "this session's updates have %d micro steps; call %s for each, then remat_update", s->micro_steps,
            rm_session_pass_text(s));
    REQUIRE(lr >= 0 && isfinite(lr), INVALID, "the learning rate is %g; use a finite number of at least 0", lr);
    return step(s, lr, result ? result : &made);
}

remat_status remat_evaluate(remat_session *s, remat_step_result *result) {
    remat_step_result made = {0};
    NEED(s, "a session");
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it cannot run");
    REQUIRE(!s->parts.ahead, INVALID,
            "%d of %d micro steps of an update are in flight; call remat_gradients for the others before "
            "remat_evaluate",
            s->parts.ahead, s->parts.n);
    TRY(rm_session_check_fork(s));
    TRY(rm_session_check_arrays(s, false));
    uint64_t begin_ns = rm_observe(&s->runner.observer);
    TRY(begin_pass(s, false));
    TRY(rm_run(&s->runner, &s->chain.evaluation, &s->evaluation, RM_WHOLE_PLAN));
    TRY(end_pass(s, false, &made));
    rm_session_observed(s, begin_ns, REMAT_EVENT_EVALUATION);
    s->evaluated = true;
    if (result) *result = made;
    return REMAT_OK;
}

remat_status remat_set_dropout(remat_session *s, int64_t sample) {
    NEED(s, "a session");
    s->runner.dropout_sample = sample < 0 ? -1 : sample;
    return REMAT_OK;
}

/* ---- Step count ----------------------------------------------------------------------------------------------- */

int64_t remat_step_count(const remat_session *s) {
    return s ? (int64_t)rm_session_trainer((remat_session *)s)->runner.updates : 0;
}
void remat_set_step_count(remat_session *s, int64_t steps) {
    if (!s) return;
    remat_session *trainer = rm_session_trainer(s);
    trainer->runner.updates = (uint64_t)steps;
    s->ran_forward = trainer->ran_forward = false;
}
double remat_last_lr(const remat_session *s) { return s ? rm_session_trainer((remat_session *)s)->last_lr : 0; }
void remat_set_last_lr(remat_session *s, double lr) {
    if (s) rm_session_trainer(s)->last_lr = lr;
}
