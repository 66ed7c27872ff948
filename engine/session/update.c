/* update.c: the part of an update that follows the last backward pass: waiting for the sums of buckets over ranks, the
 * norm, the optimizer, and, if its state is sharded, exchanging parameters. Main entry: remat_update. step.c calls the
 * other functions if buckets are updated as they arrive. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/session/session.h"
#include "memory/host.h"

static bool is_sharded(const remat_session *s) { return s->chain.at.buckets.parts > 1; }

static bool is_updated(const remat_session *s, int32_t param) {
    const rm_parameter *p = &s->chain.at.buckets.param[param];
    return p->used && !p->held_back;
}

/* ---- Buckets -------------------------------------------------------------------------------------------------- */

int64_t remat_bucket_count(const remat_session *s) { return s ? s->chain.at.buckets.n : 0; }

remat_bucket rm_bucket_at(const remat_session *s, int64_t index) {
    bool there = index >= 0 && index < remat_bucket_count(s);
    return there ? s->bucket[index] : (remat_bucket){.index = -1};
}

remat_status remat_bucket_info(remat_session *s, int64_t index, remat_bucket *out) {
    NEED(s, "a session");
    NEED(out, "a place for the result");
    REQUIRE(index >= 0 && index < remat_bucket_count(s), INVALID, "there is no bucket %lld; there are %lld",
            (long long)index, (long long)remat_bucket_count(s));
    *out = s->bucket[index];
    for (int64_t i = 0; i < s->n_arrays[REMAT_PARAM]; i++)
        rm_session_owned(&s->array[REMAT_PARAM][i])->shown = true; /* the program may write there without a call */
    return REMAT_OK;
}

remat_status rm_session_hand_over(const remat_session *s, int64_t index, remat_bucket *bucket) {
    *bucket = s->bucket[index];
    if (!s->ready) return s->api->synchronize(s->runner.queue);
    return s->api->hand_over(s->runner.queue, s->ready[index], &bucket->ready);
}

uint64_t rm_session_sums_bytes(const remat_session *s) {
    uint64_t params = (uint64_t)s->chain.at.buckets.n_params;
    return (uint64_t)rm_session_exchange_count(s) * sizeof *s->shard_loss +
           (uint64_t)s->ranks.size * (uint64_t)s->micro_steps * sizeof *s->shard_count +
           (uint64_t)s->chain.at.buckets.n * sizeof *s->bucket +
           params * (sizeof *s->squares + RM_MAX_OPTIMIZER_SUMS * sizeof *s->sums);
}

/* ---- Arguments of the optimizer ------------------------------------------------------------------------------- */

/* This rank's part of a parameter. */
typedef struct {
    float *parameter;
    float *gradient;
    float *state[RM_MAX_OPTIMIZER_STATE];
    int64_t count;
} held;

static held held_of(const remat_session *s, int32_t param) {
    const rm_residents *at = &s->chain.at;
    const rm_parameter *p = &at->buckets.param[param];
    const rm_runner *r = &s->runner;
    held h = {.parameter = (float *)rm_run_address(r, &at->value[p->value]) + p->first,
              .gradient = (float *)rm_run_address(r, &at->gradient[p->value]) + p->first,
              .count = p->held};
    int n_state = s->optimizer ? s->optimizer->states_used(&s->update) : 0;
    for (int k = 0; k < n_state; k++)
        h.state[k] = rm_run_address(r, &at->optimizer_state[param * RM_MAX_OPTIMIZER_STATE + k]);
    return h;
}

static rm_update update_of(const remat_session *s, int32_t param) {
    rm_update update = s->update;
    int32_t rank = s->graph->value[s->chain.at.buckets.param[param].value].desc.rank;
    update.lr *= s->chain.at.buckets.param[param].lr_factor;
    update.weight_decay = s->chain.at.buckets.param[param].weight_decay;
    update.adapt = rank >= 2 || s->adapt_vectors;
    for (int k = 0; k < RM_MAX_OPTIMIZER_SUMS; k++) update.sum[k] = s->sums[param * RM_MAX_OPTIMIZER_SUMS + k];
    return update;
}

