/* chain.c: queries on a finished chain (chain.h), and freeing it. stages.c builds chains. */
#include "engine/chain/chain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "memory/host.h"

static int64_t default_tile(int64_t batch, int64_t rows) {
    int64_t tile = rows / 2;
    while (tile > 8 && tile * batch > rows) tile /= 2;
    return tile;
}

int64_t rm_tile_of(int64_t asked, int64_t carry_stride, int64_t timesteps, int64_t batch, remat_device_kind kernels) {
    int64_t tile = asked ? asked : default_tile(batch, kernels == REMAT_ON_CUDA ? 2048 : 512);
    while (!asked && carry_stride % tile) tile--;
    return tile < timesteps ? tile : timesteps;
}

const rm_sweep *rm_stage_sweep(const rm_chain *chain, int64_t stage) {
    int32_t low = 0, high = chain->n_sweeps;
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        *(chain->sweep[middle].first <= stage ? &low : &high) = middle;
    }
    return &chain->sweep[low];
}

const rm_stage_kind *rm_stage_kind_of(const rm_chain *chain, int64_t stage) {
    const rm_sweep *sweep = rm_stage_sweep(chain, stage);
    int64_t position = stage - sweep->first;
    bool last = position == sweep->count - 1;
    return &chain->kind[last ? sweep->tail : position == 0 ? sweep->head : sweep->inner];
}

int64_t rm_stage_begin(const rm_chain *chain, int64_t stage) {
    const rm_sweep *sweep = rm_stage_sweep(chain, stage);
    return sweep->timesteps ? rm_sweep_turn(sweep, stage - sweep->first) * sweep->tile : 0;
}

/* ---- Addresses ------------------------------------------------------------------------------------------------- */

int32_t rm_carried_slot(const rm_chain *chain, int32_t node, int state) {
    for (int32_t k = 0; k < chain->n_carried; k++)
        if (chain->carried[k].node == node && chain->carried[k].state == state) return k;
    return -1;
}

const char *rm_output_name(int32_t output, char name[RM_OUTPUT_NAME]) {
    snprintf(name, RM_OUTPUT_NAME, "output.%d", output);
    return name;
}

void rm_chain_state_name(const rm_chain *chain, int32_t slot, char name[80]) {
    const rm_carried *carried = &chain->carried[slot];
    const remat_op *op = chain->graph->node[carried->node].op;
    int before = 0;
    for (int32_t n = 0; n < carried->node; n++) before += !strcmp(chain->graph->node[n].op->name, op->name);
    snprintf(name, 80, "%s.%d.%s", op->name, before, rm_op_state_name(op, carried->state));
}

static const rm_sweep *sweep_of_carried(const rm_chain *chain, int32_t slot) {
    return &chain->sweep[chain->sweep_of[chain->carried[slot].node]];
}

rm_where rm_carried_where(const rm_chain *chain, int32_t slot, int shift) {
    const rm_sweep *sweep = sweep_of_carried(chain, slot);
    return (rm_where){.space = RM_AT_PIECE,
                      .shift = (int8_t)shift,
                      .of = -1 - chain->carried[slot].node,
                      .slot = slot,
                      .piece = (int32_t)(sweep->piece + sweep->n_crossing + slot - sweep->first_carried),
                      .stride = sweep->pieces,
                      .limit = (int32_t)sweep->count};
}

/* Whether the state has a gradient after the last stage of its sweep: only if another sweep starts with it. */
static bool has_final_gradient(const rm_chain *chain, int32_t slot) {
    const rm_carried *carried = &chain->carried[slot];
    int32_t value = carried->state < 0 ? 0 : chain->graph->node[carried->node].final[carried->state];
    return value && chain->cross[value] >= 0 && chain->crossing[chain->cross[value]].d_place >= 0;
}

rm_where rm_carried_gradient(const rm_chain *chain, int32_t slot, int shift) {
    const rm_sweep *sweep = sweep_of_carried(chain, slot);
    return (rm_where){.space = RM_AT_PIECE,
                      .shift = (int8_t)shift,
                      .of = -1 - chain->carried[slot].node,
                      .slot = slot,
                      .piece = (int32_t)(sweep->dpiece + sweep->n_gradients + slot - sweep->first_carried),
                      .stride = sweep->dpieces,
                      .limit = (int32_t)sweep->count - !has_final_gradient(chain, slot)};
}

/* A value with a piece for every stage of `maker`, starting with piece `first`: its address for the stages of
 * `reader`. */
