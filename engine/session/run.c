/* run.c: interprets a checked plan. See run.h. */
#include "engine/session/frame.h"

#include <string.h>

#include "engine/rng.h"

/* ---- Collectives of kernels ------------------------------------------------------------------------------------ */

/* rm_talk.sum; chunk by chunk if the host cannot access the numbers. A failure is reported at the end of the
 * program. */
static void sum_over_ranks(void *owner, double *values, int64_t count) {
    rm_runner *r = owner;
    enum { CHUNK = 256 };
    double chunk[CHUNK];
    if (r->api->reachable) {
        if (!r->talk_status) r->talk_status = r->ranks->sum(r->ranks->context, values, count);
        return;
    }
    for (int64_t i = 0, n; i < count && !r->talk_status; i += n) {
        n = count - i < CHUNK ? count - i : CHUNK;
        r->api->copy_out(r->queue, chunk, values + i, (uint64_t)n * sizeof *chunk);
        r->talk_status = r->api->synchronize(r->queue);
        if (!r->talk_status) r->talk_status = r->ranks->sum(r->ranks->context, chunk, n);
        r->api->copy_in(r->queue, values + i, chunk, (uint64_t)n * sizeof *chunk);
        remat_status status = r->api->synchronize(r->queue); /* the chunk is on this stack */
        if (!r->talk_status) r->talk_status = status;
    }
}

void rm_run_connect_ranks(rm_runner *r) { r->talk = (rm_talk){sum_over_ranks, r->ranks->sum ? r : NULL}; }

/* ---- Calls ---------------------------------------------------------------------------------------------------- */

/* The node's once data (REMAT_ONCE), or NULL. Nodes of the chain have one for each stage; a node after a reduction over
 * time has a single one. */
static void *once_of(const rm_frame *f, int32_t node) {
    const rm_chain *chain = f->runner->chain;
    uint64_t bytes = chain->at.once_bytes[node], n = chain->role[node] == RM_ROLE_CHAIN ? (uint64_t)f->position : 0;
    return bytes ? f->runner->resident + chain->at.once[node] + n * bytes : NULL;
}

/* Samples of evaluations have shards that no training step has (configure.c limits these). */
static remat_key key_of(const rm_runner *r, const rm_node *node) {
    uint64_t sample = (uint64_t)r->dropout_sample;
    if (r->training) return (remat_key){rm_seed_at(r->seed, r->updates), rm_step_at(r->updates, r->shard), node->key};
    return (remat_key){r->seed, rm_step_at(sample, UINT32_C(1) << 31 | (uint32_t)(sample >> 32)), node->key};
}

/* The node's packed weights, or NULL. */
static void *packed_of(const rm_runner *r, int32_t node) {
    uint64_t offset = r->chain->at.packed[node];
    return offset == UINT64_MAX ? NULL : (char *)rm_run_address(r, &r->chain->at.packed_at) + offset;
}

static void build_call(const rm_frame *f, const rm_instruction *i, remat_call *call) {
    const rm_runner *r = f->runner;
    const remat_graph *graph = r->chain->graph;
    const rm_node *node = &graph->node[i->node];
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(graph, node, f->tau, x, &y, state);
    const rm_value *first = &graph->value[node->x[0]];
    bool timed = first->sequence;
    *call = (remat_call){.attr = node->attr,
                         .y = {y, rm_frame_address(f, &i->y)},
                         .dy = {y, rm_frame_address(f, &i->dy)},
                         .aux = rm_frame_address(f, &i->aux),
                         .scratch = rm_frame_address(f, &i->scratch),
                         .fixed = r->chain->at.fixed_bytes ? r->resident + r->chain->at.fixed : NULL,
                         .packed = packed_of(r, i->node),
                         .once = once_of(f, i->node),
                         .ranks = f->collective ? &r->talk : NULL,
                         .key = key_of(r, node),
                         .t0 = !timed            ? 0
                               : first->reversed ? f->t0_from_end
                                                 : f->t0,
                         .t_total = timed ? first->desc.dim[0] : 1,
                         .training = r->training || (r->dropout_sample >= 0 && node->op->random)};
    for (int k = 0; k < node->op->n_in; k++) {
        call->x[k] = (remat_tensor){x[k], rm_frame_address(f, &i->x[k])};
        call->dx[k] = (remat_tensor){x[k], rm_frame_address(f, &i->dx[k])};
    }
    for (int k = 0; k < node->op->n_state; k++) {
        call->state_in[k] = (remat_tensor){state[k], rm_frame_address(f, &i->state_in[k])};
        call->state_out[k] = (remat_tensor){state[k], rm_frame_address(f, &i->state_out[k])};
        call->dstate_in[k] = (remat_tensor){state[k], rm_frame_address(f, &i->dstate_in[k])};
        call->dstate_out[k] = (remat_tensor){state[k], rm_frame_address(f, &i->dstate_out[k])};
    }
}