static void measure(remat_session *s, int32_t param) {
    double *sum = &s->sums[param * RM_MAX_OPTIMIZER_SUMS];
    for (int k = 0; k < RM_MAX_OPTIMIZER_SUMS; k++) sum[k] = 0;
    if (!is_updated(s, param)) return;
    held h = held_of(s, param);
    rm_update update = update_of(s, param);
    s->api->measure(s->runner.queue, s->optimizer, &update, h.count, h.parameter, h.gradient, h.state, sum);
}

static remat_status measure_all(remat_session *s) {
    int32_t n = s->chain.at.buckets.n_params;
    for (int32_t i = 0; i < n; i++) measure(s, i);
    return is_sharded(s) ? s->ranks.sum(s->ranks.context, s->sums, (int64_t)n * RM_MAX_OPTIMIZER_SUMS) : REMAT_OK;
}

/* ---- Bucket by bucket ----------------------------------------------------------------------------------------- */

remat_status rm_session_take_bucket(remat_session *s, int32_t index) {
    const rm_buckets *buckets = &s->chain.at.buckets;
    const rm_bucket *bucket = &buckets->item[index];
    if (s->ranks.wait) TRY(s->ranks.wait(s->ranks.context, &s->bucket[index]));
    for (int32_t k = 0; k < bucket->n_params; k++) {
        int32_t param = buckets->order[bucket->first_param + k];
        held h = held_of(s, param);
        bool counts = is_updated(s, param);
        if (s->weighs && s->correction != 1) rm_run_scale(&s->runner, h.gradient, s->correction, h.count);
        s->squares[param] = counts ? s->api->sum_of_squares(s->runner.queue, h.gradient, h.count) : 0;
    }
    return REMAT_OK;
}

/* Parameters are added in order of definition; the order within each depends only on its length. */
remat_status rm_session_gradient_norm(remat_session *s) {
    double sum = 0;
    for (int32_t i = 0; i < s->chain.at.buckets.n_params; i++)
        if (rm_is_elsewhere(&s->chain.at.value[s->chain.at.buckets.param[i].value])) s->squares[i] = 0;
    TRY(rm_session_sum_over_pipeline(s, s->squares, s->chain.at.buckets.n_params));
    for (int32_t i = 0; i < s->chain.at.buckets.n_params; i++) sum += s->squares[i];
    if (is_sharded(s)) TRY(s->ranks.sum(s->ranks.context, &sum, 1));
    s->grad_norm = sqrt(sum);
    return REMAT_OK;
}

void rm_session_measure_bucket(remat_session *s, int32_t index) {
    const rm_buckets *buckets = &s->chain.at.buckets;
    const rm_bucket *bucket = &buckets->item[index];
    for (int32_t k = 0; k < bucket->n_params && s->optimizer->measure; k++)
        measure(s, buckets->order[bucket->first_param + k]);
}

remat_status rm_session_update_bucket(remat_session *s, int32_t index) {
    const rm_buckets *buckets = &s->chain.at.buckets;
    const rm_bucket *bucket = &buckets->item[index];
    for (int32_t k = 0; k < bucket->n_params; k++) {
        int32_t param = buckets->order[bucket->first_param + k];
        if (!is_updated(s, param)) continue;
        held h = held_of(s, param);
        rm_update update = update_of(s, param);
        s->api->update(s->runner.queue, s->optimizer, &update, h.count, h.parameter, h.gradient, h.state);
    }
    if (!is_sharded(s)) return REMAT_OK;
    remat_bucket shown;
    TRY(rm_session_hand_over(s, index, &shown));
    return s->ranks.gather(s->ranks.context, &shown);
}

static remat_status wait_for_parts(remat_session *s) {
    for (int32_t b = 0; b < s->chain.at.buckets.n && is_sharded(s); b++)
        TRY(s->ranks.gathered(s->ranks.context, &s->bucket[b]));
    return REMAT_OK;
}

/* ---- What is updated ------------------------------------------------------------------------------------------- */

static const char *name_of(const remat_session *s, const rm_parameter *p) { return s->graph->value[p->value].name; }

remat_status remat_train_only(remat_session *s, const char *names) {
    NEED(s, "a session");
    REQUIRE(!s->inference, INVALID, "this session was made for inference; it trains nothing");
    const rm_buckets *b = &s->chain.at.buckets;
    bool any = !names;
    if (names) TRY(rm_graph_check_beginnings(s->graph, names));
    for (int32_t i = 0; i < b->n_params && names; i++)
        any |= b->param[i].used && rm_begins_like_one(name_of(s, &b->param[i]), names);
    REQUIRE(any, INVALID,
            "this session cannot train any parameter of \"%s\": the loss does not depend on them, or {train_only} left "
            "them out; name others, or create a session that trains them",
            names);
    for (int32_t i = 0; i < b->n_params; i++)
        b->param[i].held_back = names && !rm_begins_like_one(name_of(s, &b->param[i]), names);
    s->n_made = 0;
    return REMAT_OK;
}

