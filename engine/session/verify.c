/* verify.c: see verify.h. The operands of a run's program tell which pieces it reads and writes: a forward run writes
 * those of its own stage and reads the others; a backward run only reads.
 *
 * If the host compares states, it waits for the queue and hashes them (hash.h). If the device does (compare),
 * comparisons are queued like other work, and the first difference is read at the end of the step. */
#include "engine/session/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/hash.h"
#include "memory/host.h"

struct rm_verify {
    const rm_chain *chain; /* borrowed, as are the next two */
    const rm_device_api *api;
    rm_queue *queue;
    uint64_t *kept;       /* in device memory: hashes by piece; NULL: the host compares */
    rm_difference *first; /* in device memory */
    uint64_t *hash;       /* by piece; 0: not computed yet in this step; 1 on a device that compares: computed */
    int64_t n_hashes, comparisons;
};

/* ---- Life ----------------------------------------------------------------------------------------------------- */

static remat_desc carried_desc(const rm_chain *chain, const rm_carried *carried) {
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    rm_node_descs(chain->graph, &chain->graph->node[carried->node], 0, x, &y, state);
    return carried->state < 0 ? y : state[carried->state];
}

uint64_t rm_verify_bytes(const rm_chain *chain) { return (uint64_t)rm_chain_state_pieces(chain) * sizeof(uint64_t); }

remat_status rm_verify_create(const rm_chain *chain, const rm_device_api *api, rm_queue *queue, char *resident,
                              rm_verify **out) {
    rm_verify *v = rm_calloc(1, sizeof *v);
    REQUIRE(v, MEMORY, "out of memory for verifying recomputation");
    v->chain = chain;
    v->api = api;
    v->queue = queue;
    if (chain->at.hashes_bytes) {
        v->first = (rm_difference *)(resident + chain->at.hashes_offset);
        v->kept = (uint64_t *)(v->first + 1);
    }
    v->n_hashes = rm_chain_state_pieces(chain);
    v->hash = rm_calloc((size_t)v->n_hashes + 1, sizeof *v->hash);
    if (!v->hash) {
        rm_verify_free(v);
        FAIL(MEMORY, "out of memory for the hashes of %" PRId64 " pieces of states", rm_chain_state_pieces(chain));
    }
    *out = v;
    return REMAT_OK;
}

void rm_verify_free(rm_verify *v) {
    if (!v) return;
    rm_free(v->hash);
    rm_free(v);
}

void rm_verify_begin(rm_verify *v) {
    memset(v->hash, 0, (size_t)v->n_hashes * sizeof *v->hash);
    if (v->kept) v->api->fill(v->queue, v->first, 0, sizeof *v->first);
}

int64_t rm_verify_comparisons(const rm_verify *v) { return v->comparisons; }

/* ---- The message ---------------------------------------------------------------------------------------------- */

/* "h of lstm rnn.weight_hh_l0": the state, the op, and the last of the layer's parameters that has two dimensions. */
static void name_tensor(const rm_verify *v, int64_t piece, char *text, size_t size) {
    const remat_graph *graph = v->chain->graph;
    rm_piece_origin origin = rm_chain_piece_origin(v->chain, piece);
    const rm_carried *carried = origin.carried;
    const rm_node *node = &graph->node[carried ? carried->node : graph->value[origin.crossing->value].node];
    const char *weight = "";
    for (int i = 0; i < node->op->n_in; i++) {
        const rm_value *value = &graph->value[node->x[i]];
        if (node->x[i] && value->origin == RM_VALUE_PARAM && value->desc.rank == 2) weight = value->name;
    }
    const char *what = !carried             ? "result"
                       : carried->state < 0 ? "running sum"
                                            : rm_op_state_name(node->op, carried->state);
    snprintf(text, size, "%s of %s%s%s (node %d)", what, node->op->name, *weight ? " " : "", weight,
             (int)(node - graph->node));
}

static void name_stage(const rm_verify *v, int64_t piece, char *text, size_t size) {
    const rm_chain *chain = v->chain;
    int64_t stage = rm_chain_piece_origin(chain, piece).stage, begin = rm_stage_begin(chain, stage);
    const rm_stage_kind *kind = rm_stage_kind_of(chain, stage);
    if (kind->tau)
        snprintf(text, size, "stage %" PRId64 ", timesteps %" PRId64 " to %" PRId64, stage, begin,
                 begin + kind->tau - 1);
    else
        snprintf(text, size, "stage %" PRId64, stage);
}

