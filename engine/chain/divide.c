/* divide.c: reduces a stage's program to one rank's part in a pipeline. program.c writes the program of the whole
 * stage and marks each instruction with the rank that runs it. This file removes the instructions of other ranks. If
 * an instruction reads a value that only another rank has, the owner sends it and this rank receives it, at the same
 * point of the program on both. All ranks follow the same order, so messages need no names. Ranks cannot deadlock,
 * because both ranks of the first message that has not been exchanged wait for that message.
 *
 * A state is sent to all ranks that read it as soon as it is computed. Its gradient is complete, at the end of each
 * program, on the rank that computed the state. A sum is computed on the rank that holds it, in the order that a
 * single rank would use: ranks send terms, not partial sums. Main entry: rm_program_divide. */
#include <string.h>

#include "engine/chain/builder.h"
#include "memory/host.h"

typedef struct {
    builder *b;
    rm_written *item; /* this rank's */
    int64_t n, capacity;
} part;

static uint64_t bit(int rank) { return UINT64_C(1) << rank; }
static int first_of(uint64_t ranks) { return __builtin_ctzll(ranks); }

static remat_status append(part *p, rm_written written) {
    REQUIRE(rm_grow(&p->item, &p->capacity, p->n + 1, sizeof *p->item), MEMORY, "out of memory for a stage's program");
    p->item[p->n++] = written;
    return REMAT_OK;
}

/* ---- Copies ----------------------------------------------------------------------------------------------------- */

static int maker_of(const builder *b, const rm_where *where) {
    const rm_chain *chain = b->chain;
    return chain->owner[where->of < 0 ? -1 - where->of : chain->graph->value[where->of].node];
}

static uint64_t readers_of(const builder *b, int32_t value) {
    uint64_t ranks = 0;
    for (int r = 0; r < b->chain->n_ranks; r++)
        if (rm_chain_reads(b->chain, value, r)) ranks |= bit(r);
    return ranks;
}

static bool is_gradient(const builder *b, const rm_where *where) {
    return where->space == RM_AT_PIECE && where->piece >= rm_chain_state_pieces(b->chain);
}

static bool is_loss(const builder *b, const rm_where *where) {
    const rm_residents *at = &b->chain->at;
    return where->space == RM_RESIDENT && b->chain->loss && where->offset >= at->loss_offset &&
           where->offset < at->loss_offset + at->loss_bytes;
}

/* Any other resident array is on the one rank that uses it, or on all ranks. */
static bool is_tracked(const builder *b, const rm_where *where) {
    return where->space >= RM_AT_PIECE || is_loss(b, where);
}

/* The ranks on which the place is valid when a program starts. */
static uint64_t valid_at_first(const builder *b, const rm_where *where) {
    if (is_loss(b, where)) return bit(b->chain->owner[b->chain->graph->value[b->chain->loss].node]);
    if (where->space != RM_AT_PIECE) return 0;
    uint64_t maker = bit(maker_of(b, where));
    return where->of < 0 || is_gradient(b, where) ? maker : maker | readers_of(b, where->of);
}

static bool same_place(const rm_where *x, const rm_where *y) {
    if (x->space != y->space) return false;
    if (x->space == RM_AT_PIECE) return x->piece == y->piece && x->stride == y->stride && x->shift == y->shift;
    return x->offset == y->offset;
}

static remat_status find_copies(builder *b, const rm_where *where, rm_copies **out) {
    for (int64_t i = 0; i < b->n_copies; i++)
        if (same_place(&b->copies[i].where, where)) {
            *out = &b->copies[i];
            return REMAT_OK;
        }
    REQUIRE(rm_grow(&b->copies, &b->copies_capacity, b->n_copies + 1, sizeof *b->copies), MEMORY,
            "out of memory for a stage's program");
    b->copies[b->n_copies] = (rm_copies){.where = *where, .valid = valid_at_first(b, where)};
    *out = &b->copies[b->n_copies++];
    return REMAT_OK;
}

void rm_program_forget_saved(builder *b) { b->n_copies = 0; }

/* A backward program starts with the values that the forward program saved. */
static void forget_all_but_saved(builder *b) {
    int64_t kept = 0;
    for (int64_t i = 0; i < b->n_copies; i++)
        if (b->copies[i].where.space == RM_AT_SAVED) b->copies[kept++] = b->copies[i];
    b->n_copies = kept;
}

