/* chain.h: a graph cut into an ordered chain of stages, for the planner (a problem of numbers) and for the executor (a
 * program of kernel calls for each kind of run).
 *
 * Roles. Every node that the loss or an output depends on has one of these roles:
 *   TABLE  computed from parameters only, or a count over an integer input, and read along time. Runs once per step,
 *          before all stages; its backward runs once, after them. Resident. (The folded embedding table is one.)
 *   CHAIN  along time: runs once for each tile. Nodes that lead there from inputs without a time axis, and all nodes of a
 *          graph without sequences, are CHAIN, too, and are cut by depth.
 *   POST   after a reduction over time (a classifier on the last timestep): part of the last stage of a sweep.
 *
 * Sweeps. A sweep is a sequence of stages along time, one for each tile, from the first to the last (up), or from the
 * last to the first (down). sweeps.c assigns nodes to sweeps, which run one after another:
 *
 *     sweep 0, up                 sweep 1, down                 sweep 2, up
 *     | 0 | 1 | 2 | 3 |           | 3 | 2 | 1 | 0 |             | 0 | 1 | 2 | 3 |        tiles
 *     lstm of x                   lstm of reversed x, concat    lstm of both, loss
 *
 * A stacked recurrent net is one sweep. An op that needs all timesteps at once, such as attention, is a sweep of one
 * stage, as is every stage cut by depth. Stages cut by depth come first.
 *
 * States (memory/problem.h). Stages pass states on: carried states of ops to the next stage of their sweep, and values
 * to the other sweeps that read them.
 *
 * Spine and leaf. In a stage, a node is on the SPINE if a later stage needs a carried state or a value that depends on
 * it. The other nodes, above all the loss head, are LEAVES. Forward runs of a stage run only the spine. Its backward
 * run first runs the leaves forward, then everything backward. A leaf therefore runs exactly once, whatever is
 * recomputed, and its results (the logits) live in the scratch of one stage, never for all T. Nodes that only outputs
 * depend on are neither; only an evaluation runs them.
 *   Leaves that a differentiated output depends on are needed before any backward run, so the stage's first forward run
 * runs them, too. Its backward run recomputes the values of these leaves that it reads, except for the output itself.
 *
 *         x ──► lstm ──► lstm ─┬─► linear ──► cross entropy        leaves: inside "run backward"
 *      carried ─►│───►────►│───┴─► carried                         spine:  "run forward" */
#ifndef RM_CHAIN_H
#define RM_CHAIN_H

#include "engine/device/device.h"
#include "engine/graph/graph.h"
#include "memory/problem.h"

/* ---- Roles ----------------------------------------------------------------------------------------------------- */

typedef enum { RM_ROLE_DEAD, RM_ROLE_TABLE, RM_ROLE_CHAIN, RM_ROLE_POST } rm_role;

/* Fills `role`, one entry per node. MEMORY. */
remat_status rm_roles(const remat_graph *graph, const int32_t *keep, int n_keep, uint8_t *role);

/* A training step computes nothing of a value that only outputs depend on; otherwise it computes the value, and
 * also its gradient if it is on a path from a parameter to the loss. Only differentiated readers add to a gradient. */
typedef enum { RM_UNUSED, RM_MADE, RM_DIFFERENTIATED } rm_use;

/* Fills `use`, one entry per value. Before the call, the values where backward starts are RM_DIFFERENTIATED, all others
 * 0. Carried states of a stateful session are always computed. */
void rm_training_uses(const remat_graph *graph, const uint8_t *role, bool stateful, uint8_t *use);

/* ---- Addresses ------------------------------------------------------------------------------------------------- */

typedef enum { RM_NOWHERE, RM_RESIDENT, RM_EXTERNAL, RM_AT_PIECE, RM_AT_SAVED, RM_AT_SCRATCH } rm_space;

/* An address that the executor can resolve for any stage of a kind. AT_PIECE: piece + stride * (the stage's position in
 * its sweep + shift). If the sum in brackets is not within [0,limit), there is no address: no carried state precedes
 * the first tile. */
