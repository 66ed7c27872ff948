/* chain.h: a graph cut into a chain of stages, ready for the planner (a problem of numbers) and for the executor (a
 * program of kernel calls for each kind of run).
 *
 * Roles. Every node that the loss or an output depends on is one of
 *   TABLE  made of parameters alone, or at least without the time axis, and read by the chain: run once a step, before
 *          it; its backward runs once, after it. Resident. (The folded embedding table is one.)
 *   CHAIN  along time: run once for each tile. In a graph without sequences: every node, cut by depth.
 *   POST   behind a reduction over time (a classifier on the last step): part of the last tile's stage.
 *
 * Spine and leaf. In one stage, a node is on the SPINE if a later stage needs something it leads to: a carried state,
 * or a value that crosses the next cut. The others are LEAVES: the loss head above all. Forward runs of a stage run the
 * spine only. The backward run of the stage first runs the leaves forward, then everything backward. So a leaf runs
 * exactly once whatever is recomputed, and what it makes (the logits) lives in one stage's scratch, never for all T. What
 * outputs alone depend on is neither: only an evaluation runs it.
 *   Leaves that an output differentiated from outside depends on are wanted before any backward run: the stage's first forward
 * run runs them, too. Its backward run makes again what it must read of them, which is nothing of the output itself.
 *
 *         x ──► lstm ──► lstm ─┬─► linear ──► cross entropy        leaves: inside "run backward"
 *     state(s) ─►│───►────►│───┴─► state(s+1)                      spine:  "run forward"
 */
#ifndef RM_CHAIN_H
#define RM_CHAIN_H

#include "engine/buckets.h"
#include "engine/device.h"
#include "engine/graph.h"
#include "memory/problem.h"

/* ---- Roles ---------------------------------------------------------------------------------------------------- */

typedef enum { RM_ROLE_DEAD, RM_ROLE_TABLE, RM_ROLE_CHAIN, RM_ROLE_POST } rm_role;

/* One role a node, in `role` (n_nodes entries). INVALID when a sequence depends on what is known only after the last
 * timestep. */
remat_status rm_roles(const remat_graph *graph, const int32_t *keep, int n_keep, uint8_t *role);

/* What a training step does with a value: nothing, where only outputs depend on it; it is made; it is made, and then its
 * gradient: it lies on a way from a parameter to the loss. Only readers that are differentiated add to a gradient. */
typedef enum { RM_UNUSED, RM_MADE, RM_DIFFERENTIATED } rm_use;

/* One use a value, in `use` (n_values entries, zero but for what backward begins with: RM_DIFFERENTIATED). Carried states of
 * a stateful session are made anyway. */
void rm_training_uses(const remat_graph *graph, const uint8_t *role, bool stateful, uint8_t *use);

/* ---- Where things are ----------------------------------------------------------------------------------------- */

typedef enum { RM_NOWHERE, RM_RESIDENT, RM_AT_STATE, RM_AT_DSTATE, RM_AT_SAVED, RM_AT_SCRATCH } rm_space;

/* An address the executor can resolve for any stage of a class. */
typedef struct {
    uint8_t space;      /* rm_space */
    uint8_t next;       /* AT_STATE, AT_DSTATE: 1: at cut s+1, 0: at cut s */
    int32_t slot;       /* AT_STATE, AT_DSTATE: position in that cut's list; a shorter list means NULL */
    uint64_t offset;    /* RESIDENT: in the block; SAVED, SCRATCH: in the stage's own block */
    uint64_t per_time;  /* RESIDENT: plus this times the tile's first timestep */
    uint64_t per_stage; /* RESIDENT: plus this times the stage's number */
} rm_where;