/* ---- Messages --------------------------------------------------------------------------------------------------- */

/* One tile's part of a buffer of all timesteps. */
static bool is_part(const rm_where *where) { return where->space == RM_AT_SCRATCH && where->of; }

static remat_status move(part *p, rm_copies *copies, const rm_where *where, int to, uint64_t bytes) {
    int from = first_of(copies->valid), rank = p->b->chain->rank;
    rm_written w = {.instruction = {.node = -1, .count = (int64_t)(bytes / 4)}, .moved_bytes = 2.0 * (double)bytes};
    if (!is_part(where)) copies->valid |= bit(to);
    if (rank == from) {
        w.instruction.what = RM_DO_SEND;
        w.instruction.peer = (int16_t)to;
        w.instruction.x[0] = *where;
        return append(p, w);
    }
    if (rank != to) return REMAT_OK;
    w.instruction.what = RM_DO_RECEIVE;
    w.instruction.peer = (int16_t)from;
    w.instruction.y = *where;
    return append(p, w);
}

static remat_status read_on(part *p, const rm_where *where, int rank, uint64_t bytes) {
    rm_copies *copies = NULL;
    if (!is_tracked(p->b, where)) return REMAT_OK;
    TRY(find_copies(p->b, where, &copies));
    if (copies->valid & bit(rank)) return REMAT_OK;
    REQUIRE(copies->valid, INTERNAL, "a program of a pipeline reads a value that no rank has computed");
    return move(p, copies, where, rank, bytes);
}

static remat_status write_on(part *p, const rm_where *where, int rank, uint64_t bytes) {
    rm_copies *copies = NULL;
    if (!is_tracked(p->b, where)) return REMAT_OK;
    TRY(find_copies(p->b, where, &copies));
    copies->valid = bit(rank);
    copies->bytes = bytes;
    copies->written = true;
    bool crosses = where->space == RM_AT_PIECE && where->of > 0 && !is_gradient(p->b, where);
    uint64_t readers = crosses ? readers_of(p->b, where->of) & ~copies->valid : 0;
    for (; readers; readers &= readers - 1) TRY(move(p, copies, where, first_of(readers), bytes));
    return REMAT_OK;
}

/* ---- Instructions ----------------------------------------------------------------------------------------------- */

/* An operand's bytes, by its position in rm_instruction.operand; 0: it is never sent to another rank. */
static void find_bytes(const builder *b, const rm_instruction *i, uint64_t bytes[RM_OPERANDS]) {
    enum { AT_X = 0, AT_Y = REMAT_MAX_INPUTS, AT_STATE_IN = AT_Y + 1, AT_STATE_OUT = AT_STATE_IN + REMAT_MAX_STATES };
    enum { AT_DY = AT_STATE_OUT + REMAT_MAX_STATES, AT_DX = AT_DY + 1, AT_DSTATE_OUT = AT_DX + REMAT_MAX_INPUTS };
    enum { AT_DSTATE_IN = AT_DSTATE_OUT + REMAT_MAX_STATES };
    memset(bytes, 0, RM_OPERANDS * sizeof *bytes);
    if (i->node < 0) {
        bytes[AT_X] = bytes[AT_Y] = 4 * (uint64_t)i->count;
        return;
    }
    const rm_node *node = &b->chain->graph->node[i->node];
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(b->chain->graph, node, b->kind ? b->kind->tau : 0, x, &y, state);
    for (int k = 0; k < node->op->n_in; k++) bytes[AT_X + k] = bytes[AT_DX + k] = rm_desc_bytes(&x[k]);
    bytes[AT_Y] = bytes[AT_DY] = rm_desc_bytes(&y);
    for (int k = 0; k < node->op->n_state; k++) {
        bytes[AT_STATE_IN + k] = bytes[AT_STATE_OUT + k] = rm_desc_bytes(&state[k]);
        bytes[AT_DSTATE_IN + k] = bytes[AT_DSTATE_OUT + k] = rm_desc_bytes(&state[k]);
    }
}

static bool is_among(const rm_instruction *i, int operand, const rm_where *first, int n) {
    const rm_where *at = &i->operand[operand];
    return at >= first && at < first + n;
}

