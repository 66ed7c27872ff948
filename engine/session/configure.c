/* configure.c: checks a session's config and copies it into the session: device and threads, policy, ranks and micro
 * steps, optimizer. create.c does the rest. Main entry: rm_session_configure. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/session/session.h"
#include "memory/processors.h"
#include "ops/math/parallel.h"

/* ---- Configuration -------------------------------------------------------------------------------------------- */

/* For messages that list names: "none, segments, sqrt". */
static void append_name(char *list, size_t size, const char *name) {
    size_t length = strlen(list);
    snprintf(list + length, size - length, "%s%s", length ? ", " : "", name);
}

/* OpenMP does not know about container quotas. A number of threads that the user or the program set takes
 * precedence. */
int rm_default_threads(void) {
    const char *variable = getenv("OMP_NUM_THREADS");
    int of_openmp = omp_get_max_threads(), usable = rm_processors_get()->usable;
    if ((variable && *variable) || of_openmp != omp_get_num_procs()) return of_openmp;
    return usable < of_openmp ? usable : of_openmp;
}

static remat_status set_up_devices(remat_session *s, const remat_config *config) {
    s->api = rm_device_find(config->device ? config->device : "cpu");
    REQUIRE(s->api, MISSING, "this build has no device \"%s\"; it has: %s%s", config->device,
            rm_build_info_of_this().devices, rm_device_remedy(config->device));
    REQUIRE(config->threads >= 0 && config->threads <= 4096, INVALID, "threads is %d; use 1 to 4096, or 0 for all",
            config->threads);
    s->threads = config->threads ? config->threads : rm_default_threads();
    TRY(s->api->open(s->threads, &s->device));
    TRY(rm_device_set_precision(s->api, s->device, config->precision, &s->precision));
    return rm_device_choose_cells(s->api, s->device, config->rnn_kernels, &s->cudnn);
}

static remat_status set_up_policy(remat_session *s, const remat_config *config) {
    s->strategy = rm_strategy_find(config->strategy ? config->strategy : "none");
    char known[128] = "";
    for (int i = 0; i < rm_n_strategies; i++) append_name(known, sizeof known, rm_strategies[i]->name);
    REQUIRE(s->strategy, INVALID, "there is no strategy \"%s\"; there are: %s", config->strategy, known);
    REQUIRE(config->tile >= 0, INVALID, "tile is %lld; use at least 1, or 0 to let the shapes decide",
            (long long)config->tile);
    REQUIRE(config->carry_stride >= 0 && (!config->carry_stride || config->stateful), INVALID,
            "{carry_stride} is %lld; use at least 1 in a stateful session, and 0 in others",
            (long long)config->carry_stride);
    static const char *const ways[] = {"auto", "exact-only", "off"};
    const char *way = config->recompute ? config->recompute : "auto";
    while (s->recompute <= RM_RECOMPUTE_OFF && strcmp(ways[s->recompute], way)) s->recompute++;
    REQUIRE(s->recompute <= RM_RECOMPUTE_OFF, INVALID, "{recompute} is \"%s\"; it can be auto, exact-only or off", way);
    s->segments_requested = config->segments;
    s->memory_budget = config->memory_budget;
    s->plan_only = config->plan_only;
    s->inference = config->inference;
    s->stateful = config->stateful;
    s->verify_recompute = config->verify_recompute && !config->inference && rm_session_is_real(s);
    REQUIRE(
        !s->verify_recompute || s->api->compare || s->api->reachable, MISSING,
        "{verify_recompute} compares states in device memory, which the device \"%s\" cannot do and the host cannot "
        "read; use the device cpu",
        s->api->name);
    s->clip_grad_norm = config->clip_grad_norm;
    REQUIRE(config->clip_grad_norm >= 0, INVALID, "{clip_grad_norm} is %g; use a positive norm, or 0 for none",
            config->clip_grad_norm);
    return REMAT_OK;
}

