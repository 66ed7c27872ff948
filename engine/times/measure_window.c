/* measure_window.c: see measure_window.h. */
#include "engine/times/measure_window.h"

#include "memory/bytes.h"

/* ---- The size of a window ---------------------------------------------------------------------------------- */

/* Calls visit for each piece of states and their gradients that stages first..end-1 read or make; for some pieces twice. */
static void each_piece(const rm_problem *p, const rm_measured_window *window,
                       void (*visit)(void *context, int64_t piece), void *context) {
    int64_t end = window->first + window->count;
    const rm_lists *lists[] = {&p->reads, &p->keeps, &p->adds};
    for (int64_t k = p->state[p->made[window->first]]; k < p->state[p->made[end]]; k++) visit(context, k);
    for (int64_t k = p->dstate[p->made[window->first]]; k < p->dstate[p->made[end]]; k++) visit(context, k);
    for (int l = 0; l < 3; l++)
        for (int64_t i = lists[l]->start[window->first]; i < lists[l]->start[end]; i++) {
            const int64_t *start = (l == 2 ? p->dstate : p->state) + lists[l]->item[i];
            for (int64_t k = start[0]; k < start[1]; k++) visit(context, k);
        }
}

typedef struct {
    const rm_problem *problem;
    uint64_t bytes; /* an upper bound: pieces that are visited twice count twice */
} sum;

static void add_bytes(void *context, int64_t piece) {
    sum *all = context;
    all->bytes += all->problem->piece[piece].bytes;
}

void rm_stage_needs(const rm_stage_kind *class, uint32_t options, uint64_t *saved, uint64_t *scratch) {
    *saved = 0;
    *scratch = class->drop.scratch_bytes;
    for (int k = 0; k < class->n_options; k++) {
        if (!(options >> k & 1)) continue;
        const rm_kind_option *option = &class->option[k];
        *saved = rm_larger(*saved, rm_align_up(option->saved_bytes));
        *scratch = rm_larger(*scratch, rm_larger(option->forward.scratch_bytes, option->backward.scratch_bytes));
    }
    *scratch = rm_align_up(*scratch);
}

uint64_t rm_window_bytes(const rm_chain *chain, const rm_measured_window *window) {
    int64_t last = window->first + window->count;
    sum all = {.problem = &chain->problem};
    uint64_t scratch = 0;
    each_piece(&chain->problem, window, add_bytes, &all);
    for (int64_t s = window->first; s < last; s++) {
        uint64_t saved, own;
        rm_stage_needs(rm_stage_kind_of(chain, s), window->options, &saved, &own);
        all.bytes += saved;
        scratch = rm_larger(scratch, own);
    }
    return all.bytes + scratch;
}

/* Removes the option that saves most bytes; the last one leaves none. */
static void drop_largest_option(const rm_stage_kind *class, rm_measured_window *window) {
    int largest = -1;
    for (int k = 0; k < class->n_options; k++)
        if (window->options >> k & 1)
            if (largest < 0 || class->option[k].saved_bytes > class->option[largest].saved_bytes) largest = k;
    window->options = largest < 0 ? 0 : window->options & ~(1u << largest);
}

bool rm_window_fit(const rm_measure_config *config, rm_measured_window *window) {
    uint64_t resident = config->chain->at.bytes;
    if (config->block_bytes <= resident) return false;
    uint64_t room = config->block_bytes - resident;
    while (window->count > 1 && rm_window_bytes(config->chain, window) > room) {
        int64_t fewer = window->count / 2;
        if (config->chain->timed) window->first += window->count - fewer;
        window->count = fewer;
    }
    while (window->options && rm_window_bytes(config->chain, window) > room)
        drop_largest_option(rm_stage_kind_of(config->chain, window->first), window);
    return rm_window_bytes(config->chain, window) <= room;
}

void rm_measure_settle(rm_measure *m) {
    remat_status status = m->config.api->synchronize(m->runner.queue);
    if (!m->failed) m->failed = status;
}

/* ---- Contents of the arrays ------------------------------------------------------------------------------------- */

enum { CHUNK = 1 << 12 };

static uint32_t next_random(rm_measure *m) {
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->random >> 32);
}

/* Uniform in +-bound. */
static void fill_reals(rm_measure *m, char *to, uint64_t bytes, double bound) {
    float chunk[CHUNK];
    for (uint64_t done = 0; done < bytes; done += sizeof chunk) {
        uint64_t part = bytes - done < sizeof chunk ? bytes - done : sizeof chunk;
        for (uint64_t i = 0; i < part / sizeof *chunk; i++)
            chunk[i] = (float)(bound * (next_random(m) * 0x1p-31 - 1.0));
        m->config.api->copy_in(m->runner.queue, to + done, chunk, part);
        rm_measure_settle(m);
    }
}

static void fill_integers(rm_measure *m, char *to, uint64_t bytes, int64_t bound) {
    int32_t chunk[CHUNK];
    for (uint64_t done = 0; done < bytes; done += sizeof chunk) {
        uint64_t part = bytes - done < sizeof chunk ? bytes - done : sizeof chunk;
        for (uint64_t i = 0; i < part / sizeof *chunk; i++)
            chunk[i] = bound ? (int32_t)(next_random(m) % (uint64_t)bound) : 0;
        m->config.api->copy_in(m->runner.queue, to + done, chunk, part);
        (void)m->config.api->synchronize(m->runner.queue);
    }
}