/* A kernel call writes this operand. If it is a gradient of weights, the call also reads it, because it adds to it. */
static bool is_written(const builder *b, const rm_instruction *i, int operand, bool *read) {
    const rm_node *node = i->node >= 0 ? &b->chain->graph->node[i->node] : NULL;
    bool y = is_among(i, operand, &i->y, 1), scratch = is_among(i, operand, &i->scratch, 1);
    bool aux = is_among(i, operand, &i->aux, 1), dx = is_among(i, operand, i->dx, REMAT_MAX_INPUTS);
    *read = false;
    switch ((rm_do)i->what) {
    case RM_DO_FORWARD:
        return y || aux || scratch || is_among(i, operand, i->state_out, REMAT_MAX_STATES);
    case RM_DO_ONCE:
        return scratch;
    case RM_DO_REBUILD:
        return aux || scratch;
    case RM_DO_BACKWARD:
        *read = dx && node->op->shared >> (&i->operand[operand] - i->dx) & 1;
        return dx || scratch || is_among(i, operand, i->dstate_in, REMAT_MAX_STATES);
    case RM_DO_ADD:
        *read = y;
        return y;
    default:
        return y;
    }
}

/* A layer's state after the last timestep is a value, which other ranks may read. */
static remat_status hand_on_final_states(part *p, const rm_instruction *i, int rank, const uint64_t *bytes) {
    const builder *b = p->b;
    bool last = i->what == RM_DO_FORWARD && i->node >= 0 && b->kind && b->kind->last;
    const rm_node *node = last ? &b->chain->graph->node[i->node] : NULL;
    for (int k = 0; last && k < node->op->n_state; k++) {
        int32_t value = node->final[k];
        if (!value || b->chain->cross[value] < 0) continue;
        uint64_t readers = readers_of(b, value) & ~bit(rank);
        for (; readers; readers &= readers - 1)
            TRY(read_on(p, &i->state_out[k], first_of(readers), bytes[&i->state_out[k] - i->operand]));
    }
    return REMAT_OK;
}

/* A sum is computed on the rank that holds it. */
static remat_status find_rank(part *p, const rm_written *w, int *rank) {
    const rm_instruction *i = &w->instruction;
    rm_copies *copies = NULL;
    *rank = w->rank;
    if (i->what != RM_DO_ADD || !is_tracked(p->b, &i->y)) return REMAT_OK;
    TRY(find_copies(p->b, &i->y, &copies));
    if (copies->valid && !(copies->valid & bit(w->rank))) *rank = first_of(copies->valid);
    return REMAT_OK;
}

static remat_status divide_one(part *p, const rm_written *w) {
    const rm_instruction *i = &w->instruction;
    uint64_t bytes[RM_OPERANDS];
    int rank;
    bool read;
    if (w->rank == RM_EVERY_RANK) return append(p, *w);
    find_bytes(p->b, i, bytes);
    TRY(find_rank(p, w, &rank));
    for (int k = 0; k < RM_OPERANDS; k++)
        if (i->operand[k].space && (!is_written(p->b, i, k, &read) || read))
            TRY(read_on(p, &i->operand[k], rank, bytes[k]));
    if (rank == p->b->chain->rank) TRY(append(p, *w));
    for (int k = 0; k < RM_OPERANDS; k++)
        if (i->operand[k].space && is_written(p->b, i, k, &read)) TRY(write_on(p, &i->operand[k], rank, bytes[k]));
    return hand_on_final_states(p, i, rank, bytes);
}

static remat_status bring_gradients_home(part *p) {
    builder *b = p->b;
    for (int64_t i = 0; i < b->n_copies; i++) {
        rm_copies *copies = &b->copies[i];
        rm_where where = copies->where;
        if (!copies->written || !is_gradient(b, &where)) continue;
        TRY(read_on(p, &where, maker_of(b, &where), copies->bytes));
    }
    return REMAT_OK;
}

/* ---- The program ------------------------------------------------------------------------------------------------ */

/* A scratch buffer lives from the first to the last instruction of this rank that uses it; others get no bytes.
 */
