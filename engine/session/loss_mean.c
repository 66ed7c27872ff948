/* loss_mean.c: what the loss of an update is a mean over, where its batch comes in parts: micro steps, ranks, shards.
 *
 * With S the sum of a part's losses and c what counts in it (remat_op.denominator), the update's loss is the sum of all S over the
 * sum of all c. A part's own loss is S / d, where d is c, or 1 where c is 0. So the update's is the mean over n parts of S/d times a
 * weight w = d n / (sum of c). Where all parts count equally, w is exactly 1. A part takes w / K of its loss's gradient, in the float
 * at `one_offset`. (Classes that weigh 0 and smoothed labels make an S that is not 0 where c is.)
 *
 * The sum of c is known in the last of K micro steps: ranks add up their counts before its backward pass. Recomputing reads what is
 * there by then, and never talks. The micro steps before take d / d0 instead of w, d0 being the d of this rank's first; when the
 * last begins, what they have added up is multiplied by d0 n / (sum of c).
 *
 * Pairwise, which micro step is the last depends on the number of ranks, and bits must not. All take d / d0, d0 being the number of
 * targets that there are; and gradients are multiplied by d0 n / (sum of c) when all have been added up. */
#include <string.h>

#include "engine/session/session.h"
#include "memory/host.h"

/* ---- Of a graph ---------------------------------------------------------------------------------------------------- */

static bool same_node(const rm_node *a, const rm_node *b) {
    return a->op == b->op && a->attr_bytes == b->attr_bytes && !memcmp(a->x, b->x, sizeof a->x) &&
           (!a->attr_bytes || !memcmp(a->attr, b->attr, a->attr_bytes));
}

/* The same number: losses over the same targets each have a count of their own. */
static bool same_count(const remat_graph *graph, int32_t a, int32_t b) {
    const rm_value *one = &graph->value[a], *other = &graph->value[b];
    if (a == b) return true;
    return one->origin == RM_VALUE_RESULT && other->origin == RM_VALUE_RESULT &&
           same_node(&graph->node[one->node], &graph->node[other->node]);
}

static rm_mean joined(const remat_graph *graph, rm_mean a, rm_mean b) {
    bool both = a.value && b.value && same_count(graph, a.value, b.value);
    bool neither = !a.value && !b.value;
    return (rm_mean){a.value ? a.value : b.value, a.mixed || b.mixed || !(both || neither)};
}

/* of: by value id, of what comes before the node. */
static rm_mean mean_of(const remat_graph *graph, const rm_node *node, const rm_mean *of) {
    rm_mean any = {0};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        const rm_mean *x = &of[node->x[i]];
        if (x->value) any = (rm_mean){x->value, true};
    }
    if (rm_denominator(node)) return any.value ? any : (rm_mean){rm_denominator(node), false};
    if (node->op == rm_op_find("scale")) return of[node->x[0]];
    if (node->op == rm_op_find("add")) return joined(graph, of[node->x[0]], of[node->x[1]]);
    return any;
}

remat_status rm_graph_mean(const remat_graph *graph, int32_t loss, rm_mean *out) {
    rm_mean *of = rm_calloc((size_t)graph->n_values, sizeof *of);
    REQUIRE(of, MEMORY, "out of memory for %d values", graph->n_values);
    for (int32_t n = 0; n < graph->n_nodes; n++) {
        const rm_node *node = &graph->node[n];
        of[node->y] = mean_of(graph, node, of);
        for (int k = 0; k < REMAT_MAX_STATES; k++)
            if (node->final[k]) of[node->final[k]] = of[node->y];
    }
    *out = of[loss];
    rm_free(of);
    return REMAT_OK;
}

/* ---- Of a session -------------------------------------------------------------------------------------------------- */

static int64_t parts_of(const remat_session *s) { return (int64_t)s->ranks.size * s->micro_steps; }

/* A number that is there before the stages run. */
static bool is_known(const rm_chain *chain, int32_t value) {
    const rm_value *v = &chain->graph->value[value];
    return v->origin == RM_VALUE_RESULT && chain->role[v->node] == RM_ROLE_TABLE && v->desc.rank == 0;
}

#define REMEDY "set {loss_mean} to \"parts\": each micro step and rank then has a mean of its own"