/* On a GPU the queue does it, and the host goes on. */
static remat_status give_message(const rm_runner *r, const rm_instruction *i, void *data, uint64_t bytes) {
    const remat_pipeline *p = r->pipeline;
    return i->what == RM_DO_SEND ? p->give_send(p->context, r->stream, i->peer, data, bytes)
                                 : p->give_receive(p->context, r->stream, i->peer, data, bytes);
}

static remat_status exchange_now(const rm_runner *r, const rm_instruction *i, void *data, uint64_t bytes) {
    const remat_pipeline *p = r->pipeline;
    TRY(r->api->synchronize(r->queue));
    return i->what == RM_DO_SEND ? p->send(p->context, i->peer, data, bytes)
                                 : p->receive(p->context, i->peer, data, bytes);
}

/* After a failure the rest of the program is skipped: nobody uses its results, and other ranks do not wait for it.
 */
static void exchange(rm_runner *r, const rm_instruction *i, void *data, uint64_t bytes) {
    if (!r->pipeline || !r->pipeline->send || r->talk_status) return;
    r->talk_status = r->stream ? give_message(r, i, data, bytes) : exchange_now(r, i, data, bytes);
}

static void run_instruction(const rm_frame *f, const rm_instruction *i) {
    rm_runner *r = f->runner;
    if (i->node >= 0) {
        static const remat_pass pass[] = {[RM_DO_FORWARD] = REMAT_FORWARD,
                                          [RM_DO_BACKWARD] = REMAT_BACKWARD,
                                          [RM_DO_REBUILD] = REMAT_REBUILD,
                                          [RM_DO_ONCE] = REMAT_ONCE};
        remat_call call;
        build_call(f, i, &call);
        r->api->run(r->queue, r->chain->graph->node[i->node].op, pass[i->what], &call);
        return;
    }
    void *y = rm_frame_address(f, &i->y), *x = rm_frame_address(f, &i->x[0]);
    uint64_t bytes = (uint64_t)i->count * 4;
    if (i->what == RM_DO_ZERO && y) r->api->fill(r->queue, y, 0, bytes);
    if (i->what == RM_DO_COPY && y && x) r->api->copy(r->queue, y, x, bytes);
    if (i->what == RM_DO_ADD && y && x) rm_run_add(r, y, x, i->count);
    if (i->what >= RM_DO_SEND) exchange(r, i, i->what == RM_DO_SEND ? x : y, bytes);
}

static void run_part(const rm_frame *f, const rm_program *program, int32_t from, int32_t until) {
    if (f->past_end) return;
    for (int32_t n = from; n < until; n++)
        if (f->first || !program->item[n].once) {
            rm_instruction instruction = rm_program_at(program, n);
            run_instruction(f, &instruction);
        }
}

/* Runs a backward program in parts: each ends with the last instruction that touches a bucket whose gradients become
 * final in this stage. */
static remat_status run_in_parts(const rm_frame *f, const rm_program *program, int64_t stage, int option) {
    rm_runner *r = f->runner;
    const rm_buckets *buckets = &r->chain->at.buckets;
    int32_t done = 0;
    while (r->finished && r->n_finished < buckets->n && buckets->item[r->n_finished].stage == stage) {
        int32_t until = buckets->item[r->n_finished].after[option];
        run_part(f, program, done, until);
        done = until;
        TRY(r->finished(r->owner, r->n_finished++));
    }
    run_part(f, program, done, program->n);
    return REMAT_OK;
}

