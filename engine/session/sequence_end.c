/* sequence_end.c: timesteps past the end of all rows (remat_set_sequence_end). The programs of their stages are
 * skipped: states pass through unchanged, and all other results are 0. The plan stays the same. */
#include "engine/session/frame.h"
#include "engine/session/session.h"

static bool collective(const remat_session *s, int32_t sweep) {
    const rm_chain *chain = &s->chain;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        if (chain->sweep_of[n] == sweep && node->op->collective && node->op->collective(node->attr)) return true;
    }
    return false;
}

remat_status remat_set_sequence_end(remat_session *s, int64_t timesteps, int64_t end) {
    NEED(s, "a session");
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it runs no sequence");
    REQUIRE(!s->stateful, INVALID,
            "in a stateful session all rows continue in the next call, so sequences cannot end early");
    REQUIRE(s->pipeline.size == 1, MISSING, "a pipeline computes all tiles: remove remat_set_sequence_end");
    REQUIRE(end >= 1 && end <= timesteps, INVALID, "sequences of %lld timesteps cannot end at %lld",
            (long long)timesteps, (long long)end);
    bool found = false;
    for (int32_t w = 0; w < s->chain.n_sweeps; w++) {
        if (s->chain.sweep[w].timesteps != timesteps) continue;
        REQUIRE(!collective(s, w), INVALID,
                "a layer of these sequences runs a collective in every tile, so none can be skipped; remove "
                "remat_set_sequence_end or the layer");
        found = true;
    }
    REQUIRE(found, INVALID, "no sequence of this graph has %lld timesteps", (long long)timesteps);
    for (int32_t w = 0; w < s->chain.n_sweeps; w++)
        if (s->chain.sweep[w].timesteps == timesteps) s->runner.end[w] = end;
    s->ran_forward = false;
    return REMAT_OK;
}

/* ---- Skipped stages --------------------------------------------------------------------------------------------- */

/* Whether the value is computed in this stage's sweep. */
static bool is_made_in_sweep(const rm_frame *f, const rm_value *value) {
    const rm_chain *chain = f->runner->chain;
    int32_t sweep = value->origin == RM_VALUE_RESULT ? chain->sweep_of[value->node] : -1;
    return sweep >= 0 && &chain->sweep[sweep] == rm_stage_sweep(chain, f->stage);
}

/* Whether this is a sweep's last stage and must run: it makes reductions over time, which later nodes or sweeps read,
 * and outputs without time. */
static bool is_last_needed(const rm_frame *f, const rm_sweep *sweep) {
    const rm_chain *chain = f->runner->chain;
    if (f->position < sweep->count - 1) return false;
    for (int32_t i = 0; i < chain->n_outputs; i++) {
        const rm_value *value = &chain->graph->value[chain->outputs[i]];
        if (!value->sequence && is_made_in_sweep(f, value)) return true;
    }
    return sweep->n_tail || sweep->n_tail_crossing;
}

bool rm_is_past_end(const rm_frame *f) {
    const rm_chain *chain = f->runner->chain;
    const rm_sweep *sweep = rm_stage_sweep(chain, f->stage);
    return f->t0 >= f->runner->end[sweep - chain->sweep] && !is_last_needed(f, sweep);
}

static void copy_through(const rm_frame *f, const rm_problem *problem, const rm_where *from, const rm_where *to,
                         uint64_t bytes) {
    const rm_runner *r = f->runner;
    int64_t there = rm_piece_at(to, f->position), here = rm_piece_at(from, f->position);
    if (there >= 0 && here >= 0 && problem->piece[there].bytes && problem->piece[here].bytes)
        r->api->copy(r->queue, r->piece[there], r->piece[here], bytes);
}