static rm_where of_tile(int32_t value, const rm_sweep *maker, int64_t first, int32_t stride, const rm_sweep *reader,
                        int64_t tile) {
    rm_where where = {.space = RM_AT_PIECE, .of = value, .piece = (int32_t)first, .limit = INT32_MAX};
    if (tile >= 0) {
        where.piece = (int32_t)(first + stride * rm_sweep_turn(maker, tile));
        return where;
    }
    bool opposite = maker->down != reader->down;
    where.stride = opposite ? -stride : stride;
    if (opposite) where.piece = (int32_t)(first + stride * (maker->count - 1));
    return where;
}

/* A value with one piece: readers along time address their tile's part, others the whole piece. */
static rm_where of_whole(const rm_chain *chain, int32_t value, int64_t piece, const rm_sweep *reader) {
    const rm_value *v = &chain->graph->value[value];
    rm_where where = {
        .space = RM_AT_PIECE, .of = value, .piece = (int32_t)piece, .limit = INT32_MAX, .from_end = v->reversed};
    if (v->sequence && reader->timesteps && !reader->whole)
        where.per_time = rm_desc_bytes(&v->desc) / (uint64_t)reader->timesteps;
    return where;
}

rm_where rm_crossing_where(const rm_chain *chain, int32_t value, const rm_sweep *reader, int64_t tile) {
    const rm_crossing *c = &chain->crossing[chain->cross[value]];
    const rm_sweep *maker = &chain->sweep[c->sweep];
    if (c->tiled) return of_tile(value, maker, maker->piece + c->place, maker->pieces, reader, tile);
    return of_whole(chain, value, maker->piece + (maker->count - 1) * maker->pieces + c->place, reader);
}

rm_where rm_crossing_gradient(const rm_chain *chain, int32_t value, const rm_sweep *reader, int64_t tile) {
    const rm_crossing *c = &chain->crossing[chain->cross[value]];
    const rm_sweep *maker = &chain->sweep[c->sweep];
    if (c->d_place < 0) return (rm_where){0};
    if (c->tiled) return of_tile(value, maker, maker->dpiece + c->d_place, maker->dpieces, reader, tile);
    return of_whole(chain, value, maker->dpiece + (maker->count - 1) * maker->dpieces + c->d_place, reader);
}

/* ---- Other queries --------------------------------------------------------------------------------------------- */

int64_t rm_chain_bound(const rm_chain *chain, int32_t value) {
    int64_t bound = 0;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        if (chain->role[n] == RM_ROLE_DEAD || !node->op->bound) continue;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        for (int i = 0; i < node->op->n_in; i++) {
            int64_t limit = node->x[i] == value ? node->op->bound(x, node->attr, i) : 0;
            if (limit && (!bound || limit < bound)) bound = limit;
        }
    }
    return bound;
}

int64_t rm_chain_ignored(const rm_chain *chain, int32_t value) {
    int64_t ignored = 0;
    bool found = false;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        for (int i = 0; chain->role[n] != RM_ROLE_DEAD && node->op->bound && i < node->op->n_in; i++) {
            if (node->x[i] != value) continue;
            int64_t mine = node->op->ignored ? node->op->ignored(node->attr, i) : 0;
            if (found && mine != ignored) return 0;
            ignored = mine;
            found = true;
        }
    }
    return ignored;
}

static bool is_among(const rm_chain *chain, int32_t n_outputs, int32_t value) {
    for (int32_t i = 0; i < n_outputs; i++)
        if (chain->outputs[i] == value) return true;
    return false;
}

bool rm_chain_is_output(const rm_chain *chain, int32_t value) { return is_among(chain, chain->n_outputs, value); }
bool rm_chain_is_differentiated_outside(const rm_chain *chain, int32_t value) {
    return is_among(chain, chain->n_differentiated, value);
}

uint64_t rm_chain_once_ns(const rm_chain *chain) {
    uint64_t sum = 0;
    for (int64_t s = 0; s < chain->n_stages; s++) sum += rm_stage_kind_of(chain, s)->drop.once_ns;
    return sum;
}

int64_t rm_chain_state_pieces(const rm_chain *chain) {
    const rm_sweep *last = &chain->sweep[chain->n_sweeps - 1];
    return last->piece + last->count * last->pieces + last->n_tail_crossing;
}

rm_piece_origin rm_chain_piece_origin(const rm_chain *chain, int64_t piece) {
    int32_t w = chain->n_sweeps - 1;
    while (w > 0 && chain->sweep[w].piece > piece) w--;
    const rm_sweep *sweep = &chain->sweep[w];
    int64_t within = piece - sweep->piece, position = sweep->pieces ? within / sweep->pieces : sweep->count;
    if (position >= sweep->count) position = sweep->count - 1;
    int64_t place = within - position * sweep->pieces;
    rm_piece_origin origin = {.stage = sweep->first + position};
    int64_t carried = place - sweep->n_crossing;
    if (carried >= 0 && carried < sweep->n_carried)
        origin.carried = &chain->carried[sweep->first_carried + carried];
    else
        origin.crossing = &chain->crossing[sweep->first_crossing + (carried < 0 ? place : place - sweep->n_carried)];
    return origin;
}