void rm_run_tables(rm_runner *runner, const rm_program *program) {
    rm_frame f = {.runner = runner, .stage = 0};
    runner->scratch = runner->resident + runner->chain->at.table_scratch;
    run_part(&f, program, 0, program->n);
}

remat_status rm_run_epilogue(rm_runner *runner) {
    rm_frame f = {.runner = runner, .stage = 0};
    runner->scratch = runner->resident + runner->chain->at.table_scratch;
    return run_in_parts(&f, &runner->chain->epilogue, -1, 0);
}

void rm_run_packing(rm_runner *runner, bool of_tables) {
    const rm_chain *chain = runner->chain;
    rm_frame f = {.runner = runner, .stage = 0};
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        void *packed = packed_of(runner, n);
        if (!packed || (chain->role[n] == RM_ROLE_TABLE) != of_tables) continue;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        remat_call call = {.attr = node->attr, .t_total = 1};
        for (int k = 0; k < REMAT_MAX_INPUTS; k++) {
            bool weight = node->op->shared >> k & 1;
            call.x[k] = (remat_tensor){x[k], weight ? rm_frame_address(&f, &chain->at.value[node->x[k]]) : NULL};
        }
        runner->api->pack(runner->queue, node->op, &call, packed);
    }
}

/* ---- The plan ------------------------------------------------------------------------------------------------- */

/* Claims the buffers that begin to live at this step. Returns the index of the next lifetime. */
static int64_t claim_buffers(rm_runner *runner, const rm_schedule *schedule, int64_t next, int64_t step) {
    for (; next < schedule->lifetimes.count && schedule->lifetimes.item[next].first == step; next++) {
        const rm_lifetime *life = &schedule->lifetimes.item[next];
        uint64_t offset = schedule->placement.offset[next];
        if (offset >= runner->own_from) offset += runner->own_shift;
        void *address = runner->api->claim(runner->block, runner->arena_offset + offset, life->bytes);
        uint64_t end = offset + life->bytes;
        if (end > runner->furthest) runner->furthest = end;
        if (runner->trace) rm_trace_claim(runner->trace, (rm_buffer_kind)life->kind, life->index, life->bytes);
        switch ((rm_buffer_kind)life->kind) {
        case RM_BUFFER_PIECE:
            runner->piece[life->index] = address;
            break;
        case RM_BUFFER_SAVED:
            runner->saved[life->index] = address;
            break;
        case RM_BUFFER_SCRATCH:
            runner->scratch = address;
            break;
        }
    }
    return next;
}

/* Backward uses the option in which the stage was last kept. */
static const rm_program *program_of(rm_runner *runner, const rm_stage_kind *kind, const rm_step *step) {
    if (!runner->training) return &kind->evaluate;
    if (step->verb == RM_RUN_BACKWARD) return &kind->option[runner->kept[step->index]].backward;
    if (step->option == RM_DROP) return &kind->drop;
    runner->kept[step->index] = step->option;
    return &kind->option[step->option].forward;
}

/* In a stateful session, keeps the carried states of a sweep's carry_stage for the next call. */
static void keep_carried(const rm_frame *f) {
    const rm_runner *r = f->runner;
    const rm_chain *chain = r->chain;
    const rm_sweep *sweep = rm_stage_sweep(chain, f->stage);
    if (f->position != sweep->carry_stage) return;
    for (int32_t k = sweep->first_carried; k < sweep->first_carried + sweep->n_carried; k++) {
        if (!rm_frame_keeps(r, k)) continue;
        rm_where last = rm_carried_where(chain, k, 0);
        r->api->copy(r->queue, r->resident + chain->at.carried_next + chain->carried[k].kept, rm_frame_piece(f, &last),
                     chain->carried[k].bytes);
    }
}

void rm_run_program(rm_runner *runner, int64_t stage, const rm_program *program) {
    rm_frame f = rm_frame_of(runner, stage);
    run_part(&f, program, 0, program->n);
}