/* The same at the start of a sweep, for a state with an initial value from the graph. */
static void copy_initial_through(const rm_frame *f, const rm_problem *problem, int32_t slot, bool forward) {
    const rm_runner *r = f->runner;
    const rm_chain *chain = r->chain;
    const rm_carried *carried = &chain->carried[slot];
    const rm_sweep *sweep = rm_stage_sweep(chain, f->stage);
    int32_t value =
        f->position || carried->state < 0 ? 0 : rm_initial(&chain->graph->node[carried->node], carried->state);
    rm_where inside = forward ? rm_carried_where(chain, slot, 0) : rm_carried_gradient(chain, slot, 0);
    rm_where outside = forward ? chain->at.value[value] : chain->at.gradient[value];
    bool wanted = value && (forward || chain->use[value] == RM_DIFFERENTIATED);
    if (!wanted || !problem->piece[rm_piece_at(&inside, 0)].bytes) return;
    if (!outside.space) outside = (forward ? rm_crossing_where : rm_crossing_gradient)(chain, value, sweep, -1);
    uint64_t bytes = rm_desc_bytes(&chain->graph->value[value].desc);
    if (forward)
        r->api->copy(r->queue, rm_frame_address(f, &inside), rm_frame_address(f, &outside), bytes);
    else
        rm_run_add(r, rm_frame_address(f, &outside), rm_frame_address(f, &inside), (int64_t)(bytes / sizeof(float)));
}

/* Zeroes the tile's timesteps of the outputs that this pass makes. */
static void zero_outputs(const rm_frame *f) {
    const rm_runner *r = f->runner;
    const rm_chain *chain = r->chain;
    for (int32_t i = 0; i < chain->n_outputs; i++) {
        const rm_where *where = &chain->at.output[i];
        const rm_value *value = &chain->graph->value[chain->outputs[i]];
        bool made = !r->training || chain->use[chain->outputs[i]] != RM_UNUSED;
        if (made && value->sequence && is_made_in_sweep(f, value))
            r->api->fill(r->queue, rm_frame_address(f, where), 0, where->per_time * (uint64_t)f->tau);
    }
}

/* Zeroes the tile's part of gradients that are a single piece and that this sweep initialises tile by tile. */
static void zero_parts(const rm_frame *f, const rm_sweep *sweep) {
    const rm_runner *r = f->runner;
    const rm_chain *chain = r->chain;
    for (int32_t i = 0; i < chain->n_crossing; i++) {
        const rm_crossing *c = &chain->crossing[i];
        bool in_parts = chain->graph->value[c->value].sequence && !c->tiled;
        if (!in_parts || c->last_reader != sweep - chain->sweep) continue;
        rm_where where = rm_crossing_gradient(chain, c->value, sweep, -1);
        r->api->fill(r->queue, rm_frame_address(f, &where), 0, where.per_time * (uint64_t)f->tau);
    }
}

void rm_skip_stage(const rm_frame *f, const rm_problem *problem, const rm_schedule *schedule, bool forward,
                   int64_t from, int64_t until) {
    const rm_runner *r = f->runner;
    const rm_chain *chain = r->chain;
    const rm_sweep *sweep = rm_stage_sweep(chain, f->stage);
    for (int64_t i = from; i < until; i++) {
        const rm_lifetime *life = &schedule->lifetimes.item[i];
        if (life->kind == RM_BUFFER_PIECE) r->api->fill(r->queue, r->piece[life->index], 0, life->bytes);
    }
    for (int32_t k = sweep->first_carried; k < sweep->first_carried + sweep->n_carried; k++) {
        rm_where before = forward ? rm_carried_where(chain, k, -1) : rm_carried_gradient(chain, k, -1);
        rm_where after = forward ? rm_carried_where(chain, k, 0) : rm_carried_gradient(chain, k, 0);
        copy_through(f, problem, forward ? &before : &after, forward ? &after : &before, chain->carried[k].bytes);
        copy_initial_through(f, problem, k, forward);
    }
    if (forward)
        zero_outputs(f);
    else
        zero_parts(f, sweep);
}