/* Of an update, the number is that of the updates before it. */
void rm_session_observed(const remat_session *s, uint64_t begin_ns, remat_event_kind kind) {
    int64_t updates = (int64_t)s->runner.updates - (kind == REMAT_EVENT_UPDATE);
    rm_observed(&s->runner.observer, begin_ns, (remat_event){.kind = kind, .number = updates});
}

/* ---- One update ----------------------------------------------------------------------------------------------- */

/* Clipping needs the norm of all gradients before the first update, and a sharded optimizer with `measure` the sums of
 * all parts; both prevent updating buckets as they arrive. */
bool rm_session_is_fused(const remat_session *s) {
    return s->ranks.fused_update && s->clip_grad_norm == 0 && s->micro_steps == 1 &&
           !(s->optimizer->measure && is_sharded(s));
}

/* The scale of PyTorch's clip_grad_norm_. */
void rm_session_begin_update(remat_session *s, double lr) {
    rm_session_read_counters(s);
    rm_session_find_shared(s);
    double scale = s->clip_grad_norm > 0 ? s->clip_grad_norm / (s->grad_norm + 1e-6) : 1;
    s->update.gradient_scale = scale < 1 ? scale : 1;
    s->update.lr = lr;
    s->update.step = (int64_t)s->runner.updates + 1;
    s->update.momentum_factor = s->momentum_correction && s->last_lr > 0 ? lr / s->last_lr : 1;
}

remat_status rm_session_end_update(remat_session *s, double lr) {
    TRY(wait_for_parts(s));
    TRY(s->api->synchronize(s->runner.queue));
    rm_session_root(s)->parameters_version++;
    s->ran_forward = false;
    remat_session *trainer = rm_session_trainer(s);
    trainer->last_lr = s->last_lr = lr;
    trainer->runner.updates = ++s->runner.updates;
    return REMAT_OK;
}

/* The norm is the same on all ranks, and so is the answer. Squares of floats cannot overflow it. */
static remat_status check_norm(remat_session *s) {
    if (isfinite(s->grad_norm)) return REMAT_OK;
    s->n_made = 0;
    FAIL(INVALID,
         "the norm of the gradients is %g, so no parameter was updated: training has diverged, or there are huge "
         "numbers "
         "in the inputs; reduce the learning rate, set {clip_grad_norm}, or check the data",
         s->grad_norm);
}

remat_status rm_session_update(remat_session *s, double lr) {
    TRY(check_norm(s));
    uint64_t begin_ns = rm_observe(&s->runner.observer);
    s->n_made = 0;
    rm_session_begin_update(s, lr);
    if (s->optimizer->measure) TRY(measure_all(s));
    for (int32_t b = 0; b < s->chain.at.buckets.n; b++) TRY(rm_session_update_bucket(s, b));
    TRY(rm_session_end_update(s, lr));
    rm_session_observed(s, begin_ns, REMAT_EVENT_UPDATE);
    return REMAT_OK;
}

/* Sets only the norm of the result. */
remat_status remat_update(remat_session *s, double lr, remat_step_result *result) {
    NEED(s, "a session");
    REQUIRE(s->optimizer, INVALID, "this session has no optimizer; name one in the config");
    REQUIRE(rm_session_has_gradients(s) || s->micro_steps > 1, INVALID,
            "there are no gradients yet; call %s before remat_update", rm_session_pass_text(s));
    REQUIRE(rm_session_has_gradients(s), INVALID,
            "%d of %d micro steps have run; call %s %d more times before remat_update", s->n_made, s->micro_steps,
            rm_session_pass_text(s), s->micro_steps - s->n_made);
    REQUIRE(lr >= 0 && isfinite(lr), INVALID, "the learning rate is %g; use a finite number of at least 0", lr);
    TRY(rm_session_check_fork(s));
    if (result) result->grad_norm = s->grad_norm;
    return rm_session_update(s, lr);
}