typedef struct {
    uint8_t space; /* rm_space */
    int8_t shift;
    bool from_end; /* per_time counts from the end: a reversed sequence */
    int32_t piece, stride, limit;
    int32_t of;         /* AT_PIECE: the crossing value, also of its gradient; of a carried state: -1 - node.
                           AT_SCRATCH, until a program is finished: the value of which this is one tile's part */
    int32_t slot;       /* AT_PIECE with shift -1: of the carried state, which a stateful session keeps between calls.
                           EXTERNAL: index in at.external */
    uint64_t offset;    /* RESIDENT: in the block; SAVED, SCRATCH: in the stage's own block */
    uint64_t per_time;  /* RESIDENT, EXTERNAL, PIECE: added once per timestep before the tile */
    uint64_t per_stage; /* RESIDENT: added once per stage before this one */
} rm_where;

/* Parameters in buckets: buckets.h has the picture. */
typedef struct {
    int32_t value; /* id in the graph */
    int32_t bucket; /* -1: frozen */
    int64_t at, count;   /* floats: start, relative to the section's, and number */
    int64_t first, held; /* elements in this rank's part: all, unless the optimizer is sharded */
    double lr_factor, weight_decay; /* of its group (groups.c) */
    uint8_t used;        /* it is trained, and the loss of some rank depends on it */
    bool held_back;      /* updates leave it out for now (remat_train_only) */
} rm_parameter;

/* A bucket is final after the first `after[option]` instructions of the backward program of `stage`; stage -1: after
 * the first after[0] of the epilogue. */
typedef struct {
    int64_t at, count;             /* floats; start relative to the section's */
    int32_t first_param, n_params; /* positions in `order` */
    int64_t stage;
    int32_t after[RM_MAX_OPTIONS];
} rm_bucket;

typedef struct {
    rm_parameter *param; /* n_params, in order of definition */
    int32_t *order;      /* positions in `param` of the trained parameters, in the order of the layout */
    rm_bucket *item;
    int32_t n_params, n;
    int32_t n_trained;   /* of n_params; the others are frozen and in no bucket */
    int32_t rank, parts; /* a bucket has `parts` equal parts; this rank's is number `rank`. 0 and 1: not sharded */
    int64_t count;       /* floats of a section, which holds all buckets */
} rm_buckets;

/* An array in external memory (rm_chain_config.external). */
typedef struct {
    int entry; /* index in the list of the config; -1: another session's memory */
    uint64_t bytes;
} rm_slot;

/* Addresses of all arrays that live as long as the session. Filled by resident.c. */
typedef struct {
    rm_where *value; /* by value id: inputs, parameters, buffers, tables; NOWHERE for the rest */
    rm_where
        *gradient;    /* by value id: parameters, tables, inputs that require it, differentiated outputs */
    uint64_t *packed; /* by node: offset of its packed weights in their section; UINT64_MAX: none */
    rm_where packed_at;             /* the section: in the block, or in another session's */
    uint64_t packed_bytes;          /* of the section */
    bool packs_inputs;              /* some packed weights are inputs, which may change between passes */
    rm_where *output;               /* by position in `outputs` */
    uint64_t fixed, fixed_bytes;    /* remat_call.fixed of all calls; no bytes: NULL */
    uint64_t *once, *once_bytes;    /* by node: offset, and bytes for each of its stages; no bytes: none */
    rm_where *optimizer_state;      /* by parameter * RM_MAX_OPTIMIZER_STATE + i: this rank's part */
    rm_where *carried;              /* stateful sessions, by carried state: the value at the start of a call ... */
    uint64_t carried_next;          /* ... and, at rm_carried.kept after this, for the next call until this one ends */
    rm_slot *external;              /* arrays in external memory: n_external of them */
    int32_t n_external;
    rm_buckets buckets;             /* of the parameters and their gradients */
    /* Parameters and gradients have the same layout, except that external arrays are left out. Both sections start on a
     * page and own all of their last page, if the block's first resident byte is at the start of a page. section_bytes:
     * with nothing left out. */
    uint64_t parameters_offset, gradients_offset, parameters_bytes, gradients_bytes, section_bytes;
    uint64_t table_gradients_offset, table_gradients_bytes; /* of tables and inputs */
    uint64_t
        sums_offset; /* deterministic_world: rm_chain_config.gradient_sums sections of partial sums of gradients */
    uint64_t loss_offset, loss_bytes;     /* one float per stage */
    uint64_t one_offset;                  /* one float: the loss's gradient; 1 if the batch has a single part */
    uint64_t table_scratch;               /* scratch of the prologue and the epilogue */
    uint64_t hashes_offset, hashes_bytes; /* rm_chain_config.hashes: a rm_difference, then 8 bytes per piece */
    uint64_t bytes;                       /* of everything above */
} rm_residents;