/* ---- Programs -------------------------------------------------------------------------------------------------- */

rm_instruction rm_program_at(const rm_program *program, int32_t n) {
    const rm_packed_instruction *from = &program->item[n];
    const rm_where *where = program->where + from->first;
    rm_instruction to = {
        .what = from->what, .once = from->once, .peer = from->peer, .node = from->node, .count = from->count};
    for (int w = 0; w < (RM_OPERANDS + 63) / 64; w++)
        for (uint64_t there = from->there[w]; there; there &= there - 1)
            to.operand[64 * w + __builtin_ctzll(there)] = *where++;
    return to;
}

/* Arithmetic and memory traffic overlap; the time of calls is added. */
static uint64_t guess(double flops, double moved_bytes, int32_t calls, const rm_rates *rates) {
    double arithmetic = flops / rates->flops_per_s, traffic = moved_bytes / rates->bytes_per_s;
    double ns = 1e9 * (arithmetic > traffic ? arithmetic : traffic) + rates->call_ns * calls;
    return (uint64_t)fmin(ns, 0x1p50); /* 13 days: an op may declare any cost, and the sum of times must not overflow */
}

void rm_program_guess(rm_program *p, const rm_rates *rates) {
    p->time_ns = guess(p->flops, p->moved_bytes, p->n - p->n_once, rates);
    p->once_ns = guess(p->once_flops, p->once_moved_bytes, p->n_once, rates);
}

static uint64_t program_bytes(const rm_program *program) {
    return (uint64_t)program->n * sizeof *program->item + (uint64_t)program->n_where * sizeof *program->where;
}

uint64_t rm_chain_program_bytes(const rm_chain *chain) {
    uint64_t bytes = program_bytes(&chain->prologue) + program_bytes(&chain->epilogue);
    for (int32_t c = 0; c < chain->n_kinds; c++) {
        const rm_stage_kind *kind = &chain->kind[c];
        int64_t touched = kind->reads.n + kind->keeps.n + kind->adds.n + kind->evaluation_reads.n;
        bytes += sizeof *kind + (uint64_t)touched * sizeof(rm_where);
        bytes += program_bytes(&kind->drop) + program_bytes(&kind->evaluate);
        for (int k = 0; k < kind->n_options; k++)
            bytes += program_bytes(&kind->option[k].forward) + program_bytes(&kind->option[k].backward);
    }
    return bytes;
}

/* ---- Freeing --------------------------------------------------------------------------------------------------- */

static void free_program(rm_program *program) {
    rm_free(program->item);
    rm_free(program->where);
}

static void free_buckets(rm_buckets *buckets) {
    rm_free(buckets->param);
    rm_free(buckets->order);
    rm_free(buckets->item);
}

void rm_chain_free(rm_chain *chain) {
    for (int32_t c = 0; chain->kind && c < chain->n_kinds; c++) {
        rm_stage_kind *kind = &chain->kind[c];
        free_program(&kind->drop);
        free_program(&kind->evaluate);
        for (int k = 0; k < RM_MAX_OPTIONS; k++) {
            free_program(&kind->option[k].forward);
            free_program(&kind->option[k].backward);
        }
        rm_free(kind->reads.item);
        rm_free(kind->keeps.item);
        rm_free(kind->adds.item);
        rm_free(kind->evaluation_reads.item);
    }
    free_program(&chain->prologue);
    free_program(&chain->epilogue);
    rm_free(chain->kind);
    rm_free(chain->role);
    rm_free(chain->use);
    rm_free(chain->outputs);
    rm_free(chain->carried);
    rm_free(chain->order);
    rm_free(chain->cross);
    rm_free(chain->crossing);
    rm_free(chain->sweep_of);
    rm_free(chain->owner);
    rm_free(chain->cut);
    rm_free(chain->part);
    rm_free(chain->sweep);
    rm_free(chain->at.value);
    rm_free(chain->at.gradient);
    rm_free(chain->at.packed);
    rm_free(chain->at.once);
    rm_free(chain->at.once_bytes);
    rm_free(chain->at.output);
    rm_free(chain->at.optimizer_state);
    rm_free(chain->at.carried);
    rm_free(chain->at.external);
    free_buckets(&chain->at.buckets);
    rm_problem_free(&chain->problem);
    rm_problem_free(&chain->evaluation);
    memset(chain, 0, sizeof *chain);
}
