/* measure.c: see measure.h. Runs passes and evaluates their times. measure_window.c has the window and its contents. */
#include "engine/times/measure_window.h"

#include <stdlib.h>

#include "memory/clock.h"
#include "memory/host.h"

enum { MOST_PASSES = 32, SEGMENT = 3, PROGRAMS = RM_WINDOW_PROGRAMS };

/* ---- Life ----------------------------------------------------------------------------------------------------- */

static remat_status set_up(rm_measure *m, uint64_t bytes) {
    const rm_chain *chain = m->config.chain;
    rm_runner *r = &m->runner;
    TRY(m->config.api->block_create(m->config.device, chain->at.bytes + bytes, &r->block));
    TRY(m->config.api->queue_create(m->config.device, &r->queue));
    for (int i = 0; i < RM_WINDOW_MARKS && m->config.api->timer_create; i++)
        TRY(m->config.api->timer_create(m->config.device, &m->timer[i]));
    r->resident = m->config.api->claim(r->block, 0, chain->at.bytes);
    r->piece = rm_calloc((size_t)chain->problem.n_pieces + 1, sizeof *r->piece);
    r->saved = rm_calloc((size_t)chain->n_stages + 1, sizeof *r->saved);
    REQUIRE(r->piece && r->saved, MEMORY, "out of memory for measuring %lld stages", (long long)chain->n_stages);
    float one = 1;
    m->config.api->copy_in(r->queue, r->resident + chain->at.one_offset, &one, sizeof one);
    rm_measure_fill_parameters(m);
    rm_run_packing(r, true);
    rm_run_tables(r, &chain->prologue);
    rm_run_packing(r, false);
    return m->config.api->synchronize(r->queue);
}

remat_status rm_measure_create(const rm_measure_config *config, const rm_measured_window *window, int64_t n,
                               rm_measure **out) {
    rm_measure *m = rm_calloc(1, sizeof *m);
    REQUIRE(m, MEMORY, "out of memory for measuring");
    m->config = *config;
    m->random = 1;
    m->runner = (rm_runner){.api = config->api,
                            .chain = config->chain,
                            .arena_offset = config->chain->at.bytes,
                            .external = config->external,
                            .training = true};
    uint64_t bytes = 0;
    for (int64_t i = 0; i < n; i++) bytes = rm_larger(bytes, rm_window_bytes(config->chain, &window[i]));
    remat_status status = set_up(m, bytes);
    if (status) {
        rm_measure_free(m);
        return status;
    }
    *out = m;
    return REMAT_OK;
}

void rm_measure_free(rm_measure *m) {
    if (!m) return;
    rm_free(m->runner.piece);
    rm_free(m->runner.saved);
    if (m->runner.queue) m->config.api->queue_free(m->runner.queue);
    for (int i = 0; i < RM_WINDOW_MARKS; i++)
        if (m->timer[i]) m->config.api->event_free(m->timer[i]);
    if (m->runner.block) m->config.api->block_free(m->runner.block);
    rm_free(m);
}

/* ---- Passes --------------------------------------------------------------------------------------------------- */

/* Disturbance of a run: none (every thread had a processor all the time; waiting threads spin), only of other threads, or of this thread,
 * too. Threads that sleep while they wait always look disturbed; then all samples count. So do all samples of a device's timers. */
enum { UNDISTURBED, PARTLY, DISTURBED, LEVELS };

/* samples[stage][program][pass] = LEVELS * nanoseconds + level. */
typedef uint64_t samples[PROGRAMS][MOST_PASSES];

/* A single thread can use its processor time. */
static uint64_t run_and_wait(rm_measure *m, int64_t stage, const rm_program *program) {
    uint64_t all = rm_clock_ns(CLOCK_PROCESS_CPUTIME_ID), own = rm_clock_ns(CLOCK_THREAD_CPUTIME_ID),
             start = rm_now_ns();
    rm_run_program(&m->runner, stage, program);
    rm_measure_settle(m);
    uint64_t took = rm_now_ns() - start, enough = took - took / 32;
    own = rm_clock_ns(CLOCK_THREAD_CPUTIME_ID) - own;
    all = rm_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - all;
    if (all >= enough * (uint64_t)m->config.threads) return LEVELS * took + UNDISTURBED;
    if (own >= enough) return LEVELS * took + PARTLY;
    bool alone = m->config.threads == 1 && m->config.api->kernels == REMAT_ON_CPU;
    return LEVELS * (alone ? own : took) + DISTURBED;
}

/* With an asynchronous queue, waiting between programs would add the latency of the first launch and the last completion to each. So
 * timers are recorded between programs, which follow one another as in a step. */
