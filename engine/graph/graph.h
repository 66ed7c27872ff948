/* graph.h: the network as its author described it: values and the nodes that make them, in topological order by
 * construction. The builders of remat.h fill it (layers.c, scan.c); fold.c rewrites a copy; chain.h cuts it into stages. */
#ifndef RM_GRAPH_H
#define RM_GRAPH_H

#include "engine/tensor.h"
#include "ops/op.h"

typedef enum { RM_VALUE_INPUT, RM_VALUE_PARAM, RM_VALUE_BUFFER, RM_VALUE_RESULT, RM_VALUE_VIEW } rm_origin;

typedef struct {
    rm_origin origin;
    char *name;          /* NULL for results */
    remat_desc desc;     /* of the whole value: (T,B,..) for a sequence */
    bool sequence;       /* the first axis is time */
    bool reversed;       /* ... and runs from the last timestep to the first */
    bool needs_gradient; /* of parameters: unless they are frozen */
    remat_init init;     /* parameters and buffers */
    int32_t node;        /* results: who makes it ... */
    int32_t view_of;     /* views: the value whose bytes these are, in this shape; else 0 */
    int state;           /* ... and as what: 0: its y; k+1: its carried state k as it is after the last timestep */
} rm_value;

typedef struct {
    const remat_op *op;
    remat_op *own_op;      /* op, where it was made for this node alone: a scan's (scan.c), or a copy of ... */
    const remat_op *given; /* ... a program's op that is shorter than ours (abi.h); else NULL */
    void *attr;            /* owned copy, or NULL */
    size_t attr_bytes;
    int32_t
        x[REMAT_MAX_INPUTS]; /* value ids; 0: not given. Behind the op's own inputs: where its carried states begin */
    int32_t seen[REMAT_MAX_INPUTS]; /* as which view of x[i], in a copy, where x[i] is never a view; 0: as it is */
    int32_t y;
    remat_desc *state; /* owned; n_state shapes of its op's carried states, the same for all tiles. NULL: it has none */
    int32_t final[REMAT_MAX_STATES]; /* value ids: the carried states after the last timestep; 0: nobody asked */
    uint32_t key;                    /* for randomness: the node's number in the graph as described, kept by rewrites */
} rm_node;

struct remat_graph {
    rm_value *value; /* [0] is "no value" */
    int32_t n_values;
    rm_node *node;
    int32_t n_nodes;
    int64_t value_capacity, node_capacity;
    remat_status status; /* of the first mistake */
    char error[512];
};

/* Where carried state k begins: a value; 0: zeros. */
static inline int32_t rm_initial(const rm_node *node, int k) { return node->x[node->op->n_in + k]; }

/* What a node's result is a sum divided by (remat_op.denominator): a value; 0: nothing that is given. */
static inline int32_t rm_denominator(const rm_node *node) {
    return node->op->denominator ? node->x[__builtin_ctzll(node->op->denominator)] : 0;
}

/* What the loss divides by, in full: it is a sum over targets divided by `value`, times factors that do not change. 0: by nothing
 * that is counted. mixed: only a part of it does, or parts divide by different counts. */
typedef struct {
    int32_t value;
    bool mixed;
} rm_mean;
remat_status rm_graph_mean(const remat_graph *graph, int32_t loss, rm_mean *out); /* loss_mean.c */

/* A deep copy, in which nodes read views' bytes where they are: what follows knows no views but for their shapes (rm_node_descs). */
remat_status rm_graph_copy(const remat_graph *graph, remat_graph **out);

/* Parameters whose names begin like none of these, comma separated, are frozen: they need no gradient, nor does what is made of
 * them alone. INVALID where one of these begins no name. */
remat_status rm_graph_train_only(remat_graph *graph, const char *beginnings);
/* The refusals of rm_graph_train_only; and whether a name begins like one of these. */
remat_status rm_graph_check_beginnings(const remat_graph *graph, const char *beginnings);
bool rm_begins_like_one(const char *name, const char *beginnings);

/* Appends a node after inferring its result; `attr` (NULL: none) is copied. 0 after a mistake, which the graph remembers. */
int32_t rm_graph_add(remat_graph *graph, const remat_op *op, const int32_t *x, const void *attr);
/* Gives the node an op of its own: that of a scan, made of its attributes, or a copy of `given`. */
remat_status rm_node_own_op(rm_node *node);
/* Keeps the last error as the graph's, if it is its first. Returns 0, "no value". */
int32_t rm_graph_mistake(remat_graph *graph, remat_status status);

/* The shapes of the inputs, the result and op->n_state states as an op sees them for `tau` timesteps (tau = 0: as they are). Nothing is inferred: that was done
 * when the node was added, and rm_node_check finds out whether a tile's result is a part of the whole. */
void rm_node_descs(const remat_graph *graph, const rm_node *node, int64_t tau, remat_desc *x, remat_desc *y,
                   remat_desc *state);
/* The node's op accepts tiles of `tau` timesteps (0: the whole), and asks for what can be planned. */
remat_status rm_node_check(const remat_graph *graph, const rm_node *node, int64_t tau, remat_device_kind device);
remat_desc rm_value_desc(const remat_graph *graph, int32_t value, int64_t tau);

/* Rewrites embedding -> recurrent layer into one table (V,G*H) = weight w_ih^T that the layer reads by token, wherever
 * the vocabulary is smaller than the number of rows T*B and nobody else reads the embedding (fold.c). `loss` and
 * outputs keep their ids. Says how many layers were folded. */
remat_status rm_graph_fold_embeddings(remat_graph *graph, const int32_t *keep, int n_keep, int *n_folded);

#endif