/* ---- Programs -------------------------------------------------------------------------------------------------- */

typedef enum {
    RM_DO_FORWARD,
    RM_DO_BACKWARD,
    RM_DO_REBUILD,
    RM_DO_ONCE,
    RM_DO_ADD,
    RM_DO_COPY,
    RM_DO_ZERO,
    RM_DO_SEND,   /* in a pipeline (divide.c): x[0] to rank `peer` */
    RM_DO_RECEIVE /* y from rank `peer` */
} rm_do;

enum { RM_OPERANDS = 2 * REMAT_MAX_INPUTS + 4 * REMAT_MAX_STATES + 4 };

typedef struct {
    uint8_t what; /* rm_do. ADD: y += x[0]. COPY: y = x[0]. ZERO: y = 0. These do nothing if y or x[0] is NULL */
    bool once;    /* only for the stage's first forward run in a step */
    int16_t peer; /* SEND, RECEIVE */
    int32_t node; /* -1: none */
    int64_t count; /* without a node: elements, 4 bytes each */
    union {
        struct {
            rm_where x[REMAT_MAX_INPUTS], y, state_in[REMAT_MAX_STATES], state_out[REMAT_MAX_STATES];
            rm_where dy, dx[REMAT_MAX_INPUTS], dstate_out[REMAT_MAX_STATES], dstate_in[REMAT_MAX_STATES];
            rm_where aux, scratch;
        };
        rm_where operand[RM_OPERANDS]; /* the same, for loops over all operands */
    };
} rm_instruction;
_Static_assert(offsetof(rm_instruction, scratch) == offsetof(rm_instruction, operand[RM_OPERANDS - 1]),
               "RM_OPERANDS is the number of an instruction's operands");

/* An instruction as stored in programs. A deep net has thousands of instructions, and most have few operands. */
typedef struct {
    uint8_t what;
    bool once;
    int16_t peer;
    int32_t node;
    int64_t count;
    uint64_t there[(RM_OPERANDS + 63) / 64]; /* bit i % 64 of word i / 64: operand i is not NOWHERE */
    int32_t first;  /* index of its first operand in the program's `where`; the others follow */
} rm_packed_instruction;

/* The cost of `once` instructions is separate (once_...), since it is the same in every plan. */
typedef struct rm_program {
    rm_packed_instruction *item; /* n of them; rm_program_at */
    rm_where *where;             /* n_where */
    int32_t n, n_once;           /* n_once: number of `once` instructions among the n */
    int32_t n_where;
    uint64_t scratch_bytes;
    double flops, moved_bytes, once_flops, once_moved_bytes;
    uint64_t time_ns, once_ns; /* predicted */
} rm_program;

/* A set of values that a stage saves. "all": every aux and every result that backward reads. "lean": without aux that
 * an op can rebuild and results of cheap ops, which the backward run first recomputes in its scratch. "leaner": also
 * without the results that take the least arithmetic per byte, such as those of a layer that widens its input. */
typedef struct {
    const char *name; /* of rm_option_names */
    uint64_t saved_bytes;
    rm_program forward, backward;
} rm_kind_option;

/* Operands of a kind's programs that are states or gradients of states. The problem's lists are made from these. */
typedef struct {
    rm_where *item;
    int64_t n, capacity;
} rm_touched;

/* Stages with the same programs: all full tiles of a sweep, except the last stage, are one kind. */
typedef struct {
    int64_t tau; /* timesteps; 0: no time axis, or all timesteps */
    int32_t sweep;
    int32_t first_node, n_nodes; /* in chain->order */
    bool first, last;            /* stage of its sweep; `first` is set only if the first stage is a separate kind */
    rm_program drop, evaluate;
    int n_options; /* 0 for inference */
    rm_kind_option option[RM_MAX_OPTIONS];
    rm_touched reads, keeps, adds, evaluation_reads; /* as in rm_problem, without duplicates */
} rm_stage_kind;