static void timed_run(rm_measure *m, int64_t stage, const rm_program *program, uint64_t *time) {
    if (!m->timer[0]) {
        *time = run_and_wait(m, stage, program);
        return;
    }
    m->time[m->marks] = time;
    m->config.api->event_record(m->runner.queue, m->timer[m->marks++]);
    rm_run_program(&m->runner, stage, program);
}

static void read_timers(rm_measure *m) {
    if (!m->timer[0]) return;
    m->config.api->event_record(m->runner.queue, m->timer[m->marks]);
    rm_measure_settle(m);
    for (int i = 0; i < m->marks && !m->failed; i++)
        *m->time[i] = LEVELS * m->config.api->between_ns(m->timer[i], m->timer[i + 1]) + DISTURBED;
    m->marks = 0;
}

/* Runs the stages first .. first+n-1 of the window forward with keeping, then backward. */
static void run_segment(rm_measure *m, const rm_measured_window *window, int64_t first, int64_t n, int k,
                        rm_stage_times *times) {
    const rm_chain *chain = m->config.chain;
    for (int64_t i = first; i < first + n; i++) {
        const rm_stage_kind *class = rm_stage_kind_of(chain, window->first + i);
        if (k < class->n_options) timed_run(m, window->first + i, &class->option[k].forward, &times[i].forward[k]);
    }
    for (int64_t i = first + n - 1; i >= first; i--) {
        const rm_stage_kind *class = rm_stage_kind_of(chain, window->first + i);
        if (k < class->n_options) timed_run(m, window->first + i, &class->option[k].backward, &times[i].backward[k]);
    }
}

