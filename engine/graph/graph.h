/* graph.h: the network as its author described it: values, and the nodes that make them, in topological order. The
 * builders of remat.h fill it (layers.c, scan.c); fold.c rewrites a copy; engine/chain cuts it into stages. */
#ifndef RM_GRAPH_H
#define RM_GRAPH_H

#include "engine/tensor.h"
#include "ops/op.h"

typedef enum { RM_VALUE_INPUT, RM_VALUE_PARAM, RM_VALUE_BUFFER, RM_VALUE_RESULT, RM_VALUE_VIEW } rm_origin;

/* Inputs that a value is computed from, directly or through others. */
typedef enum { RM_ON_STATIC = 1, RM_ON_SEQUENCE = 2 } rm_dependence;

typedef struct {
    rm_origin origin;
    char *name;          /* NULL for results */
    remat_desc desc;     /* of the whole value: (T,B,..) for a sequence */
    bool sequence;       /* the first axis is time */
    bool reversed;       /* a sequence from the last timestep to the first */
    bool needs_gradient; /* parameters: false if frozen */
    uint8_t depends;     /* rm_dependence; 0: on parameters and buffers alone */
    remat_init init;     /* parameters and buffers */
    int32_t node;        /* results: the node that makes it */
    int32_t view_of;     /* views: the value whose bytes it has, in another shape; else 0 */
    int state;           /* results: 0: the node's y; k+1: its carried state k after the last timestep */
} rm_value;

typedef struct {
    const remat_op *op;
    remat_op *own_op;      /* owned; op if it was made for this node: a scan's (scan.c), or a copy of `given` */
    const remat_op *given; /* a user's op whose struct is shorter than ours (abi.h); else NULL */
    void *attr;            /* owned copy, or NULL */
    size_t attr_bytes;
    int32_t x[REMAT_MAX_INPUTS];    /* value ids; 0: none. The op's inputs, then the initial values of its states */
    int32_t seen[REMAT_MAX_INPUTS]; /* in a copy, where x[i] is never a view: the view that the op reads; 0: x[i] */
    int32_t y;
    remat_desc *state; /* owned; shapes of the op's n_state carried states, the same for all tiles. NULL: no states */
    int32_t final[REMAT_MAX_STATES]; /* value ids: carried states after the last timestep; 0: not requested */
    uint32_t key;                    /* for random numbers: the node's number in the original graph; rewrites keep it */
} rm_node;

struct remat_graph {
    rm_value *value; /* [0] is "no value" */
    int32_t n_values;
    rm_node *node;
    int32_t n_nodes;
    int64_t value_capacity, node_capacity;
    remat_status status; /* of the first error */
    char error[512];
};

/* The value that carried state k starts with; 0: zeros. */
static inline int32_t rm_initial(const rm_node *node, int k) { return node->x[node->op->n_in + k]; }

/* The node sums over an i32 input, such as the number of targets that count. The input is in
 * memory before the step, so the sum can be, too. */
bool rm_graph_counts_symbols(const remat_graph *graph, int32_t node);

/* The value that divides the node's sum (remat_op.denominator); 0: none. */
static inline int32_t rm_denominator(const rm_node *node) {
    return node->op->denominator ? node->x[__builtin_ctzll(node->op->denominator)] : 0;
}

/* The count that the whole loss is divided by: it is a sum over targets divided by `value`, times constant factors.
 * value 0: no count. mixed: only some terms are divided by it, or terms are divided by different counts. */
typedef struct {
    int32_t value;
    bool mixed;
} rm_mean;
remat_status rm_graph_mean(const remat_graph *graph, int32_t loss, rm_mean *out); /* loss_mean.c */

/* A deep copy. */
remat_status rm_graph_clone(const remat_graph *graph, remat_graph **out);
/* Infers the shapes of the node's result and states again from those of its inputs. INVALID if rm_graph_add would refuse
 * it. */
remat_status rm_node_infer(remat_graph *graph, int32_t node);
/* A deep copy in which nodes read the viewed values instead of views. Later passes see views only as shapes
 * (rm_node_descs). */
remat_status rm_graph_copy(const remat_graph *graph, remat_graph **out);

/* Freezes all parameters whose names start with none of these prefixes (separated by commas). Frozen parameters need no
 * gradient, nor do values that depend on no other parameters. INVALID if a prefix matches no name. */
remat_status rm_graph_train_only(remat_graph *graph, const char *prefixes);
/* The checks of rm_graph_train_only; and whether a name starts with one of the prefixes. */
remat_status rm_graph_check_beginnings(const remat_graph *graph, const char *prefixes);
bool rm_begins_like_one(const char *name, const char *prefixes);

/* Makes room. */
remat_status rm_graph_grow(remat_graph *graph, int64_t n_values, int64_t n_nodes);
/* Appends a value, with a copy of the name (NULL: none). */
remat_status rm_graph_add_value(remat_graph *graph, const char *name, rm_value value, int32_t *id);
/* The value whose bytes this one has: itself, unless it is a view. */
static inline int32_t rm_bytes_of(const remat_graph *graph, int32_t value) {
    return graph->value[value].view_of ? graph->value[value].view_of : value;
}

/* Appends a node after inferring its result; `attr` (NULL: none) is copied. Returns 0 after an error, which the graph
 * remembers. */
int32_t rm_graph_add(remat_graph *graph, const remat_op *op, const int32_t *x, const void *attr);
/* Recomputes needs_gradient of all results and views. */
void rm_graph_update_needs(remat_graph *graph);
/* Gives the node copies of its attributes and of the shapes of its states. */
remat_status rm_node_own_data(rm_node *node, const void *attr, const remat_desc *state);
/* Gives the node its own op: a scan's, made from its attributes, or a copy of `given`. */
remat_status rm_node_own_op(rm_node *node);
/* Makes the last error the graph's, if it has none yet. Returns 0, "no value". */
int32_t rm_graph_mistake(remat_graph *graph, remat_status status);

/* The shapes of the inputs, the result and op->n_state states for `tau` timesteps (0: of the whole values). Nothing is
 * inferred here: shapes were inferred when the node was added, and rm_node_check compares a tile's result with a part
 * of the whole. */
void rm_node_descs(const remat_graph *graph, const rm_node *node, int64_t tau, remat_desc *x, remat_desc *y,
                   remat_desc *state);
/* Checks that the node's op accepts tiles of `tau` timesteps (0: whole values), and that its costs and sizes can be
 * planned. */
remat_status rm_node_check(const remat_graph *graph, const rm_node *node, int64_t tau, remat_device_kind device);
remat_desc rm_value_desc(const remat_graph *graph, int32_t value, int64_t tau);

/* Rewrites embedding -> recurrent layer into one table (V,G*H) = weight w_ih^T that the layer reads by token, if the
 * vocabulary is smaller than the number of rows T*B and no other node reads the embedding (fold.c). Values in `keep`
 * keep their ids. *n_folded: number of folded layers. */
remat_status rm_graph_fold_embeddings(remat_graph *graph, const int32_t *keep, int n_keep, int *n_folded);
/* Rewrites relu(add(a, b)), where a and b have one shape, and relu(batch_norm(x, ..)) into one node, which has the same
 * bits, if nothing else reads the sum or the batch norm (fold.c). Values in `keep` keep their ids and are made. */
remat_status rm_graph_fold_relus(remat_graph *graph, const int32_t *keep, int n_keep);

#endif
