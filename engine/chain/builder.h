/* builder.h: the state of writing a stage's programs (chain.h), shared by program.c, which writes them,
 * instructions.c, divide.c, and saved.c, which decides what an option saves. Private to these files. */
#ifndef RM_CHAIN_BUILDER_H
#define RM_CHAIN_BUILDER_H

#include "engine/chain/chain.h"
#include "memory/place.h"

/* An instruction that is being written. `rank`: in a pipeline, the rank that runs it. */
typedef struct {
    rm_instruction instruction;
    double flops, moved_bytes;
    int16_t rank;
} rm_written;

/* In a pipeline: a place in memory, and the ranks on which it is valid, as bits. */
typedef struct {
    rm_where where;
    uint64_t valid, bytes;
    bool written;
} rm_copies;

/* While a program is written, an AT_SCRATCH operand has the number of its buffer in `offset`, and an offset inside this
 * buffer in `per_time`. Finishing the program replaces both by the offset in scratch. */
typedef struct {
    rm_chain *chain;
    rm_stage_kind *kind;
    rm_program *program;
    const rm_chain_config *config;
    rm_lifetimes buffers;
    rm_written *item; /* the program's instructions: program->n of them */
    int64_t capacity;
    double flops, moved_bytes; /* of the next instruction */
    int32_t of_node;           /* the node whose instructions are being written */
    rm_copies *copies;         /* divide.c */
    int64_t n_copies, copies_capacity;
    rm_where *value;        /* by value id: its current place */
    rm_where *gradient;     /* by value id: the place where its gradient is accumulated */
    uint8_t *contributed;   /* by value id: its gradient has a first term */
    rm_where *aux;          /* by node */
    rm_where *saved_value;  /* by value id, for the option: AT_SAVED; NOWHERE: not saved */
    rm_where *saved_aux;    /* by node, for the option */
    uint8_t *again;         /* by node, for the option: how a backward run recomputes values that were not saved */
    uint8_t *spine;         /* by node, for the kind */
    uint8_t *early;         /* by node, for the kind: a differentiated output depends on it */
    bool evaluating;        /* the program is an evaluation's */
    double recompute_limit; /* for the option, flops per byte of output: ops up to this are recomputed, cheap or not */
    uint64_t saved_before;  /* bytes that the previous option saves, on all ranks */
    bool once;              /* the instructions written now run only in a stage's first forward run */
} builder;

/* In `again`. REBUILT: aux only, by the op's rebuild. RUN_AGAIN: y and aux, by its forward. */
enum { NOT_AGAIN, REBUILT, RUN_AGAIN };

static inline const rm_node *node_at(const builder *b, int32_t position) {
    return &b->chain->graph->node[b->chain->order[b->kind->first_node + position]];
}
static inline int32_t index_of(const builder *b, const rm_node *node) {
    return (int32_t)(node - b->chain->graph->node);
}

static inline uint64_t tile_bytes(const builder *b, int32_t value) {
    remat_desc desc = rm_value_desc(b->chain->graph, value, b->kind ? b->kind->tau : 0);
    return rm_desc_bytes(&desc);
}

static inline const rm_sweep *sweep_of(const builder *b) { return &b->chain->sweep[b->kind->sweep]; }

/* Whether nodes of other sweeps read this value, which the stage makes. */
static inline bool crosses_out(const builder *b, int32_t value) {
    int32_t i = b->kind ? b->chain->cross[value] : -1;
    return i >= 0 && b->chain->crossing[i].sweep == b->kind->sweep;
}

/* Whether the node is a reduction over time whose result is read. Its running sum is carried from tile to tile. */
static inline bool accumulates(const builder *b, const rm_node *node) {
    int32_t slot = rm_carried_slot(b->chain, index_of(b, node), -1);
    return slot >= 0 && (b->evaluating || b->chain->carried[slot].trained);
}

static inline bool learns(const builder *b, const rm_node *node) {
    return !b->config->inference && b->chain->use[node->y] == RM_DIFFERENTIATED;
}
/* Whether its backward reads x[k]. For the first input this depends on the gradients wanted: op->first_for. */
static inline bool backward_reads(const builder *b, const rm_node *node, int k) {
    bool wanted = !node->op->first_for || k;
    for (int i = 0; i < node->op->n_in; i++)
        wanted |= node->op->first_for >> i & 1 && b->chain->use[node->x[i]] == RM_DIFFERENTIATED;
    return wanted && learns(b, node) && node->op->saves.in >> k & 1;
}
static inline bool is_on_spine(const builder *b, const rm_node *node) { return b->spine[index_of(b, node)]; }

/* Whether the node is part of a stage's backward run. Nodes that only outputs depend on are part of an evaluation
 * only. */
static inline bool is_leaf(const builder *b, const rm_node *node) {
    return !is_on_spine(b, node) && b->chain->use[node->y] != RM_UNUSED;
}

/* No address. */
#define RM_NO_PLACE ((rm_where){.space = RM_NOWHERE})

/* Whether the stage makes the value. */
static inline bool rm_made_here(const builder *b, int32_t value) {
    const rm_value *v = &b->chain->graph->value[value];
    if (!value || v->origin != RM_VALUE_RESULT || !b->kind || (v->state && !b->kind->last)) return false;
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        if (node_at(b, i)->y == value || (v->state && index_of(b, node_at(b, i)) == v->node)) return true;
    return false;
}

/* Whether a stage of all timesteps must gather this value from tiles. */
static inline bool rm_is_in_tiles(const builder *b, int32_t value) {
    int32_t i = b->kind && sweep_of(b)->whole ? b->chain->cross[value] : -1;
    return i >= 0 && b->chain->crossing[i].tiled;
}

/* instructions.c. A node's calls. DROPPING: its results live in scratch; KEEPING: where the option saves them; LEAF: inside
 * a backward run. */
typedef enum { DROPPING, KEEPING, LEAF } rm_forward_mode;
remat_status rm_emit_forward(builder *b, const rm_node *node, rm_forward_mode mode);
remat_status rm_emit_backward(builder *b, const rm_node *node);
/* COPY, ADD or ZERO of `bytes` bytes; the same of a gradient of all timesteps, to its tiles. */
remat_status rm_emit_simple(builder *b, rm_do what, rm_where y, rm_where x, uint64_t bytes);
remat_status rm_emit_scatter(builder *b, int32_t value, rm_where whole, rm_do what);
void rm_find_final(builder *b, const rm_node *node);
bool rm_is_initialised(const builder *b, int32_t value);

/* divide.c. divide: reduces the program to this rank's instructions, and adds what it sends and receives. forget_saved:
 * call it before an option's first program. pack_saved: removes from the saved block what this rank does not use. */
remat_status rm_program_divide(builder *b);
void rm_program_forget_saved(builder *b);
remat_status rm_program_pack_saved(builder *b, rm_kind_option *option);

/* saved.c. mark_spine: marks the nodes of the kind that a later stage needs in training. mark_early: marks those needed
 * before any backward run. */
void rm_program_mark_spine(builder *b);
void rm_program_mark_early(builder *b);
/* Lays out what an option saves, and decides how the rest is recomputed. The spine must have been marked; call it for
 * the leaner option right after the lean one. */
typedef enum { RM_ALL, RM_LEAN, RM_LEANER } rm_leanness;
void rm_program_lay_out_saved(builder *b, rm_leanness, rm_kind_option *option);

#endif