/* Compares the states that the program reads before it runs, and those that it recomputed after. */
static remat_status run_verified(const rm_frame *f, const rm_program *program, const rm_step *step, int64_t number) {
    rm_runner *r = f->runner;
    rm_verify_run run = {
        .program = program, .piece = r->piece, .step = *step, .position = f->position, .number = number};
    bool verify = r->verify && r->training;
    if (r->disturb) r->disturb(r, number, false);
    if (verify) TRY(rm_verify_before(r->verify, &run));
    if (step->verb == RM_RUN_BACKWARD)
        TRY(run_in_parts(f, program, f->stage, r->kept[f->stage]));
    else
        run_part(f, program, 0, program->n);
    TRY(r->talk_status);
    if (r->disturb) r->disturb(r, number, true);
    return verify ? rm_verify_after(r->verify, &run) : REMAT_OK;
}

/* Tells the observer of the run, and of the bytes that are alive in it. */
static remat_status run_observed(const rm_frame *f, const rm_program *program, const rm_step *step, int64_t number) {
    rm_runner *r = f->runner;
    uint64_t begin_ns = rm_observe(&r->observer);
    if (r->trace)
        rm_observed(&r->observer, begin_ns,
                    (remat_event){.kind = REMAT_EVENT_LIVE, .bytes = rm_trace_live_bytes(r->trace)});
    remat_status status = run_verified(f, program, step, number);
    remat_event_kind kind = step->verb == RM_RUN_BACKWARD ? REMAT_EVENT_BACKWARD
                            : f->first                    ? REMAT_EVENT_FORWARD
                                                          : REMAT_EVENT_RECOMPUTE;
    rm_observed(&r->observer, begin_ns, (remat_event){.kind = kind, .number = f->stage});
    return status;
}

/* First runs of stages are in stage order. */
static bool is_first(rm_runner *runner, const rm_step *step) {
    bool first = step->verb == RM_RUN_FORWARD && step->index == runner->n_forward;
    runner->n_forward += first;
    return first;
}

/* Continues to the end of the plan, or to its first backward run. */
static remat_status run_lines(rm_runner *runner, const rm_problem *problem, const rm_schedule *schedule,
                              bool to_backward) {
    for (; runner->line < schedule->plan.n_steps; runner->line++) {
        int64_t s = runner->line;
        const rm_step *step = &schedule->plan.step[s];
        if (to_backward && step->verb == RM_RUN_BACKWARD) break;
        if (runner->api->note) runner->api->note(runner->queue, s);
        TRY(rm_run_wait(runner, schedule, s));
        if (runner->trace) rm_trace_step(runner->trace, *step);
        int64_t claimed = runner->lifetime;
        runner->lifetime = claim_buffers(runner, schedule, runner->lifetime, s);
        if (step->verb == RM_SAVE || step->verb == RM_LOAD) rm_run_transfer(runner, problem, schedule, *step);
        if (step->verb != RM_RUN_FORWARD && step->verb != RM_RUN_BACKWARD) continue;
        const rm_stage_kind *kind = rm_stage_kind_of(runner->chain, step->index);
        rm_frame f = rm_frame_of(runner, step->index);
        f.first = is_first(runner, step);
        f.collective = runner->training && runner->talk.owner;
        f.past_end = rm_is_past_end(&f);
        if (f.past_end) rm_skip_stage(&f, problem, schedule, step->verb == RM_RUN_FORWARD, claimed, runner->lifetime);
        if (runner->ranks && runner->ranks->poll) TRY(runner->ranks->poll(runner->ranks->context));
        TRY(run_observed(&f, program_of(runner, kind, step), step, s));
        if (step->verb == RM_RUN_FORWARD) keep_carried(&f);
    }
    return REMAT_OK;
}

static void begin_run(rm_runner *runner) {
    runner->line = runner->lifetime = runner->n_forward = 0;
    runner->n_finished = 0;
    runner->talk_status = REMAT_OK;
    if (runner->tier) runner->given_before = runner->api->tier_given(runner->tier);
    if (runner->verify && runner->training) rm_verify_begin(runner->verify);
}

remat_status rm_run(rm_runner *runner, const rm_problem *problem, const rm_schedule *schedule, rm_run_half half) {
    if (half != RM_FROM_BACKWARD) begin_run(runner);
    remat_status status = run_lines(runner, problem, schedule, half == RM_TO_BACKWARD);
    remat_status last = rm_run_wait_for_all(runner);
    if (runner->api->note) runner->api->note(runner->queue, -1);
    return last ? last : status;
}
