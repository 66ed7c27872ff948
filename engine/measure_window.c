/* measure_window.c: see measure_window.h. */
#include "engine/measure_window.h"

#include "memory/bytes.h"

/* ---- How much a window needs ---------------------------------------------------------------------------------- */

static uint64_t list_bytes(const rm_problem *problem, const rm_lists *lists, int64_t first, int64_t last) {
    uint64_t bytes = 0; /* a piece of several cuts counts several times: more than enough */
    for (int64_t i = lists->start[first]; i < lists->start[last + 1]; i++)
        bytes += problem->piece[lists->item[i]].bytes;
    return bytes;
}

void rm_stage_needs(const rm_class *class, uint32_t options, uint64_t *saved, uint64_t *scratch) {
    *saved = 0;
    *scratch = class->drop.scratch_bytes;
    for (int k = 0; k < class->n_options; k++) {
        if (!(options >> k & 1)) continue;
        const rm_class_option *option = &class->option[k];
        *saved = rm_larger(*saved, rm_align_up(option->saved_bytes));
        *scratch = rm_larger(*scratch, rm_larger(option->forward.scratch_bytes, option->backward.scratch_bytes));
    }
    *scratch = rm_align_up(*scratch);
}

uint64_t rm_window_bytes(const rm_chain *chain, const rm_window *window) {
    const rm_problem *problem = &chain->problem;
    int64_t last = window->first + window->count;
    uint64_t bytes = list_bytes(problem, &problem->state, window->first, last), scratch = 0;
    bytes += list_bytes(problem, &problem->dstate, window->first, last);
    for (int64_t s = window->first; s < last; s++) {
        uint64_t saved, own;
        rm_stage_needs(rm_stage_class(chain, s), window->options, &saved, &own);
        bytes += saved;
        scratch = rm_larger(scratch, own);
    }
    return bytes + scratch;
}

/* Leaves out the option that saves most. */
static void drop_largest_option(const rm_class *class, rm_window *window) {
    int largest = -1;
    for (int k = 0; k < class->n_options; k++)
        if (window->options >> k & 1)
            if (largest < 0 || class->option[k].saved_bytes > class->option[largest].saved_bytes) largest = k;
    window->options &= ~(1u << largest);
}

bool rm_window_fit(const rm_measure_config *config, rm_window *window) {
    uint64_t resident = config->chain->at.bytes;
    if (config->block_bytes <= resident) return false;
    uint64_t room = config->block_bytes - resident;
    while (window->count > 1 && rm_window_bytes(config->chain, window) > room) {
        int64_t fewer = window->count / 2;
        if (config->chain->timed) window->first += window->count - fewer;
        window->count = fewer;
    }
    while (window->options && rm_window_bytes(config->chain, window) > room)
        drop_largest_option(rm_stage_class(config->chain, window->first), window);
    return rm_window_bytes(config->chain, window) <= room;
}

void rm_measure_settle(rm_measure *m) {
    remat_status status = m->config.api->synchronize(m->runner.queue);
    if (!m->failed) m->failed = status;
}

/* ---- What the arrays hold ------------------------------------------------------------------------------------- */

enum { CHUNK = 1 << 14 };

static uint32_t next_random(rm_measure *m) {
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->random >> 32);
}

/* Evenly in +-bound. */
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

/* As parameters start: a constant stays one, so that a normalising layer works on numbers like those it will see. */
void rm_measure_fill_parameters(rm_measure *m) {
    const rm_chain *chain = m->config.chain;
    for (int32_t v = 1; v < chain->graph->n_values; v++) {
        const rm_value *value = &chain->graph->value[v];
        if (value->origin != RM_VALUE_PARAM) continue;
        char *to = m->runner.resident + chain->at.value[v].offset;
        bool random = value->init.kind == REMAT_INIT_UNIFORM || value->init.kind == REMAT_INIT_NORMAL;
        fill_reals(m, to, rm_desc_bytes(&value->desc), random ? value->init.scale : 0.05);
    }
}