static void run_pass(rm_measure *m, const rm_measured_window *window, rm_stage_times *times) {
    const rm_chain *chain = m->config.chain;
    for (int64_t i = 0; i < window->count; i++)
        timed_run(m, window->first + i, &rm_stage_kind_of(chain, window->first + i)->drop, &times[i].drop);
    for (int k = 0; k < RM_MAX_OPTIONS; k++)
        for (int64_t end = window->count; end > 0 && (window->options >> k & 1); end -= SEGMENT)
            run_segment(m, window, end > SEGMENT ? end - SEGMENT : 0, end > SEGMENT ? SEGMENT : end, k, times);
    read_timers(m);
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t median(uint64_t *sample, int n) {
    qsort(sample, (size_t)n, sizeof *sample, ascending);
    return n % 2 ? sample[n / 2] : (sample[n / 2 - 1] + sample[n / 2]) / 2;
}

/* The median of the least disturbed samples if there are three, otherwise also of the next level. */
static uint64_t median_undisturbed(const uint64_t *sample, int n) {
    uint64_t chosen[MOST_PASSES];
    int kept = 0;
    for (uint64_t level = UNDISTURBED; level < LEVELS && kept < 3; level++)
        for (int i = 0; i < n; i++)
            if (sample[i] % LEVELS == level) chosen[kept++] = sample[i] / LEVELS;
    return median(chosen, kept);
}

/* The first pass warms up and counts only if there is no time for another. The second does, too, if the device has timers: it records the
 * graphs that later passes launch (engine/cuda/graph.c), which takes the host's time. */
static int collect(rm_measure *m, const rm_measured_window *window, double seconds, samples *sample) {
    uint64_t start = rm_now_ns();
    int n = 0, uncounted = m->timer[0] ? 2 : 1;
    for (int pass = 0; pass < MOST_PASSES + uncounted && !m->failed; pass++) {
        rm_stage_times times[RM_WINDOW_MOST] = {0};
        run_pass(m, window, times);
        n = pass < uncounted ? 1 : pass - uncounted + 1;
        for (int64_t i = 0; i < window->count; i++)
            for (int p = 0; p < PROGRAMS; p++) sample[i][p][n - 1] = ((const uint64_t *)&times[i])[p];
        double spent = 1e-9 * (double)(rm_now_ns() - start);
        if (spent + spent / (pass + 1) > seconds) break;
    }
    return n;
}

remat_status rm_measure_window(rm_measure *m, const rm_measured_window *window, double seconds, rm_stage_times *times) {
    samples *sample = rm_calloc((size_t)window->count, sizeof *sample);
    REQUIRE(sample, MEMORY, "out of memory for the measurements");
    rm_measure_enter(m, window);
    int n = collect(m, window, seconds, sample);
    for (int64_t i = 0; i < window->count && !m->failed; i++)
        for (int p = 0; p < PROGRAMS; p++) ((uint64_t *)&times[i])[p] = median_undisturbed(sample[i][p], n);
    rm_measure_leave(m, window);
    rm_free(sample);
    rm_measure_settle(m);
    return m->failed;
}

/* ---- Beside transfers ----------------------------------------------------------------------------------------- */

/* A pass that moves blocks, or moves none (tier NULL). */
typedef struct {
    rm_second_tier *tier;
    int option;
    uint64_t stride; /* between copies in the tier */
    uint64_t compute_ns, wait_ns, bytes;
} moving_pass;

static void give_block(rm_measure *m, moving_pass *pass, int64_t stage, bool save) {
    const rm_stage_kind *class = rm_stage_kind_of(m->config.chain, stage);
    if (!pass->tier || pass->option >= class->n_options || !class->option[pass->option].saved_bytes) return;
    uint64_t bytes = rm_align_up(class->option[pass->option].saved_bytes);
    rm_part part = {.address = m->runner.saved[stage], .bytes = bytes, .left = bytes};
    part.at = pass->stride * (uint64_t)(stage % RM_WINDOW_MOST);
    (save ? m->config.api->tier_save : m->config.api->tier_load)(m->runner.queue, pass->tier, &part);
    pass->bytes += bytes;
}

static remat_status wait_for_blocks(rm_measure *m, moving_pass *pass) {
    uint64_t start = rm_now_ns();
    if (!pass->tier) return REMAT_OK;
    TRY(m->config.api->tier_wait(m->runner.queue, pass->tier, m->config.api->tier_given(pass->tier)));
    TRY(m->config.api->synchronize(m->runner.queue)); /* the queue may wait instead of this thread */
    pass->wait_ns += rm_now_ns() - start;
    return REMAT_OK;
}

/* A single thread can use its processor time, whatever else runs. */
static uint64_t computing_ns(const rm_measure *m) {
    bool alone = m->config.threads == 1 && m->config.api->kernels == REMAT_ON_CPU;
    return rm_clock_ns(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
}

static const rm_kind_option *option_of(const rm_measure *m, const moving_pass *pass, int64_t stage) {
    const rm_stage_kind *class = rm_stage_kind_of(m->config.chain, stage);
    return &class->option[pass->option < class->n_options ? pass->option : 0];
}

/* Saves a block while later stages run forward, when nothing writes to it. Loads it back after its last use. */
static remat_status run_moving_pass(rm_measure *m, const rm_measured_window *window, moving_pass *pass) {
    int64_t end = window->first + window->count;
    uint64_t start = computing_ns(m);
    for (int64_t s = window->first; s < end; s++) {
        rm_run_program(&m->runner, s, &option_of(m, pass, s)->forward);
        give_block(m, pass, s, true);
    }
    TRY(m->config.api->synchronize(m->runner.queue));
    pass->compute_ns = computing_ns(m) - start;
    TRY(wait_for_blocks(m, pass));
    start = computing_ns(m);
    for (int64_t s = end - 1; s >= window->first; s--) {
        rm_run_program(&m->runner, s, &option_of(m, pass, s)->backward);
        give_block(m, pass, s, false);
    }
    TRY(m->config.api->synchronize(m->runner.queue));
    pass->compute_ns += computing_ns(m) - start;
    return wait_for_blocks(m, pass);
}

/* The share of moving that overlapped with computation: its time by the tier's rates, minus the time waited. */
static double share_beside(const moving_pass *pass, const rm_tier *tier) {
    double half = (double)pass->bytes / 2;
    double takes = 1e9 * (half / (double)tier->save_bytes_per_s + half / (double)tier->load_bytes_per_s);
    double share = 1 - (double)pass->wait_ns / (takes + 1);
    return share < 0.2 ? 0.2 : share;
}

/* Compares lower quartiles, because other programs only add time. A difference that noise could explain counts as none. */
static double difference(uint64_t *with, uint64_t *without, int n) {
    qsort(with, (size_t)n, sizeof *with, ascending);
    qsort(without, (size_t)n, sizeof *without, ascending);
    double noise = (double)without[n / 2] - (double)without[n / 4];
    double more = (double)with[n / 4] - (double)without[n / 4];
    return more > 2 * noise ? more : 0;
}

static remat_status compare_passes(rm_measure *m, const rm_measured_window *window, moving_pass moving,
                                   const rm_tier *tier, double seconds, double *cost) {
    uint64_t with[MOST_PASSES], without[MOST_PASSES], begin = rm_now_ns();
    double mib = 0;
    int n = 0;
    for (int pass = 0; pass <= MOST_PASSES; pass++) {
        moving_pass still = {.option = moving.option}, one = moving;
        TRY(run_moving_pass(m, window, &still));
        TRY(run_moving_pass(m, window, &one));
        n = pass ? pass : 1;
        without[n - 1] = still.compute_ns;
        with[n - 1] = one.compute_ns;
        mib = (double)one.bytes / (1 << 20) * share_beside(&one, tier);
        double spent = 1e-9 * (double)(rm_now_ns() - begin);
        if (spent + spent / (pass + 1) > seconds) break;
    }
    *cost = mib > 0 ? difference(with, without, n) / mib : 0;
    return REMAT_OK;
}

remat_status rm_measure_beside(rm_measure *m, const rm_measured_window *window, rm_second_tier *tier,
                               const rm_tier *rates, double seconds, uint64_t *cost_ns_per_mib) {
    moving_pass moving = {.tier = tier};
    double cost = 0;
    *cost_ns_per_mib = 0;
    while (moving.option < RM_MAX_OPTIONS && !(window->options >> moving.option & 1)) moving.option++;
    if (moving.option == RM_MAX_OPTIONS) return REMAT_OK;
    for (int64_t s = window->first; s < window->first + window->count; s++) {
        uint64_t saved, own;
        rm_stage_needs(rm_stage_kind_of(m->config.chain, s), window->options, &saved, &own);
        moving.stride =
            rm_larger(moving.stride, (saved + RM_TRANSFER_ALIGN - 1) / RM_TRANSFER_ALIGN * RM_TRANSFER_ALIGN);
    }
    if (!moving.stride) return REMAT_OK;
    TRY(m->config.api->tier_reserve(tier, moving.stride * RM_WINDOW_MOST));
    rm_measure_enter(m, window);
    remat_status status = m->failed ? m->failed : compare_passes(m, window, moving, rates, seconds, &cost);
    rm_measure_leave(m, window);
    if (!status) *cost_ns_per_mib = rm_larger(cost > 0 ? (uint64_t)cost : 0, rates->cost_ns_per_mib);
    return status;
}

/* ---- Outside the plan ------------------------------------------------------------------------------------------ */

static void update_parameters(rm_measure *m) {
    const rm_measure_config *c = &m->config;
    const rm_chain *chain = c->chain;
    rm_update update = *c->update;
    update.lr = 0;
    update.step = 1;
    update.gradient_scale = 1;
    for (int32_t i = 0; i < chain->at.buckets.n_params; i++) {
        const rm_parameter *p = &chain->at.buckets.param[i];
        if (p->bucket < 0) continue;
        float *parameter = (float *)rm_run_address(&m->runner, &chain->at.value[p->value]) + p->first;
        float *gradient = (float *)rm_run_address(&m->runner, &chain->at.gradient[p->value]) + p->first;
        float *state[RM_MAX_OPTIMIZER_STATE] = {0};
        for (int k = 0; k < c->optimizer_states; k++)
            state[k] = rm_run_address(&m->runner, &chain->at.optimizer_state[i * RM_MAX_OPTIMIZER_STATE + k]);
        (void)c->api->sum_of_squares(m->runner.queue, gradient, p->held);
        if (!c->optimizer) continue;
        if (c->optimizer->measure)
            c->api->measure(m->runner.queue, c->optimizer, &update, p->held, parameter, gradient, state, update.sum);
        c->api->update(m->runner.queue, c->optimizer, &update, p->held, parameter, gradient, state);
    }
}

remat_status rm_measure_fixed(rm_measure *m, double seconds, uint64_t *time_ns) {
    const rm_chain *chain = m->config.chain;
    uint64_t sample[MOST_PASSES], begin = rm_now_ns();
    int n = 0;
    while (n < MOST_PASSES && (n < 2 || 1e-9 * (double)(rm_now_ns() - begin) < seconds)) {
        uint64_t start = rm_now_ns();
        rm_run_packing(&m->runner, true);
        m->config.api->fill(m->runner.queue, m->runner.resident + chain->at.loss_offset, 0, chain->at.loss_bytes);
        rm_run_tables(&m->runner, &chain->prologue);
        rm_run_packing(&m->runner, false);
        m->config.api->fill(m->runner.queue, m->runner.resident + chain->at.gradients_offset, 0,
                            chain->at.gradients_bytes);
        m->config.api->fill(m->runner.queue, m->runner.resident + chain->at.table_gradients_offset, 0,
                            chain->at.table_gradients_bytes);
        rm_run_tables(&m->runner, &chain->epilogue);
        update_parameters(m);
        TRY(m->config.api->synchronize(m->runner.queue));
        sample[n++] = rm_now_ns() - start;
    }
    *time_ns = median(sample, n);
    return REMAT_OK;
}