/* The stages along time, or a single stage. */
typedef struct {
    int64_t first, count;           /* the stages first .. first+count-1 */
    int64_t timesteps, batch, tile; /* timesteps 0: cut by depth */
    bool down;                      /* its first stage is the last tile */
    bool whole;                     /* one stage, of all timesteps */
    int32_t first_node, n_nodes;    /* in chain->order: nodes of every stage */
    int32_t n_tail;                 /* the nodes after these run only in the last stage */
    int32_t head, inner, tail;      /* kinds of the first, the middle and the last stage */
    int32_t first_carried, n_carried;
    int64_t carry_stage; /* stateful sessions: stage of the sweep whose carried states the next call starts with */
    int32_t first_crossing, n_crossing, n_tail_crossing; /* in chain->crossing: from every stage; from the last */
    int32_t n_gradients, n_tail_gradients;               /* those with a gradient */
    bool hands_on; /* another sweep starts with states that the last stage carries, so these have gradients */
    /* Of the first stage: its first state, piece, and piece of a gradient. Those of other stages follow at a constant
     * stride. The pieces of a stage are those of its crossing values, of its carried states and, in the last stage, of
     * values that it alone passes on. Gradients are in the same order, except that the carried states of the last stage
     * have none unless hands_on. */
    int64_t state, piece, dpiece;
    int32_t states, pieces, dpieces;
} rm_sweep;

typedef struct {
    int32_t node;
    int state;    /* a carried state of the node; -1: its running sum, if it is a reduction over time that is read */
    bool trained; /* it is also computed in training */
    bool keeps;   /* stateful sessions: the next call starts with it */
    uint64_t bytes, piece_bytes; /* of the state; of its pieces, which are multiples of RM_ALIGN */
    uint64_t kept;               /* stateful sessions: offset relative to at.carried_next */
} rm_carried;

/* A value that nodes of other sweeps read. A final state is one; its place is that of the carried state of the last
 * stage. */
typedef struct {
    int32_t value, sweep;
    int32_t last_reader;    /* the last sweep that adds to its gradient; -1: none does */
    bool trained;           /* it is computed in training */
    bool tiled;             /* every stage of its sweep has a piece of it; otherwise only the last has one */
    int32_t place, d_place; /* among the stage's pieces, and among those of gradients; d_place -1: no gradient */
} rm_crossing;

/* The nodes begin .. end-1. */
typedef struct {
    int32_t begin, end;
} rm_node_run;

typedef struct rm_chain {
    const remat_graph *graph; /* borrowed */
    uint8_t *role;
    uint8_t *use;      /* by value id: rm_use */
    int32_t *order;    /* CHAIN and POST nodes: n_order of them, sweep by sweep */
    int32_t *sweep_of; /* by node; -1: none */
    int16_t *owner;    /* by node: the rank of the pipeline that runs it, or RM_EVERY_RANK; NULL: no pipeline */
    char *cut;         /* in a pipeline: as in remat_pipeline, also if it was chosen */
    rm_node_run *part; /* in a pipeline: by rank; tables move with their readers */
    int rank, n_ranks; /* whose part this is, of how many; RM_EVERY_RANK: the whole */
    int32_t n_order;
    int64_t timesteps, batch, tile,
        n_stages;     /* the first three: of the first sweep along time; 1, 0, 1 if there is none */
    bool timed;       /* some sweep is along time */
    int32_t loss;     /* value id; 0: none */
    int32_t *outputs; /* value ids: n_outputs of them, then the loss */
    int32_t n_outputs, n_differentiated, n_carried; /* the first n_differentiated outputs are differentiated */
    int64_t carried_capacity;
    rm_carried *carried; /* sweep by sweep */
    int32_t n_crossing;
    rm_crossing *crossing; /* sweep by sweep */
    int32_t *cross;        /* by value id: index in `crossing`, or -1 */
    int32_t n_sweeps;
    rm_sweep *sweep;
    int32_t n_kinds;
    rm_stage_kind *kind;
    rm_program prologue, epilogue; /* the TABLE nodes */
    rm_residents at;
    rm_problem problem, evaluation;
} rm_chain;

