/* chain.h: a graph cut into stages in one order, ready for the planner (a problem of numbers) and for the executor (a
 * program of kernel calls for each kind of run).
 *
 * Roles. Every node that the loss or an output depends on is one of
 *   TABLE  made of parameters alone, or counted in an input of symbols, and read along time: run once a step, before all
 *          stages; its backward runs once, after them. Resident. (The folded embedding table is one.)
 *   CHAIN  along time: run once for each tile. What leads there from inputs without a time axis, and in a graph without
 *          sequences every node: cut by depth.
 *   POST   behind a reduction over time (a classifier on the last step): part of the last stage of a sweep.
 *
 * Sweeps. A sweep is a run of stages along time: one for each tile, from the first to the last, or down from the last to
 * the first. Sweeps follow one another (sweeps.c decides which runs what):
 *
 *     sweep 0, up                 sweep 1, down                 sweep 2, up
 *     | 0 | 1 | 2 | 3 |           | 3 | 2 | 1 | 0 |             | 0 | 1 | 2 | 3 |        tiles
 *     lstm of x                   lstm of reversed x, concat    lstm of both, loss
 *
 * A stacked recurrent net is one sweep. An op that wants the whole of time, such as attention, is a sweep of one stage;
 * cut by depth, every stage is. What is cut by depth comes first.
 *
 * States (memory/problem.h). What stages hand on: to the next one of their sweep, what ops carry along time; to other
 * sweeps, the values that nodes there read.
 *
 * Spine and leaf. In one stage, a node is on the SPINE if a later stage needs something it leads to: a carried state,
 * or a value that is read there. The others are LEAVES: the loss head above all. Forward runs of a stage run the
 * spine only. The backward run of the stage first runs the leaves forward, then everything backward. So a leaf runs
 * exactly once whatever is recomputed, and what it makes (the logits) lives in one stage's scratch, never for all T. What
 * outputs alone depend on is neither: only an evaluation runs it.
 *   Leaves that an output differentiated from outside depends on are wanted before any backward run: the stage's first forward
 * run runs them, too. Its backward run makes again what it must read of them, which is nothing of the output itself.
 *
 *         x ──► lstm ──► lstm ─┬─► linear ──► cross entropy        leaves: inside "run backward"
 *      carried ─►│───►────►│───┴─► carried                         spine:  "run forward"
 */
#ifndef RM_CHAIN_H
#define RM_CHAIN_H

#include "engine/device/device.h"
#include "engine/graph/graph.h"
#include "memory/problem.h"

/* ---- Roles ---------------------------------------------------------------------------------------------------- */

typedef enum { RM_ROLE_DEAD, RM_ROLE_TABLE, RM_ROLE_CHAIN, RM_ROLE_POST } rm_role;

/* One role a node, in `role` (n_nodes entries). MEMORY. */
remat_status rm_roles(const remat_graph *graph, const int32_t *keep, int n_keep, uint8_t *role);

/* What a training step does with a value: nothing, where only outputs depend on it; it is made; it is made, and then its
 * gradient: it lies on a way from a parameter to the loss. Only readers that are differentiated add to a gradient. */
typedef enum { RM_UNUSED, RM_MADE, RM_DIFFERENTIATED } rm_use;

/* One use a value, in `use` (n_values entries, zero but for what backward begins with: RM_DIFFERENTIATED). Carried states of
 * a stateful session are made anyway. */
void rm_training_uses(const remat_graph *graph, const uint8_t *role, bool stateful, uint8_t *use);

/* ---- Where things are ----------------------------------------------------------------------------------------- */

typedef enum { RM_NOWHERE, RM_RESIDENT, RM_EXTERNAL, RM_AT_PIECE, RM_AT_SAVED, RM_AT_SCRATCH } rm_space;

/* An address the executor can resolve for any stage of a class. AT_PIECE: piece + stride * (the stage's position in its sweep
 * + shift); where the sum in brackets is not within [0,limit), nothing: before the first tile there is no carried state. */
typedef struct {
    uint8_t space; /* rm_space */
    int8_t shift;
    bool from_end; /* per_time counts from the end: a reversed sequence */
    int32_t piece, stride, limit;
    int32_t slot;       /* AT_PIECE with shift -1: of these carried states; a stateful session begins with what it kept.
                           EXTERNAL: which of the program's arrays */
    uint64_t offset;    /* RESIDENT: in the block; SAVED, SCRATCH: in the stage's own block */
    uint64_t per_time;  /* RESIDENT, EXTERNAL, PIECE: plus this times the tile's first timestep */
    uint64_t per_stage; /* RESIDENT: plus this times the stage's number */
} rm_where;