static remat_status set_up_optimizer(remat_session *s, const remat_config *config) {
    s->update = (rm_update){.momentum = config->momentum,
                            .beta1 = config->beta1,
                            .beta2 = config->beta2,
                            .alpha = config->alpha,
                            .gradient_limit = config->clip_grad_value,
                            .epsilon = config->epsilon,
                            .weight_decay = config->weight_decay,
                            .nesterov = config->nesterov,
                            .trust_coefficient = config->trust_coefficient,
                            .norm_limit = config->norm_limit,
                            .threads = s->threads};
    s->momentum_correction = config->momentum_correction;
    s->adapt_vectors = config->adapt_vectors;
    s->decay_vectors = config->decay_vectors;
    if (!config->optimizer || config->inference) return REMAT_OK;
    s->optimizer = rm_optimizer_find(config->optimizer);
    char known[128] = "";
    for (int i = 0; i < rm_n_optimizers; i++) append_name(known, sizeof known, rm_optimizers[i]->name);
    REQUIRE(s->optimizer, INVALID, "there is no optimizer \"%s\"; there are: %s", config->optimizer, known);
    REQUIRE(config->momentum >= 0 && config->momentum < 1, INVALID, "{momentum} is %g; use 0 to below 1",
            config->momentum);
    REQUIRE(!config->nesterov || config->momentum > 0, INVALID, "{nesterov} needs a momentum above 0");
    REQUIRE(config->beta1 >= 0 && config->beta1 < 1 && config->beta2 >= 0 && config->beta2 < 1, INVALID,
            "beta1 and beta2 are %g and %g; use 0 to below 1", config->beta1, config->beta2);
    REQUIRE(config->alpha >= 0 && config->alpha < 1, INVALID, "alpha is %g; use 0 to below 1", config->alpha);
    REQUIRE(config->clip_grad_value >= 0, INVALID, "{clip_grad_value} is %g; use a positive number, or 0 for none",
            config->clip_grad_value);
    REQUIRE(!config->clip_grad_value || !config->clip_grad_norm, INVALID,
            "{clip_grad_norm} and {clip_grad_value} cannot be combined; use one");
    REQUIRE(!config->clip_grad_value || !s->optimizer->measure, INVALID,
            "{clip_grad_value} cannot be used with %s, which uses the norms of whole gradients; use {clip_grad_norm}",
            s->optimizer->name);
    REQUIRE(config->epsilon >= 0 && config->weight_decay >= 0, INVALID,
            "epsilon and weight_decay are %g and %g; neither may be negative", config->epsilon, config->weight_decay);
    REQUIRE(config->trust_coefficient >= 0 && config->norm_limit >= 0, INVALID,
            "{trust_coefficient} and {norm_limit} are %g and %g; neither may be negative", config->trust_coefficient,
            config->norm_limit);
    return REMAT_OK;
}

/* ---- Ranks and micro steps ------------------------------------------------------------------------------------ */

static bool power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

static remat_status check_deterministic_world(const remat_session *s) {
    if (!s->deterministic_world) return REMAT_OK;
    REQUIRE(power_of_two(s->ranks.size) && power_of_two(s->micro_steps), INVALID,
            "{deterministic_world} needs powers of two, but there are %d ranks and %d micro steps", s->ranks.size,
            s->micro_steps);
    REQUIRE(s->ranks.weight == 1, INVALID,
            "{deterministic_world} needs batches of the same size on all ranks, but this rank's weight is %g, not 1",
            s->ranks.weight);
    REQUIRE(!s->stateful || s->micro_steps == 1, INVALID,
            "a stateful session carries its states from one micro step to the next, but with {deterministic_world} "
            "these contain different samples; use one micro step");
    return REMAT_OK;
}