typedef struct {
    int64_t tile;         /* as requested; 0: rm_tile_of chooses */
    int64_t carry_stride; /* remat_config */
    int threads, n_differentiated;
    bool inference, stateful;
    const remat_external *external; /* arrays in external memory, by kind and name */
    int n_external;
    const char *const *optimizer_state_name; /* optimizer_states names */
    /* Is this array in another session's memory (share.c)? GRADIENT: of a parameter. NULL: none is. */
    bool (*shared)(const void *owner, remat_kind kind, const char *name, uint64_t bytes);
    const void *owner;
    uint64_t packed_room;      /* bytes for packed weights in another session's memory; 0: there is none */
    const remat_ranks *ranks;  /* without ranks: size 1, functions NULL */
    const remat_pipeline *pipeline; /* NULL: none */
    int pipeline_rank;         /* whose part is built; RM_EVERY_RANK: the whole */
    const rm_node_run *full;   /* n_full runs of nodes that do not fit on one rank: a cut that is chosen has no rank with */
    int n_full;                /* all nodes of one */
    const double *node_ns;     /* measured times of nodes, for a cut that is chosen; NULL: by their counted work */
    int gradient_sums;         /* sections for partial sums of gradients (deterministic_world) */
    bool hashes;               /* the device keeps hashes of states (device.h, compare) */
    bool lean;                 /* offer the options "lean" and "leaner" if they save bytes */
    remat_device_kind kernels; /* column of the ops' kernel tables */
    int optimizer_states;
    rm_rates rates;
} rm_chain_config;

/* Replaces the ops for which the device has its own descriptor (device.h, variant): then all tiles of a layer run the
 * same kernels, whichever option they are kept in. *chosen: number of replaced ops. variant.c */
remat_status rm_graph_choose_variants(remat_graph *graph, const rm_device_api *api, rm_device *device, int64_t tile,
                                      int64_t carry_stride, int32_t *chosen);

/* Cuts the graph, lays out resident arrays, writes the programs and both problems. *chain must be zeroed; rm_chain_free
 * it even after a failure. */
remat_status rm_chain_build(const remat_graph *graph, int32_t loss, const int32_t *outputs, int32_t n_outputs,
                            const rm_chain_config *config, rm_chain *chain);
void rm_chain_free(rm_chain *chain);

/* Start of a block's resident part: the block's first page boundary. chain->at.bytes includes the bytes before it. */
char *rm_resident_begin(void *block);

/* Steps of rm_chain_build, in order. */
remat_status rm_chain_choose_owners(rm_chain *chain, const rm_chain_config *config); /* owners.c */
remat_status rm_chain_find_sweeps(rm_chain *chain, const rm_chain_config *config); /* sweeps.c */
remat_status rm_chain_lay_out(rm_chain *chain, const rm_chain_config *config);     /* resident.c */
remat_status rm_chain_write_programs(rm_chain *chain, const rm_chain_config *);    /* program.c  */
void rm_chain_lay_out_rest(rm_chain *chain, const rm_chain_config *config); /* resident.c: sizes known only now */
remat_status rm_chain_write_problems(rm_chain *chain, const rm_chain_config *); /* chain_problem.c */

/* chain_problem.c. guess_times: sets the times of all programs by these rates, in the chain and both problems.
 * take_times: copies the programs' times into both problems. */
void rm_chain_guess_times(rm_chain *chain, const rm_rates *rates);
void rm_chain_take_times(rm_chain *chain);

/* ---- Pipelines: owners.c, divide.c ----------------------------------------------------------------------------- */

/* RM_EVERY_CUT, as the size of a pipeline: as many ranks as the network can be cut into, for measuring. */
enum { RM_EVERY_RANK = -1, RM_EVERY_CUT = 0, RM_MOST_PIPELINE_RANKS = 64 };
#define RM_ELSEWHERE (UINT64_MAX / 2) /* the offset of a RESIDENT array that another rank holds */
static inline bool rm_is_elsewhere(const rm_where *where) {
    return where->space == RM_RESIDENT && where->offset == RM_ELSEWHERE;
}
static inline bool rm_runs_on(const rm_chain *chain, int32_t node, int rank) {
    return !chain->owner || rank == RM_EVERY_RANK || chain->owner[node] == rank || chain->owner[node] == RM_EVERY_RANK;
}
/* Time of a node in all tiles, forward and backward, by its counted work. */
double rm_chain_counted_ns(const rm_chain *chain, const rm_chain_config *config, int32_t node);
/* Whether a node that runs on `rank` reads this value. */
bool rm_chain_reads(const rm_chain *chain, int32_t value, int rank);
/* Whether this rank holds the parameter, buffer, input, table or output. */
bool rm_chain_holds(const rm_chain *chain, int32_t value);
int rm_chain_holder(const rm_chain *chain, int32_t value); /* the first rank that does */
/* Both are built of the same graph; `part` is one rank's. Gives part->problem and part->evaluation the lists of
 * `whole`, with the bytes that the part's own programs touch. MEMORY. */