/* Offsets of everything that stays. Filled by resident.c. */
typedef struct {
    rm_where *value;    /* by value id: inputs, parameters, tables; NOWHERE for the rest */
    rm_where *gradient; /* by value id: parameters, tables, inputs that ask for it, outputs differentiated from outside */
    uint64_t *packed;   /* by node: offset of its packed weights; UINT64_MAX: none */
    uint64_t *output;   /* by position in `outputs` */
    uint64_t fixed, fixed_bytes; /* what every call's `fixed` is; no bytes: NULL */
    uint64_t *optimizer_state; /* by value id * RM_MAX_OPTIMIZER_STATE + i */
    uint64_t carried, carried_next; /* stateful sessions: the states between calls */
    rm_buckets buckets;         /* of the parameters and their gradients */
    /* Parameters and their gradients, laid out alike; both begin on a page and own all of their last page, once the block's
     * first resident byte lies on one. */
    uint64_t parameters_offset, gradients_offset, section_bytes, section_pages_bytes;
    uint64_t table_gradients_offset, table_gradients_bytes; /* and inputs' */
    uint64_t sums_offset; /* pairwise micro steps: n_sums sections of gradients that wait for their other half */
    uint64_t loss_offset, loss_bytes;           /* one float a stage */
    uint64_t one_offset;                        /* one float: the loss's own gradient, 1 unless the batch is shared */
    uint64_t table_scratch;                     /* the prologue's and epilogue's scratch */
    uint64_t hashes_offset, hashes_bytes;       /* rm_chain_config.hashes: a rm_difference, then 8 bytes a piece */
    uint64_t bytes;                             /* of everything above */
} rm_residents;

/* ---- Programs ------------------------------------------------------------------------------------------------- */

typedef enum { RM_DO_FORWARD, RM_DO_BACKWARD, RM_DO_REBUILD, RM_DO_ADD, RM_DO_COPY, RM_DO_ZERO } rm_do;

enum { RM_OPERANDS = 2 * RM_MAX_IN + 4 * RM_MAX_STATE + 4 };

typedef struct {
    uint8_t what;  /* rm_do. ADD: y += x[0]. COPY: y = x[0]. ZERO: y = 0. A NULL y or x[0] makes these nothing */
    int32_t node;
    int64_t count; /* ADD, COPY, ZERO: elements, 4 bytes each */
    union {
        struct {
            rm_where x[RM_MAX_IN], y, state_in[RM_MAX_STATE], state_out[RM_MAX_STATE];
            rm_where dy, dx[RM_MAX_IN], dstate_out[RM_MAX_STATE], dstate_in[RM_MAX_STATE];
            rm_where aux, scratch;
        };
        rm_where operand[RM_OPERANDS]; /* the same, for whoever looks at all of them */
    };
} rm_instruction;
_Static_assert(offsetof(rm_instruction, scratch) == offsetof(rm_instruction, operand[RM_OPERANDS - 1]),
               "RM_OPERANDS is the number of an instruction's operands");

/* A forward program may end in what a stage's first run in a step alone makes: the same in every plan, and counted beside it. */
typedef struct rm_program {
    rm_instruction *item;
    int32_t n, n_once; /* of n, those at the end that are for the first run alone */
    int64_t capacity;
    uint64_t scratch_bytes;
    double flops, moved_bytes, once_flops, once_moved_bytes;
    uint64_t time_ns, once_ns; /* predicted */
} rm_program;

/* One way of keeping a stage. "all": every aux and every result that backward reads. "lean": no aux that an op rebuilds,
 * nothing of a cheap op; the backward run makes them again first, in its scratch. */
typedef struct {
    const char *name; /* of rm_option_names */
    uint64_t saved_bytes;
    rm_program forward, backward;
} rm_class_option;

/* Stages alike in shape share a class: all full tiles are one. */
typedef struct {
    int64_t tau;                  /* timesteps; 0 where the chain is cut by depth */
    int32_t first_node, n_nodes;  /* in chain->order */
    bool last;                    /* the last stage: holds POST nodes too */
    rm_program drop, evaluate;
    int n_options;                /* 0 for inference */
    rm_class_option option[RM_MAX_OPTIONS];
} rm_class;

typedef struct {
    int32_t node; /* a carried state of this node ... */
    int state;    /* ... this one; or -1: the running sum of a reduction over time that others read ... */
    bool trained; /* ... in a training step, too */
    uint64_t bytes;
    uint64_t kept; /* states of stateful sessions: where between calls, behind at.carried and at.carried_next */
} rm_carried;

typedef struct rm_chain {
    const remat_graph *graph; /* borrowed */
    uint8_t *role;
    uint8_t *use;             /* by value id: rm_use */
    int32_t *order;           /* CHAIN nodes, then POST nodes: n_order of them */
    int32_t n_order, n_chain_nodes;
    int64_t timesteps, batch, tile, n_stages;
    bool timed;               /* cut along time, not by depth */
    int32_t loss;             /* value id; 0: none */
    int32_t *outputs;         /* value ids: n_outputs of them, then the loss */
    int32_t n_outputs, n_differentiated, n_carried; /* outputs: the first so many are differentiated from outside */
    int64_t carried_capacity;
    rm_carried *carried;
    int32_t n_classes;
    rm_class *class;
    int32_t *piece;           /* by depth: value id -> piece of its activation, or -1 */
    int32_t *dpiece;          /* ... of its gradient */
    int32_t *from, *until;    /* by depth: value id -> stage that makes it, last stage that reads it */
    int32_t *d_until;         /* ... last stage that adds to its gradient */
    rm_program prologue, epilogue; /* the TABLE nodes */
    rm_residents at;
    rm_problem problem, evaluation;
} rm_chain;