static remat_status check_slots(const remat_session *s) {
    const remat_ranks *r = &s->ranks;
    const char *needed = s->api->reachable || !rm_session_is_real(s) ? "cpu" : s->api->name;
    REQUIRE(!strcmp(r->device ? r->device : "cpu", needed), MISSING,
            "remat_ranks sums gradients in memory of the device \"%s\", but this session's are in memory of \"%s\"; "
            "use the "
            "same device for both",
            r->device ? r->device : "cpu", s->api->name);
    REQUIRE(r->reduce && r->wait && r->sum, INVALID, "remat_ranks lacks one of reduce, wait and sum");
    REQUIRE(!r->shard_optimizer || (r->gather && r->gathered), INVALID,
            "remat_ranks shards the optimizer, but lacks gather or gathered");
    REQUIRE(rm_session_is_real(s), MISSING,
            "the device \"%s\" does not compute gradients that ranks could sum; set plan_only to plan for it",
            s->api->name);
    return REMAT_OK;
}

/* A session that only plans or evaluates is laid out for the number of ranks, but never calls their functions. */
static remat_status set_up_ranks(remat_session *s, const remat_config *config) {
    remat_ranks *r = &s->ranks;
    *r = (remat_ranks){.size = 1};
    if (config->ranks) TRY(rm_take(r, sizeof *r, config->ranks, "remat_ranks"));
    if (r->weight == 0) r->weight = 1;
    s->deterministic_world = config->deterministic_world;
    s->micro_steps = config->micro_steps ? config->micro_steps : 1;
    REQUIRE(r->size >= 1 && r->rank >= 0 && r->rank < r->size, INVALID, "rank %d of %d: ranks are numbered from 0",
            r->rank, r->size);
    REQUIRE(r->weight > 0 && isfinite(r->weight), INVALID, "this rank's weight is %g; it must be above 0", r->weight);
    REQUIRE(s->micro_steps >= 1 && (int64_t)s->micro_steps * r->size < 1 << 24, INVALID,
            "%d micro steps on %d ranks: use at least 1, and a total of fewer than %d", s->micro_steps, r->size,
            1 << 24);
    TRY(check_deterministic_world(s));
    bool runs = config->ranks && !s->plan_only && !s->inference;
    if (runs) return check_slots(s);
    r->agree = NULL, r->map = NULL, r->unmap = NULL, r->prepare = NULL,
    r->reduce = r->wait = r->gather = r->gathered = NULL;
    r->sum = NULL, r->poll = NULL;
    return REMAT_OK;
}

/* ---- Defaults --------------------------------------------------------------------------------------------------- */

/* Writes the members that the caller's version of the struct has. */
remat_status remat_config_defaults(remat_config *config) {
    NEED(config, "a config");
    const remat_config defaults = REMAT_CONFIG_INIT;
    size_t bytes;
    TRY(rm_struct_bytes(config, &bytes, "remat_config"));
    memset(config, 0, bytes);
    memcpy(config, &defaults, bytes < sizeof defaults ? bytes : sizeof defaults);
    config->struct_bytes = bytes;
    return REMAT_OK;
}

int64_t remat_micro_shard(int64_t t, int64_t micro_steps, bool deterministic_world) {
    int64_t reversed = 0;
    for (int64_t bit = 1; bit < micro_steps; bit *= 2) reversed = reversed * 2 + ((t & bit) != 0);
    return deterministic_world ? reversed : t;
}

remat_status rm_session_check_fork(const remat_session *s) {
    REQUIRE(
        s->threads < 2 || s->plan_only || s->api != &rm_device_cpu || !rm_parallel_lost_team(), INVALID,
        "this process was forked from one that had computed on several threads, and a fork copies none of them: start "
        "it with exec, as `remat launch` does, fork before the first step, or set {threads}=1");
    return REMAT_OK;
}

remat_status rm_session_configure(remat_session *s, const remat_config *config) {
    TRY(set_up_devices(s, config));
    TRY(set_up_policy(s, config));
    TRY(rm_session_check_fork(s));
    TRY(set_up_ranks(s, config));
    TRY(rm_session_set_up_pipeline(s, config));
    return set_up_optimizer(s, config);
}
