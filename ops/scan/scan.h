/* scan.h: a recurrent layer whose timestep is a small graph of other ops (remat_scan; engine/graph/scan.c writes it
 * down as an rm_scan). Its kernels run the body's ops one by one, timestep after timestep: forwards in time in
 * forward, backwards in backward.
 *
 * An rm_scan is the op's attributes: numbers only. Values are numbered: 0 is none, then come sequences, weights, states
 * and results, one per node. There is no dead code: the output and the next states depend on every node and every
 * value.
 *
 *   x[0 ..]     sequences (T,B,..), then weights, in the body's order
 *   y           (T,B,..), the body's output
 *   aux         for each timestep, the tensors that the body's ops read in backward: their inputs, results and aux,
 *   except those that exist
 *               anyway: x, weights, y. The state before timestep t is the next state of t - 1.
 */
#ifndef RM_SCAN_H
#define RM_SCAN_H

#include "ops/op.h"

enum {
    RM_SCAN_NODES = 64,
    RM_SCAN_VALUES = 1 + REMAT_MAX_INPUTS + REMAT_MAX_STATES + RM_SCAN_NODES,
    RM_SCAN_NAME = 40,      /* longest name in bytes */
    RM_SCAN_NAME_ROOM = 48, /* with the terminator, rounded up to a multiple of 8 */
    RM_SCAN_ATTR = 16,                          /* limit of the attributes of an op of the body, in bytes */
    RM_SCAN_X = (REMAT_MAX_INPUTS + 1) / 2 * 2, /* even, so that the attributes that follow are 8-byte aligned */
};

typedef struct {
    int64_t rank, dim[REMAT_MAX_RANK];
} rm_scan_value;

typedef struct {
    int32_t op; /* rm_op_at */
    int32_t has_attr, x[RM_SCAN_X];
    unsigned char attr[RM_SCAN_ATTR];
} rm_scan_node;
_Static_assert(offsetof(rm_scan_node, attr) % 8 == 0 && sizeof(rm_scan_node) % 8 == 0, "attributes hold doubles");

typedef struct {
    char name[RM_SCAN_NAME_ROOM];
    int32_t n_sequences, n_weights, n_states, n_nodes;
    int32_t output, next[REMAT_MAX_STATES], n_values;
    rm_scan_value value[RM_SCAN_VALUES];
    rm_scan_node node[RM_SCAN_NODES];
} rm_scan;

static inline int32_t rm_scan_first_weight(const rm_scan *s) { return 1 + s->n_sequences; }
static inline int32_t rm_scan_first_state(const rm_scan *s) { return rm_scan_first_weight(s) + s->n_weights; }
static inline int32_t rm_scan_first_result(const rm_scan *s) { return rm_scan_first_state(s) + s->n_states; }

/* Fills in the op that runs `scan`. Its name is scan->name, so the op is valid only as long as `scan`. */
void rm_scan_describe(const rm_scan *scan, remat_op *op);
void rm_scan_describe_f64(const rm_scan *scan, remat_op *op); /* the double-precision op; tests only */

#endif