/* Parameters in buckets: buckets.h has the picture. */
typedef struct {
    int32_t value; /* id in the graph */
    int32_t bucket; /* -1: it is frozen */
    int64_t at, count;   /* floats: where it begins, from the section's begin; how many */
    int64_t first, held; /* of its elements, those in this rank's part: all, unless the optimizer is sharded */
    double lr_factor, weight_decay; /* of its group (groups.c) */
    uint8_t used;        /* the loss depends on it, on some rank, and it is to be trained */
    bool held_back;      /* updates leave it out for now (remat_train_only) */
} rm_parameter;

/* Final after `after[option]` instructions of the backward program of `stage`; stage -1: of the epilogue, after[0]. */
typedef struct {
    int64_t at, count;             /* floats, from the section's begin */
    int32_t first_param, n_params; /* positions in `order` */
    int64_t stage;
    int32_t after[RM_MAX_OPTIONS];
} rm_bucket;

typedef struct {
    rm_parameter *param; /* n_params, in order of definition */
    int32_t *order;      /* positions in `param` of those that are trained, in the order of the layout */
    rm_bucket *item;
    int32_t n_params, n;
    int32_t n_trained;   /* of n_params; the others are frozen, and in no bucket */
    int32_t rank, parts; /* of how many equal parts of a bucket which is this rank's; 0 of 1: not sharded */
    int64_t count;       /* floats of a section: of all buckets */
} rm_buckets;

/* An array in the program's own memory (rm_chain_config.external). */
typedef struct {
    int entry; /* of the list that names it */
    uint64_t bytes;
} rm_slot;

/* Where everything lies that stays. Filled by resident.c. */
typedef struct {
    rm_where *value; /* by value id: inputs, parameters, buffers, tables; NOWHERE for the rest */
    rm_where
        *gradient;    /* by value id: parameters, tables, inputs that ask for it, outputs differentiated from outside */
    uint64_t *packed; /* by node: offset of its packed weights; UINT64_MAX: none */
    bool packs_inputs;              /* some of them are made of inputs, which may be other ones in every pass */
    rm_where *output;               /* by position in `outputs` */
    uint64_t fixed, fixed_bytes;    /* what every call's `fixed` is; no bytes: NULL */
    uint64_t *once, *once_bytes;    /* by node: offset, and of each of its stages; no bytes: none */
    rm_where *optimizer_state;      /* by parameter * RM_MAX_OPTIMIZER_STATE + i: this rank's part */
    rm_where *carried;              /* stateful sessions: by carried state, what the next call begins with ... */
    uint64_t carried_next;          /* ... and where this call leaves it, at rm_carried.kept, until it ends */
    rm_slot *external;              /* arrays in the program's memory: n_external of them */
    int32_t n_external;
    rm_buckets buckets;             /* of the parameters and their gradients */
    /* Parameters and their gradients, laid out alike except for external ones, which are left out; both sections begin on a page
     * and own all of their last page, once the block's first resident byte lies on one. section_bytes: with nothing left out. */
    uint64_t parameters_offset, gradients_offset, parameters_bytes, gradients_bytes, section_bytes;
    uint64_t table_gradients_offset, table_gradients_bytes; /* and inputs' */
    uint64_t
        sums_offset; /* deterministic_world micro steps: n_sums sections of gradients that wait for their other half */
    uint64_t loss_offset, loss_bytes;     /* one float a stage */
    uint64_t one_offset;                  /* one float: the loss's own gradient, 1 unless the batch is shared */
    uint64_t table_scratch;               /* the prologue's and epilogue's scratch */
    uint64_t hashes_offset, hashes_bytes; /* rm_chain_config.hashes: a rm_difference, then 8 bytes a piece */
    uint64_t bytes;                       /* of everything above */
} rm_residents;

/* ---- Programs ------------------------------------------------------------------------------------------------- */

typedef enum { RM_DO_FORWARD, RM_DO_BACKWARD, RM_DO_REBUILD, RM_DO_ONCE, RM_DO_ADD, RM_DO_COPY, RM_DO_ZERO } rm_do;

enum { RM_OPERANDS = 2 * REMAT_MAX_INPUTS + 4 * REMAT_MAX_STATES + 4 };