/* What would be needed to weigh parts by one number each. */
static remat_status check_weighing(const remat_session *s, rm_mean mean) {
    REQUIRE(
        !mean.mixed, INVALID,
        "only a part of this loss counts its targets, or parts of it count different ones, so micro steps and ranks "
        "cannot be weighed by one count; " REMEDY);
    REQUIRE(
        !s->chain.n_differentiated, INVALID,
        "this loss counts its targets, and outputs are differentiated beside it, whose count is not known; " REMEDY);
    REQUIRE(is_known(&s->chain, mean.value), INVALID,
            "what this loss divides by is not a number that is counted in its inputs, before the step; " REMEDY);
    REQUIRE(s->chain.use[mean.value] != RM_DIFFERENTIATED, INVALID,
            "the weights of this loss's classes are trained, and their sum over micro steps and ranks has no "
            "gradient; " REMEDY);
    return REMAT_OK;
}

remat_status rm_session_choose_mean(remat_session *s, int32_t loss, const remat_config *config) {
    const char *over = config->loss_mean ? config->loss_mean : "batch";
    bool parts = !strcmp(over, "parts");
    rm_mean mean;
    REQUIRE(parts || !strcmp(over, "batch"), INVALID, "{loss_mean} is \"%s\"; it can be batch or parts", over);
    TRY(rm_graph_mean(s->graph, loss, &mean));
    s->counts = !mean.mixed && mean.value && is_known(&s->chain, mean.value) ? mean.value : 0;
    if (s->inference) return REMAT_OK;
    REQUIRE(
        !parts || mean.value, INVALID,
        "{loss_mean} is \"parts\", but all targets of this loss count, so parts of equal size count equally: leave it "
        "out");
    s->mean_of_parts = parts;
    s->weighs = mean.value && !parts && parts_of(s) > 1;
    return s->weighs ? check_weighing(s, mean) : REMAT_OK;
}

double rm_session_loss_share(const remat_session *s) {
    double shards = (double)s->micro_steps * (s->deterministic_world ? s->ranks.size : 1);
    return s->ranks.weight / shards;
}

/* What a part divides by. */
static double divisor_of(double count) { return count != 0 ? count : 1; }

remat_status rm_session_count(remat_session *s) {
    if (!s->counts) return REMAT_OK;
    char *at = s->runner.resident + s->chain.at.value[s->counts].offset;
    s->api->copy_out(s->runner.queue, &s->count, at, sizeof s->count);
    if (!s->weighs || !s->runner.training) return REMAT_OK;
    TRY(s->api->synchronize(s->runner.queue)); /* it is all but empty yet */
    s->divisor = (float)divisor_of(s->count);
    if (s->count == 0) s->api->copy_in(s->runner.queue, at, &s->divisor, sizeof s->divisor);
    return REMAT_OK;
}

/* In the mean over n parts that count `total` together. Nothing counts: 0, as is the loss. */
static double weight_of(double divisor, double total, double n) { return total != 0 ? divisor * n / total : 0; }

double rm_session_part_weight(const remat_session *s, int64_t shard, double total, double n) {
    return s->weighs ? weight_of(divisor_of(s->shard_count[shard]), total, n) : 1;
}

void rm_session_begin_counting(remat_session *s) {
    if (!s->weighs) return;
    const rm_node *count = &s->graph->node[s->graph->value[s->counts].node];
    for (int64_t i = 0; i < parts_of(s); i++) s->shard_count[i] = 0;
    s->first_divisor = s->deterministic_world ? (double)rm_desc_count(&s->graph->value[count->x[0]].desc) : s->divisor;
    s->total_count = 0;
    s->correction = 1;
}

static remat_status count_all(remat_session *s) {
    int64_t n = parts_of(s);
    if (s->ranks.sum) TRY(s->ranks.sum(s->ranks.context, s->shard_count, n));
    s->total_count = 0;
    for (int64_t i = 0; i < n; i++) s->total_count += s->shard_count[i];
    return REMAT_OK;
}

remat_status rm_session_weigh_part(remat_session *s, int64_t shard) {
    const rm_residents *at = &s->chain.at;
    double n = (double)parts_of(s), weight = s->divisor / s->first_divisor;
    bool last = s->n_made + 1 == s->micro_steps;
    if (!s->weighs) return REMAT_OK;
    s->shard_count[shard] = s->count;
    if (last) TRY(count_all(s));
    if (last) s->correction = weight_of(s->first_divisor, s->total_count, n);
    if (last && !s->deterministic_world) {
        weight = weight_of(s->divisor, s->total_count, n);
        if (s->n_made && s->correction != 1)
            rm_run_scale(&s->runner, s->runner.resident + at->gradients_offset, s->correction,
                         (int64_t)(at->section_bytes / sizeof(float)));
        s->correction = 1;
    }
    s->share = (float)(weight / (s->micro_steps * (s->deterministic_world ? (double)s->ranks.size : 1)));
    s->api->copy_in(s->runner.queue, s->runner.resident + at->one_offset, &s->share, sizeof s->share);
    return REMAT_OK;
}