static remat_status refuse(const rm_verify *v, const rm_difference *d, rm_step step) {
    char tensor[200], stage[96], line[RM_STEP_TEXT];
    name_tensor(v, d->piece, tensor, sizeof tensor);
    name_stage(v, d->piece, stage, sizeof stage);
    rm_step_text(&v->chain->problem, step, line);
    if (d->again)
        FAIL(DEVICE,
             "%s: %s, recomputed by step %" PRId64 " of the plan (%s), has hash %016" PRIx64 ", but had %016" PRIx64
             " when it was first computed: recomputation on this machine is not repeatable (bad memory, or a "
             "non-deterministic kernel); do not use this step's gradients",
             stage, tensor, d->line, line, d->now, d->before);
    FAIL(DEVICE,
         "%s: %s, as read by step %" PRId64 " of the plan (%s), has hash %016" PRIx64 ", but had %016" PRIx64
         " when it was computed: it changed in memory or storage (bad memory or storage, or something overwrote it); "
         "do not use this step's gradients",
         stage, tensor, d->line, line, d->now, d->before);
}

/* ---- Comparing ------------------------------------------------------------------------------------------------ */

/* Pieces that this run has already compared, since a piece may be an operand of several calls. */
typedef struct {
    int n;
    int32_t piece[32];
} seen;

static bool seen_before(seen *s, int32_t piece) {
    for (int i = 0; i < s->n; i++)
        if (s->piece[i] == piece) return true;
    if (s->n < (int)(sizeof s->piece / sizeof *s->piece)) s->piece[s->n++] = piece;
    return false;
}

/* The operand's piece if it is a state; otherwise -1. */
static int32_t piece_of(const rm_verify *v, const rm_verify_run *run, const rm_where *where) {
    int64_t piece = where->space == RM_AT_PIECE ? rm_piece_at(where, run->position) : -1;
    return piece < v->n_hashes ? (int32_t)piece : -1;
}

static bool is_own(const rm_verify *v, const rm_verify_run *run, int32_t piece) {
    const rm_problem *p = &v->chain->problem;
    int64_t s = run->step.index;
    return piece >= p->state[p->made[s]] && piece < p->state[p->made[s + 1]];
}

/* Excludes padding, which is never written. */
static uint64_t bytes_of(const rm_verify *v, int32_t piece) {
    rm_piece_origin origin = rm_chain_piece_origin(v->chain, piece);
    if (!origin.crossing) {
        remat_desc desc = carried_desc(v->chain, origin.carried);
        return rm_desc_bytes(&desc);
    }
    remat_desc desc =
        rm_value_desc(v->chain->graph, origin.crossing->value, rm_stage_kind_of(v->chain, origin.stage)->tau);
    return rm_desc_bytes(&desc);
}

/* Queues a comparison on the device. */
static void queue_comparison(rm_verify *v, const rm_verify_run *run, int32_t piece, bool again) {
    rm_comparison check = {.state = run->piece[piece],
                           .bytes = bytes_of(v, piece),
                           .seed = (uint64_t)piece,
                           .kept = &v->kept[piece],
                           .first = v->first,
                           .line = run->number,
                           .piece = piece,
                           .again = again,
                           .keeps = !v->hash[piece]};
    v->hash[piece] = 1;
    v->api->compare(v->queue, &check);
}

static remat_status compare(rm_verify *v, const rm_verify_run *run, int32_t piece, bool again) {
    v->comparisons++;
    if (v->kept) {
        queue_comparison(v, run, piece, again);
        return REMAT_OK;
    }
    uint64_t now = rm_hash(run->piece[piece], bytes_of(v, piece), (uint64_t)piece);
    if (!now) now = 1;
    if (!v->hash[piece]) v->hash[piece] = now;
    rm_difference d = {.now = now, .before = v->hash[piece], .line = run->number, .piece = piece, .again = again};
    return d.now == d.before ? REMAT_OK : refuse(v, &d, run->step);
}

static remat_status compare_operands(rm_verify *v, const rm_verify_run *run, bool made) {
    bool forward = run->step.verb == RM_RUN_FORWARD;
    seen s = {0};
    if (made && !forward) return REMAT_OK;
    if (!v->kept) TRY(v->api->synchronize(v->queue)); /* the host reads what is there now */
    for (int32_t i = 0; i < run->program->n_where; i++) {
        int32_t piece = piece_of(v, run, &run->program->where[i]);
        if (piece < 0 || (forward && is_own(v, run, piece) != made) || seen_before(&s, piece)) continue;
        TRY(compare(v, run, piece, made));
    }
    return REMAT_OK;
}

remat_status rm_verify_before(rm_verify *v, const rm_verify_run *run) { return compare_operands(v, run, false); }
remat_status rm_verify_after(rm_verify *v, const rm_verify_run *run) { return compare_operands(v, run, true); }

remat_status rm_verify_end(rm_verify *v, const rm_plan *plan) {
    rm_difference found;
    if (!v->kept) return REMAT_OK;
    v->api->copy_out(v->queue, &found, v->first, sizeof found);
    TRY(v->api->synchronize(v->queue));
    return found.found ? refuse(v, &found, plan->step[found.line]) : REMAT_OK;
}