typedef struct {
    uint8_t what; /* rm_do. ADD: y += x[0]. COPY: y = x[0]. ZERO: y = 0. A NULL y or x[0] makes these nothing */
    bool once;    /* for the stage's first forward run in a step alone */
    int32_t node;
    int64_t count; /* ADD, COPY, ZERO: elements, 4 bytes each */
    union {
        struct {
            rm_where x[REMAT_MAX_INPUTS], y, state_in[REMAT_MAX_STATES], state_out[REMAT_MAX_STATES];
            rm_where dy, dx[REMAT_MAX_INPUTS], dstate_out[REMAT_MAX_STATES], dstate_in[REMAT_MAX_STATES];
            rm_where aux, scratch;
        };
        rm_where operand[RM_OPERANDS]; /* the same, for whoever looks at all of them */
    };
} rm_instruction;
_Static_assert(offsetof(rm_instruction, scratch) == offsetof(rm_instruction, operand[RM_OPERANDS - 1]),
               "RM_OPERANDS is the number of an instruction's operands");

/* An instruction as programs hold it: of its operands few are there, and a deep net has thousands of instructions. */
typedef struct {
    uint8_t what;
    bool once;
    int32_t node;
    int64_t count;
    uint64_t there[(RM_OPERANDS + 63) / 64]; /* bit i % 64 of word i / 64: operand i is not NOWHERE */
    int32_t first;  /* of those, in the program's `where`; the others follow */
} rm_packed_instruction;

/* What a stage's first run in a step alone makes is the same in every plan, and counted beside it. */
typedef struct rm_program {
    rm_packed_instruction *item; /* n of them; rm_program_at */
    rm_where *where;             /* n_where */
    int32_t n, n_once;           /* of n, those that are for the first run alone */
    int32_t n_where;
    uint64_t scratch_bytes;
    double flops, moved_bytes, once_flops, once_moved_bytes;
    uint64_t time_ns, once_ns; /* predicted */
} rm_program;

/* One way of keeping a stage. "all": every aux and every result that backward reads. "lean": no aux that an op rebuilds,
 * nothing of a cheap op; the backward run makes them again first, in its scratch. "leaner": nor, of the results that are left, those
 * that take least arithmetic a byte: a layer that widens its input. */
typedef struct {
    const char *name; /* of rm_option_names */
    uint64_t saved_bytes;
    rm_program forward, backward;
} rm_kind_option;

/* Operands in states and their gradients that the programs of a class share: what the problem's lists are made of. */
typedef struct {
    rm_where *item;
    int64_t n, capacity;
} rm_touched;

/* Stages alike in shape and place share a class: all full tiles of a sweep but the last stage are one. */
typedef struct {
    int64_t tau; /* timesteps; 0: no time, or all of it */
    int32_t sweep;
    int32_t first_node, n_nodes; /* in chain->order */
    bool first, last;            /* of its sweep; first is known only where that is a class of its own */
    rm_program drop, evaluate;
    int n_options; /* 0 for inference */
    rm_kind_option option[RM_MAX_OPTIONS];
    rm_touched reads, keeps, adds, evaluation_reads; /* as in rm_problem; each once */
} rm_stage_kind;

/* A run of stages along time, or one stage. */
typedef struct {
    int64_t first, count;           /* the stages first .. first+count-1 */
    int64_t timesteps, batch, tile; /* timesteps 0: cut by depth */
    bool down;                      /* its first stage is the last tile */
    bool whole;                     /* one stage, of all timesteps */
    int32_t first_node, n_nodes;    /* in chain->order: these run in every stage, ... */
    int32_t n_tail;                 /* ... and as many behind them in the last stage, too */
    int32_t head, inner, tail;      /* classes of the first, the middle and the last stage */
    int32_t first_carried, n_carried;
    int64_t carry_stage; /* of a stateful session: from this stage, counted in the sweep, states go to the next call */
    int32_t first_crossing, n_crossing, n_tail_crossing; /* in chain->crossing: handed on by every stage; by the last */
    int32_t n_gradients, n_tail_gradients;               /* those that have one */
    bool hands_on; /* gradients come back to what the last stage carries: others begin with it */
    /* Of the first stage; the others follow in even steps: states, pieces, and pieces of gradients. A stage's pieces are
     * those of what crosses, of what is carried, and, of the last stage, of what it alone hands on; of gradients likewise,
     * but for what the last stage carries, which nothing follows. */
    int64_t state, piece, dpiece;
    int32_t states, pieces, dpieces;
} rm_sweep;