remat_status rm_chain_adopt(rm_chain *part, const rm_chain *whole);
/* Raises bytes and times in `most` to those of `part`, which has the same lists. */
void rm_problem_raise(rm_problem *most, const rm_problem *part);

/* ---- Queries on a finished chain: chain.c ---------------------------------------------------------------------- */

rm_instruction rm_program_at(const rm_program *program, int32_t n); /* unpacked */
uint64_t rm_chain_program_bytes(const rm_chain *chain);             /* host bytes of all programs */
void rm_program_guess(rm_program *program, const rm_rates *rates);  /* sets its times by these rates */

/* Timesteps of a tile, at most T: `asked`, or, if that is 0, 512 rows / B rounded down to a power of two within 8..256;
 * on a GPU 2048 rows / B within 8..1024 (docs/plans.md). If carry_stride > 0, a chosen tile is reduced until it divides
 * it. */
int64_t rm_tile_of(int64_t asked, int64_t carry_stride, int64_t timesteps, int64_t batch, remat_device_kind kernels);

const rm_sweep *rm_stage_sweep(const rm_chain *chain, int64_t stage);
const rm_stage_kind *rm_stage_kind_of(const rm_chain *chain, int64_t stage);

/* The tile of a stage of a sweep, by positions; also the stage of a tile, since the mapping is its own inverse. */
static inline int64_t rm_sweep_turn(const rm_sweep *sweep, int64_t position) {
    return sweep->down ? sweep->count - 1 - position : position;
}
/* First timestep of a stage; 0 without a time axis. */
int64_t rm_stage_begin(const rm_chain *chain, int64_t stage);

/* Index in chain->carried of a node's carried state; -1: none. */
int32_t rm_carried_slot(const rm_chain *chain, int32_t node, int state);

/* The name of a carried state, as in remat_array: "lstm.1.c" for the second LSTM layer. */
void rm_chain_state_name(const rm_chain *chain, int32_t slot, char name[80]);

/* Address of a carried state that a stage passes on (shift 0) or receives (-1); and of its gradient. */
rm_where rm_carried_where(const rm_chain *chain, int32_t slot, int shift);
rm_where rm_carried_gradient(const rm_chain *chain, int32_t slot, int shift);

/* Address of a crossing value, or its gradient, for the stages of the sweep `reader`: a tile of it, or all of it if it
 * is a single piece. `tile`: this tile; -1: the reader's own. NOWHERE: it has no gradient. */
rm_where rm_crossing_where(const rm_chain *chain, int32_t value, const rm_sweep *reader, int64_t tile);
rm_where rm_crossing_gradient(const rm_chain *chain, int32_t value, const rm_sweep *reader, int64_t tile);

/* The piece of an AT_PIECE address for the stage in this position of its sweep; -1: none. */
static inline int64_t rm_piece_at(const rm_where *where, int64_t position) {
    int64_t at = position + where->shift;
    return at < 0 || at >= where->limit ? -1 : where->piece + where->stride * at;
}

/* The name of an output, as in remat_array: "output.0". Returns `name`. */
enum { RM_OUTPUT_NAME = 24 };
const char *rm_output_name(int32_t output, char name[RM_OUTPUT_NAME]);

/* Whether the value is an output; whether the caller provides its gradient, or the first term of it. */
bool rm_chain_is_output(const rm_chain *chain, int32_t value);
bool rm_chain_is_differentiated_outside(const rm_chain *chain, int32_t value);

/* Predicted time of all stages' `once` instructions. */
uint64_t rm_chain_once_ns(const rm_chain *chain);

/* Number of pieces of states; these come before the pieces of their gradients. */
int64_t rm_chain_state_pieces(const rm_chain *chain);

/* Content of a piece of a state: either carried or crossing is set. */
typedef struct {
    const rm_carried *carried;
    const rm_crossing *crossing;
    int64_t stage; /* the stage that makes it */
} rm_piece_origin;
rm_piece_origin rm_chain_piece_origin(const rm_chain *chain, int64_t piece);

/* The lowest exclusive upper limit of the layers that read integers from this input; 0: none. */
int64_t rm_chain_bound(const rm_chain *chain, int32_t value);
/* The value outside this limit that all of these layers allow; 0: none. */
int64_t rm_chain_ignored(const rm_chain *chain, int32_t value);

#endif