/* Fills parameters as a run initialises them. Constants stay, so that normalising layers see realistic numbers. */
void rm_measure_fill_parameters(rm_measure *m) {
    const rm_chain *chain = m->config.chain;
    for (int32_t v = 1; v < chain->graph->n_values; v++) {
        const rm_value *value = &chain->graph->value[v];
        if (value->origin != RM_VALUE_PARAM || rm_is_elsewhere(&chain->at.value[v])) continue;
        char *to = rm_run_address(&m->runner, &chain->at.value[v]);
        bool random = value->init.kind == REMAT_INIT_UNIFORM || value->init.kind == REMAT_INIT_NORMAL;
        fill_reals(m, to, rm_desc_bytes(&value->desc), random ? value->init.scale : 0.05);
    }
}

/* Fills only the timesteps of the window, so that other pages of a sequence take no memory. */
static void fill_inputs(rm_measure *m, const rm_measured_window *window) {
    const rm_chain *chain = m->config.chain;
    const rm_sweep *sweep = rm_stage_sweep(chain, window->first);
    int64_t one = rm_stage_begin(chain, window->first);
    int64_t other = rm_stage_begin(chain, window->first + window->count - 1);
    int64_t t0 = one < other ? one : other, t1 = (one < other ? other : one) + sweep->tile;
    for (int32_t v = 1; v < chain->graph->n_values; v++) {
        const rm_value *value = &chain->graph->value[v];
        const rm_where *where = &chain->at.value[v];
        if (value->origin != RM_VALUE_INPUT || rm_is_elsewhere(where)) continue;
        bool part = value->sequence && value->desc.dim[0] == sweep->timesteps;
        int64_t end = part && t1 > sweep->timesteps ? sweep->timesteps : t1;
        char *to = (char *)rm_run_address(&m->runner, where) + (part ? where->per_time * (uint64_t)t0 : 0);
        uint64_t bytes = part ? where->per_time * (uint64_t)(end - t0) : rm_desc_bytes(&value->desc);
        if (value->desc.dtype == REMAT_I32)
            fill_integers(m, to, bytes, rm_chain_bound(chain, v));
        else
            fill_reals(m, to, bytes, 1);
    }
}

/* ---- The window in the block ------------------------------------------------------------------------------------ */

static void *claim(rm_measure *m, uint64_t *cursor, uint64_t bytes) {
    void *address = m->config.api->claim(m->runner.block, *cursor, bytes);
    *cursor += bytes;
    return address;
}

typedef struct {
    rm_measure *measure;
    uint64_t cursor;
} placer;

static void place_piece(void *context, int64_t k) {
    placer *p = context;
    void **piece = &p->measure->runner.piece[k];
    if (!*piece) *piece = claim(p->measure, &p->cursor, p->measure->config.chain->problem.piece[k].bytes);
}

static void place_window(rm_measure *m, const rm_measured_window *window) {
    const rm_chain *chain = m->config.chain;
    placer p = {.measure = m, .cursor = chain->at.bytes};
    uint64_t scratch = 0;
    each_piece(&chain->problem, window, place_piece, &p);
    for (int64_t s = window->first; s < window->first + window->count; s++) {
        uint64_t saved, own;
        rm_stage_needs(rm_stage_kind_of(chain, s), window->options, &saved, &own);
        m->runner.saved[s] = claim(m, &p.cursor, saved);
        scratch = rm_larger(scratch, own);
    }
    m->runner.scratch = claim(m, &p.cursor, scratch);
}

static void fill_state(rm_measure *m, int64_t from, int64_t to, double bound) {
    for (int64_t k = from; k < to; k++)
        fill_reals(m, m->runner.piece[k], m->config.chain->problem.piece[k].bytes, bound);
}

/* Values from outside the window: states of earlier stages, and gradients that later stages begin. */
static void fill_ends(rm_measure *m, const rm_measured_window *window) {
    const rm_problem *p = &m->config.chain->problem;
    int64_t end = window->first + window->count, own = p->made[window->first];
    const rm_lists *lists[] = {&p->reads, &p->keeps};
    for (int l = 0; l < 2; l++)
        for (int64_t i = lists[l]->start[window->first]; i < lists[l]->start[end]; i++) {
            int32_t state = lists[l]->item[i];
            if (state < own) fill_state(m, p->state[state], p->state[state + 1], 0.5);
        }
    fill_state(m, p->dstate[own], p->dstate[p->made[end]], 1e-3);
}

void rm_measure_enter(rm_measure *m, const rm_measured_window *window) {
    place_window(m, window);
    fill_inputs(m, window);
    fill_ends(m, window);
}

static void forget(void *context, int64_t piece) { ((rm_measure *)context)->runner.piece[piece] = NULL; }

void rm_measure_leave(rm_measure *m, const rm_measured_window *window) {
    each_piece(&m->config.chain->problem, window, forget, m);
}