/* Of sequences, the timesteps of the window alone: nothing else is touched, so nothing else takes memory. */
static void fill_inputs(rm_measure *m, const rm_window *window) {
    const rm_chain *chain = m->config.chain;
    int64_t last = window->first + window->count - 1;
    uint64_t t0 = chain->timed ? (uint64_t)(window->first * chain->tile) : 0;
    uint64_t t1 = chain->timed ? (uint64_t)(last * chain->tile + rm_stage_class(chain, last)->tau) : 1;
    for (int32_t v = 1; v < chain->graph->n_values; v++) {
        const rm_value *value = &chain->graph->value[v];
        const rm_where *where = &chain->at.value[v];
        if (value->origin != RM_VALUE_INPUT || where->space != RM_RESIDENT) continue;
        bool part = chain->timed && value->sequence;
        char *to = m->runner.resident + where->offset + (part ? where->per_time * t0 : 0);
        uint64_t bytes = part ? where->per_time * (t1 - t0) : rm_desc_bytes(&value->desc);
        if (value->desc.dtype == REMAT_I32)
            fill_integers(m, to, bytes, rm_chain_bound(chain, v));
        else
            fill_reals(m, to, bytes, 1);
    }
}

/* ---- A window in the block ------------------------------------------------------------------------------------ */

static void *claim(rm_measure *m, uint64_t *cursor, uint64_t bytes) {
    void *address = m->config.api->claim(m->runner.block, *cursor, bytes);
    *cursor += bytes;
    return address;
}

static void place_lists(rm_measure *m, const rm_lists *lists, const rm_window *window, uint64_t *cursor) {
    const rm_problem *problem = &m->config.chain->problem;
    for (int64_t i = lists->start[window->first]; i < lists->start[window->first + window->count + 1]; i++) {
        void **piece = &m->runner.piece[lists->item[i]];
        if (!*piece) *piece = claim(m, cursor, problem->piece[lists->item[i]].bytes);
    }
}

static void place_window(rm_measure *m, const rm_window *window) {
    const rm_chain *chain = m->config.chain;
    uint64_t cursor = chain->at.bytes, scratch = 0;
    place_lists(m, &chain->problem.state, window, &cursor);
    place_lists(m, &chain->problem.dstate, window, &cursor);
    for (int64_t s = window->first; s < window->first + window->count; s++) {
        uint64_t saved, own;
        rm_stage_needs(rm_stage_class(chain, s), window->options, &saved, &own);
        m->runner.saved[s] = claim(m, &cursor, saved);
        scratch = rm_larger(scratch, own);
    }
    m->runner.scratch = claim(m, &cursor, scratch);
}

/* What comes into the window from outside it: the state before it, the gradient behind it. */
static void fill_ends(rm_measure *m, const rm_window *window) {
    const rm_problem *problem = &m->config.chain->problem;
    const struct {
        const rm_lists *lists;
        int64_t cut;
    } end[] = {{&problem->state, window->first}, {&problem->dstate, window->first + window->count}};
    for (int e = 0; e < 2; e++)
        for (int64_t i = end[e].lists->start[end[e].cut]; i < end[e].lists->start[end[e].cut + 1]; i++) {
            int32_t piece = end[e].lists->item[i];
            fill_reals(m, m->runner.piece[piece], problem->piece[piece].bytes, e ? 1e-3 : 0.5);
        }
}

void rm_measure_enter(rm_measure *m, const rm_window *window) {
    place_window(m, window);
    fill_inputs(m, window);
    fill_ends(m, window);
}

void rm_measure_leave(rm_measure *m, const rm_window *window) {
    const rm_problem *problem = &m->config.chain->problem;
    const rm_lists *lists[] = {&problem->state, &problem->dstate};
    for (int k = 0; k < 2; k++)
        for (int64_t i = lists[k]->start[window->first]; i < lists[k]->start[window->first + window->count + 1]; i++)
            m->runner.piece[lists[k]->item[i]] = NULL;
}