typedef struct {
    int32_t node; /* a carried state of this node ... */
    int state;    /* ... this one; or -1: the running sum of a reduction over time that others read ... */
    bool trained; /* ... in a training step, too */
    uint64_t bytes, piece_bytes; /* of the state; of its pieces, which are whole multiples of RM_ALIGN */
    uint64_t kept;               /* states of stateful sessions: where behind at.carried_next */
} rm_carried;

/* A value that nodes of other sweeps read. A carried state after the last timestep is one whose place is that of what the last
 * stage carries. */
typedef struct {
    int32_t value, sweep;
    int32_t last_reader;    /* the last sweep where its gradient is added to; -1: it has none there */
    bool trained;           /* training makes it */
    bool tiled;             /* a piece of every stage of its sweep; else one, of the last */
    int32_t place, d_place; /* among the stage's pieces, and those of gradients */
} rm_crossing;

typedef struct rm_chain {
    const remat_graph *graph; /* borrowed */
    uint8_t *role;
    uint8_t *use;      /* by value id: rm_use */
    int32_t *order;    /* CHAIN and POST nodes: n_order of them, sweep by sweep */
    int32_t *sweep_of; /* by node; -1: none */
    int32_t n_order;
    int64_t timesteps, batch, tile,
        n_stages;     /* the first three: of the first sweep along time; 1, 0, 1 if there is none */
    bool timed;       /* some sweep is along time */
    int32_t loss;     /* value id; 0: none */
    int32_t *outputs; /* value ids: n_outputs of them, then the loss */
    int32_t n_outputs, n_differentiated, n_carried; /* outputs: the first so many are differentiated from outside */
    int64_t carried_capacity;
    rm_carried *carried; /* sweep by sweep */
    int32_t n_crossing;
    rm_crossing *crossing; /* sweep by sweep */
    int32_t *cross;        /* by value id: where in `crossing`, or -1 */
    int32_t n_sweeps;
    rm_sweep *sweep;
    int32_t n_classes;
    rm_stage_kind *class;
    rm_program prologue, epilogue; /* the TABLE nodes */
    rm_residents at;
    rm_problem problem, evaluation;
} rm_chain;

typedef struct {
    int64_t tile;         /* as asked; 0: rm_tile_of */
    int64_t carry_stride; /* remat_config */
    int threads, n_differentiated;
    bool inference, stateful;
    const remat_external *external; /* what lies in the program's memory: by kind and name */
    int n_external;
    const char *const *optimizer_state_name; /* optimizer_states of them */
    const remat_ranks *ranks;  /* size 1 and no slots where there are none */
    int gradient_sums;         /* sections of gradients for deterministic_world micro steps */
    bool hashes;               /* the device keeps hashes of states (device.h, compare) */
    bool lean;                 /* offer the options "lean" and "leaner" where they save something */
    remat_device_kind kernels; /* the column of the ops' kernel tables that will run */
    int optimizer_states;
    rm_rates rates;
} rm_chain_config;

/* Where the device has a descriptor of its own for a node (device.h, variant), that takes the place of the op (variant.c): all
 * tiles of a layer are run by the same kernels, whatever is kept of them. *chosen: how many nodes that is. */
remat_status rm_graph_choose_variants(remat_graph *graph, const rm_device_api *api, rm_device *device, int64_t tile,
                                      int64_t carry_stride, int32_t *chosen);

/* Cuts, lays out what is resident, writes the programs and both problems. *chain zeroed before; rm_chain_free takes what
 * a failure left, too. */
remat_status rm_chain_build(const remat_graph *graph, int32_t loss, const int32_t *outputs, int32_t n_outputs,
                            const rm_chain_config *config, rm_chain *chain);
void rm_chain_free(rm_chain *chain);

/* Where the resident part of a block begins: the first page at or after the block's own begin. chain->at.bytes has room for
 * the difference. */
char *rm_resident_begin(void *block);

/* The first steps of rm_chain_build, in order. */
remat_status rm_chain_find_sweeps(rm_chain *chain, const rm_chain_config *config); /* sweeps.c */
remat_status rm_chain_lay_out(rm_chain *chain, const rm_chain_config *config);     /* resident.c */
remat_status rm_chain_write_programs(rm_chain *chain, const rm_chain_config *);    /* program.c  */
void rm_chain_lay_out_rest(rm_chain *chain, const rm_chain_config *config); /* resident.c: known after the programs */
remat_status rm_chain_write_problems(rm_chain *chain, const rm_chain_config *); /* chain_problem.c */

