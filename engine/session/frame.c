/* frame.c: addresses of the operands of a stage's program (frame.h), and sums and scalings outside programs. */
#include "engine/session/frame.h"

#include "ops/real.h"

extern const remat_op RM_OP(add), RM_OP(scale);

void *rm_run_address(const rm_runner *r, const rm_where *where) {
    return where->space == RM_EXTERNAL ? r->external[where->slot] : r->resident + where->offset;
}

rm_frame rm_frame_of(rm_runner *runner, int64_t stage) {
    const rm_chain *chain = runner->chain;
    const rm_sweep *sweep = rm_stage_sweep(chain, stage);
    rm_frame f = {.runner = runner,
                  .stage = stage,
                  .position = stage - sweep->first,
                  .tau = rm_stage_kind_of(chain, stage)->tau,
                  .t0 = rm_stage_begin(chain, stage),
                  .gradients = rm_chain_state_pieces(chain)};
    if (f.tau) f.t0_from_end = sweep->timesteps - f.t0 - f.tau;
    return f;
}

bool rm_frame_keeps(const rm_runner *r, int32_t slot) {
    const rm_carried *carried = &r->chain->carried[slot];
    return r->stateful && carried->keeps && rm_runs_on(r->chain, carried->node, r->chain->rank);
}

/* In a stateful session, a sweep begins with the states that the last call kept. */
void *rm_frame_piece(const rm_frame *f, const rm_where *where) {
    const rm_runner *r = f->runner;
    int64_t piece = rm_piece_at(where, f->position);
    if (piece >= 0) return r->piece[piece];
    bool before = where->shift < 0 && f->position == 0 && where->piece < f->gradients;
    if (!before || !rm_frame_keeps(r, where->slot)) return NULL;
    return rm_run_address(r, &r->chain->at.carried[where->slot]);
}

void *rm_frame_find(const rm_frame *f, const rm_where *where) {
    const rm_runner *r = f->runner;
    uint64_t along = where->per_time * (uint64_t)(where->from_end ? f->t0_from_end : f->t0);
    switch ((rm_space)where->space) {
    case RM_RESIDENT:
        return r->resident + where->offset + along + where->per_stage * (uint64_t)f->stage;
    case RM_EXTERNAL:
        return r->external[where->slot] + along;
    case RM_AT_PIECE: {
        char *piece = rm_frame_piece(f, where);
        return piece ? piece + along : NULL;
    }
    case RM_AT_SAVED:
        return (char *)r->saved[f->stage] + where->offset;
    case RM_AT_SCRATCH:
        return (char *)r->scratch + where->offset;
    case RM_NOWHERE:
        break;
    }
    return NULL;
}

void rm_run_add(const rm_runner *r, void *y, void *x, int64_t count) {
    remat_desc flat = rm_desc_make(REMAT_F32, 1, &count);
    remat_call call = {.y = {flat, y}, .x = {{flat, y}, {flat, x}}, .t_total = 1};
    r->api->run(r->queue, &RM_OP(add), REMAT_FORWARD, &call);
}

void rm_run_scale(const rm_runner *r, void *y, double factor, int64_t count) {
    remat_desc flat = rm_desc_make(REMAT_F32, 1, &count);
    rm_scale_attr attr = {factor, 0};
    remat_call call = {.attr = &attr, .y = {flat, y}, .x = {{flat, y}}, .t_total = 1};
    r->api->run(r->queue, &RM_OP(scale), REMAT_FORWARD, &call);
}