static remat_status number_buffers(builder *b, rm_lifetimes *mine) {
    int64_t *number = rm_calloc((size_t)b->buffers.count + 1, sizeof *number);
    REQUIRE(number, MEMORY, "out of memory for a stage's program");
    bool got = true;
    for (int64_t n = 0; n < b->program->n && got; n++)
        for (int k = 0; k < RM_OPERANDS && got; k++) {
            rm_where *where = &b->item[n].instruction.operand[k];
            if (where->space != RM_AT_SCRATCH) continue;
            uint64_t old = where->offset;
            if (!number[old]) {
                got = rm_grow(&mine->item, &mine->capacity, mine->count + 1, sizeof *mine->item);
                if (!got) break;
                mine->item[mine->count] = b->buffers.item[old];
                mine->item[mine->count].index = (int32_t)mine->count;
                mine->item[mine->count].first = n;
                number[old] = ++mine->count;
            }
            where->offset = (uint64_t)number[old] - 1;
            mine->item[where->offset].last = n;
        }
    rm_free(number);
    REQUIRE(got, MEMORY, "out of memory for a stage's program");
    return REMAT_OK;
}

static remat_status divide(part *p) {
    builder *b = p->b;
    forget_all_but_saved(b);
    for (int32_t n = 0; n < b->program->n; n++) TRY(divide_one(p, &b->item[n]));
    return bring_gradients_home(p);
}

remat_status rm_program_divide(builder *b) {
    part p = {.b = b};
    rm_lifetimes mine = {0};
    remat_status status = divide(&p);
    if (!status) {
        rm_free(b->item);
        b->item = p.item;
        b->capacity = p.capacity;
        b->program->n = (int32_t)p.n;
        status = number_buffers(b, &mine);
        rm_lifetimes_free(&b->buffers);
        b->buffers = mine;
    } else {
        rm_free(p.item);
    }
    return status;
}

/* ---- The saved block -------------------------------------------------------------------------------------------- */

static void mark_saved(const rm_program *program, const uint64_t *offset, int64_t n, bool *used) {
    for (int32_t i = 0; i < program->n_where; i++)
        for (int64_t k = 0; k < n && program->where[i].space == RM_AT_SAVED; k++)
            used[k] |= program->where[i].offset == offset[k];
}

static void move_saved(rm_program *program, const uint64_t *offset, const uint64_t *to, int64_t n) {
    for (int32_t i = 0; i < program->n_where; i++)
        for (int64_t k = 0; k < n && program->where[i].space == RM_AT_SAVED; k++)
            if (program->where[i].offset == offset[k]) {
                program->where[i].offset = to[k];
                break;
            }
}

/* All values that the option saves, sorted by offset; each starts where the one before it ends. */
static int64_t list_saved(const builder *b, uint64_t *offset) {
    const remat_graph *graph = b->chain->graph;
    int64_t n = 0;
    for (int32_t v = 0; v < graph->n_values + graph->n_nodes; v++) {
        const rm_where *where = v < graph->n_values ? &b->saved_value[v] : &b->saved_aux[v - graph->n_values];
        if (where->space != RM_AT_SAVED) continue;
        int64_t k = n++;
        for (; k > 0 && offset[k - 1] > where->offset; k--) offset[k] = offset[k - 1];
        offset[k] = where->offset;
    }
    return n;
}

remat_status rm_program_pack_saved(builder *b, rm_kind_option *option) {
    size_t most = (size_t)b->chain->graph->n_values + (size_t)b->chain->graph->n_nodes + 1;
    uint64_t *offset = rm_calloc(most, sizeof *offset), *to = rm_calloc(most, sizeof *to), cursor = 0;
    bool *used = rm_calloc(most, sizeof *used), got = offset && to && used;
    if (got) {
        int64_t n = list_saved(b, offset);
        mark_saved(&option->forward, offset, n, used);
        mark_saved(&option->backward, offset, n, used);
        for (int64_t k = 0; k < n; k++) {
            uint64_t end = k + 1 < n ? offset[k + 1] : option->saved_bytes;
            to[k] = cursor;
            cursor += used[k] ? end - offset[k] : 0;
        }
        move_saved(&option->forward, offset, to, n);
        move_saved(&option->backward, offset, to, n);
        option->saved_bytes = cursor;
    }
    rm_free(offset);
    rm_free(to);
    rm_free(used);
    REQUIRE(got, MEMORY, "out of memory for what a stage saves");
    return REMAT_OK;
}