typedef struct {
    int64_t tile;        /* as asked; 0: rm_tile_of */
    int threads, n_differentiated;
    bool inference, stateful;
    const remat_ranks *ranks; /* size 1 and no slots where there are none */
    int gradient_sums;       /* sections of gradients for pairwise micro steps */
    bool hashes;             /* the device keeps hashes of states (device.h, compare) */
    bool lean;               /* offer the option "lean" where it saves something */
    rm_device_kind kernels;  /* the column of the ops' kernel tables that will run */
    int optimizer_states;
    rm_rates rates;
} rm_chain_config;

/* Where the device has a descriptor of its own for a node (device.h, variant), that takes the place of the op (variant.c): all
 * tiles of a layer are run by the same kernels, whatever is kept of them. */
remat_status rm_graph_choose_variants(remat_graph *graph, const rm_device_api *api, rm_device *device, int64_t tile);

/* Cuts, lays out what is resident, writes the programs and both problems. *chain zeroed before; rm_chain_free takes what
 * a failure left, too. */
remat_status rm_chain_build(const remat_graph *graph, int32_t loss, const int32_t *outputs, int32_t n_outputs,
                            const rm_chain_config *config, rm_chain *chain);
void rm_chain_free(rm_chain *chain);

/* Where the resident part of a block begins: the first page at or after the block's own begin. chain->at.bytes has room for
 * the difference. */
char *rm_resident_begin(void *block);

/* The first steps of rm_chain_build, in order. */
remat_status rm_chain_lay_out(rm_chain *chain, const rm_chain_config *config);  /* resident.c */
remat_status rm_chain_write_programs(rm_chain *chain, const rm_chain_config *); /* program.c  */
void rm_chain_lay_out_rest(rm_chain *chain, const rm_chain_config *config);     /* resident.c: known after the programs */
remat_status rm_chain_write_problems(rm_chain *chain, const rm_chain_config *); /* chain_problem.c */

/* A program's time by a device's rates. */
void rm_program_guess(rm_program *program, const rm_rates *rates); /* program.c */

/* chain_problem.c. Every program's time by these rates, in the chain and in both problems. The programs' times, where they have
 * changed, into both problems. */
void rm_chain_guess_times(rm_chain *chain, const rm_rates *rates);
void rm_chain_take_times(rm_chain *chain);

/* ---- Questions about a chain that is cut: chain_lookup.c -------------------------------------------------------- */

/* The timesteps of a tile, no more than T: as many as are asked for, or, where none are (0), 512 rows / B, rounded down to a
 * power of two, within 8..256; on a GPU 2048 rows, within 8..1024 (docs/plans.md). */
int64_t rm_tile_of(int64_t asked, int64_t timesteps, int64_t batch, rm_device_kind kernels);

const rm_class *rm_stage_class(const rm_chain *chain, int64_t stage);

/* By depth: whether a value, or its gradient, is among the pieces of state(cut), or of dstate(cut); and its position there, -1
 * where it is not. Along time: position of a node's carried state, the same at every cut. */
bool rm_chain_crosses(const rm_chain *chain, int64_t cut, int32_t value, bool gradient);
int32_t rm_chain_slot(const rm_chain *chain, int64_t cut, int32_t value, bool gradient);
int32_t rm_carried_slot(const rm_chain *chain, int32_t node, int state);

/* Is it an output; is its gradient, or the first term of that, given from outside? */
bool rm_chain_is_output(const rm_chain *chain, int32_t value);
bool rm_chain_is_differentiated_outside(const rm_chain *chain, int32_t value);

/* Predicted, of all stages: what each one's first forward run makes beside what every run of it does. */
uint64_t rm_chain_once_ns(const rm_chain *chain);

/* Pieces of states, of which the chain has so many; they come before those of their gradients. */
int64_t rm_chain_state_pieces(const rm_chain *chain);

/* The least upper limit that the layers reading integers from this input set; 0: none. */
int64_t rm_chain_bound(const rm_chain *chain, int32_t value);

#endif