/* chain_problem.c. Every program's time by these rates, in the chain and in both problems. The programs' times, where they have
 * changed, into both problems. */
void rm_chain_guess_times(rm_chain *chain, const rm_rates *rates);
void rm_chain_take_times(rm_chain *chain);

/* ---- Questions about a chain that is cut: chain.c --------------------------------------------------------------- */

rm_instruction rm_program_at(const rm_program *program, int32_t n); /* unpacked */
uint64_t rm_chain_program_bytes(const rm_chain *chain);             /* of all programs */
void rm_program_guess(rm_program *program, const rm_rates *rates);  /* its times by a device's rates */

/* The timesteps of a tile, no more than T: as many as are asked for, or, where none are (0), 512 rows / B, rounded down to a
 * power of two, within 8..256; on a GPU 2048 rows, within 8..1024 (docs/plans.md); carry_stride > 0: or fewer, that divide it. */
int64_t rm_tile_of(int64_t asked, int64_t carry_stride, int64_t timesteps, int64_t batch, remat_device_kind kernels);

const rm_sweep *rm_stage_sweep(const rm_chain *chain, int64_t stage);
const rm_stage_kind *rm_stage_kind_of(const rm_chain *chain, int64_t stage);

/* The tile of a stage of a sweep, and the sweep's stage of a tile: along time, the same question. */
static inline int64_t rm_sweep_turn(const rm_sweep *sweep, int64_t position) {
    return sweep->down ? sweep->count - 1 - position : position;
}
/* The first timestep of a stage; 0 where there is no time. */
int64_t rm_stage_begin(const rm_chain *chain, int64_t stage);

/* Which carried state of its sweep a node's is, counted in chain->carried; -1: there is none. */
int32_t rm_carried_slot(const rm_chain *chain, int32_t node, int state);

/* The name of a carried state, as in remat_array: "lstm.1.c" is that of the second LSTM layer. */
void rm_chain_state_name(const rm_chain *chain, int32_t slot, char name[80]);

/* Where a carried state lies that a stage hands on (shift 0) or is handed (-1); and their gradients. */
rm_where rm_carried_where(const rm_chain *chain, int32_t slot, int shift);
rm_where rm_carried_gradient(const rm_chain *chain, int32_t slot, int shift);

/* Where the stages of `reader`, a sweep, find a value that crosses, or its gradient: a tile of it, or, where it lies in one
 * piece, all of it. `tile`: that one; -1: the reader's own. NOWHERE: no such gradient crosses. */
rm_where rm_crossing_where(const rm_chain *chain, int32_t value, const rm_sweep *reader, int64_t tile);
rm_where rm_crossing_gradient(const rm_chain *chain, int32_t value, const rm_sweep *reader, int64_t tile);

/* The piece that an AT_PIECE address means for a stage in this position of its sweep; -1: none. */
static inline int64_t rm_piece_at(const rm_where *where, int64_t position) {
    int64_t at = position + where->shift;
    return at < 0 || at >= where->limit ? -1 : where->piece + where->stride * at;
}

/* The name of an output, as in remat_array: "output.0". Returns `name`. */
enum { RM_OUTPUT_NAME = 24 };
const char *rm_output_name(int32_t output, char name[RM_OUTPUT_NAME]);

/* Is it an output; is its gradient, or the first term of that, given from outside? */
bool rm_chain_is_output(const rm_chain *chain, int32_t value);
bool rm_chain_is_differentiated_outside(const rm_chain *chain, int32_t value);

/* Predicted, of all stages: what each one's first forward run makes beside what every run of it does. */
uint64_t rm_chain_once_ns(const rm_chain *chain);

/* Pieces of states, of which the chain has so many; they come before those of their gradients. */
int64_t rm_chain_state_pieces(const rm_chain *chain);

/* What a piece of a state is: exactly one is set. */
typedef struct {
    const rm_carried *carried;
    const rm_crossing *crossing;
    int64_t stage; /* that makes it */
} rm_piece_origin;
rm_piece_origin rm_chain_piece_origin(const rm_chain *chain, int64_t piece);

/* The least upper limit that the layers reading integers from this input set; 0: none. */
int64_t rm_chain_bound(const rm_chain *chain, int32_t value);
/* The value beyond that limit which all of them allow; 0: none. */
int64_t rm_chain_ignored(const rm_chain *chain, int32_t value);

#endif
