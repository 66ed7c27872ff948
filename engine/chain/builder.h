/* builder.h: a program being written, and the questions about it that program.c, which writes, and saved.c, which
 * decides what a way of keeping a stage saves, both ask. Private to these two; what a program is, is in chain.h. */
#ifndef RM_CHAIN_BUILDER_H
#define RM_CHAIN_BUILDER_H

#include "engine/chain/chain.h"
#include "memory/place.h"

/* Offsets of AT_SCRATCH are buffer numbers until the program is finished, and per_time is where in the buffer: then the real
 * offsets are put in. */
typedef struct {
    rm_chain *chain;
    rm_stage_kind *class;
    rm_program *program;
    const rm_chain_config *config;
    rm_lifetimes buffers;
    rm_instruction *item; /* of the program that is being written: program->n of them */
    int64_t capacity;
    rm_where *value;       /* by value id: where it is now */
    rm_where *gradient;    /* by value id: where its gradient is collected */
    uint8_t *contributed;  /* by value id: its gradient has a first term already */
    rm_where *aux;         /* by node */
    rm_where *saved_value; /* by value id, of the option: AT_SAVED offset; NOWHERE: not saved */
    rm_where *saved_aux;   /* by node, of the option */
    uint8_t *again;        /* by node, of the option: how a backward run makes what was not saved */
    uint8_t *spine;        /* by node, of the class */
    uint8_t *early;        /* by node, of the class: an output that is differentiated from outside depends on it */
    bool evaluating;       /* the program is an evaluation's */
    double
        worth_a_byte; /* of the option: ops that need no more arithmetic than this for a byte are run again, cheap or not */
    bool once;        /* what is written now is for a stage's first forward run alone */
} builder;

/* In `again`. */
enum { NOT_AGAIN, REBUILT, RUN_AGAIN }; /* aux alone by the op's rebuild; y and aux by its forward */

static inline const rm_node *node_at(const builder *b, int32_t position) {
    return &b->chain->graph->node[b->chain->order[b->class->first_node + position]];
}
static inline int32_t index_of(const builder *b, const rm_node *node) {
    return (int32_t)(node - b->chain->graph->node);
}

static inline uint64_t tile_bytes(const builder *b, int32_t value) {
    remat_desc desc = rm_value_desc(b->chain->graph, value, b->class ? b->class->tau : 0);
    return rm_desc_bytes(&desc);
}

static inline const rm_sweep *sweep_of(const builder *b) { return &b->chain->sweep[b->class->sweep]; }

/* Does this value, which the class makes, outlive the stage: do nodes of other sweeps read it? */
static inline bool crosses_out(const builder *b, int32_t value) {
    int32_t i = b->class ? b->chain->cross[value] : -1;
    return i >= 0 && b->chain->crossing[i].sweep == b->class->sweep;
}

/* A reduction over time whose result somebody reads: its running sum is carried from tile to tile. */
static inline bool accumulates(const builder *b, const rm_node *node) {
    int32_t slot = rm_carried_slot(b->chain, index_of(b, node), -1);
    return slot >= 0 && (b->evaluating || b->chain->carried[slot].trained);
}

static inline bool learns(const builder *b, const rm_node *node) {
    return !b->config->inference && b->chain->use[node->y] == RM_DIFFERENTIATED;
}
/* Does its backward read x[k]? Of the first input, op->first_for says for which gradients. */
static inline bool backward_reads(const builder *b, const rm_node *node, int k) {
    bool wanted = !node->op->first_for || k;
    for (int i = 0; i < node->op->n_in; i++)
        wanted |= node->op->first_for >> i & 1 && b->chain->use[node->x[i]] == RM_DIFFERENTIATED;
    return wanted && learns(b, node) && node->op->saves.in >> k & 1;
}
static inline bool is_on_spine(const builder *b, const rm_node *node) { return b->spine[index_of(b, node)]; }

/* Run by a stage's backward run, of which it is a part. Outputs that the loss does not depend on are an evaluation's. */
static inline bool is_leaf(const builder *b, const rm_node *node) {
    return !is_on_spine(b, node) && b->chain->use[node->y] != RM_UNUSED;
}

/* saved.c. Of the class: which nodes a later stage needs, in training; and which are wanted before any backward run. */
void rm_program_mark_spine(builder *b);
void rm_program_mark_early(builder *b);
/* Of an option, the spine being marked: what is saved where, and how a lean one does without what is not; the leaner one is laid
 * out behind the lean. */
typedef enum { RM_ALL, RM_LEAN, RM_LEANER } rm_leanness;
void rm_program_lay_out_saved(builder *b, rm_leanness, rm_kind_option *option);

#endif
