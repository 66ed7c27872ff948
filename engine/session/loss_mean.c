/* loss_mean.c: averages the loss over the parts of an update's batch: micro steps, ranks, shards.
 *
 * Let S be the sum of a part's losses and c its count (remat_op.denominator). The update's loss is the sum of all S
 * over the sum of all c. A part computes S / d, where d = c, or 1 if c is 0. The update's loss is therefore the mean
 * over n parts of S/d times a weight w = d n / (sum of c). If all counts are equal, w is exactly 1. Backward multiplies
 * a part's loss gradient by w / K, the float at `one_offset`. (With class weights of 0 or smoothed labels, S can be
 * non-zero while c is 0.)
 *
 * The sum of c is known only in the last of K micro steps: ranks sum their counts before its backward pass.
 * Recomputation reads this sum and needs no collective. Earlier micro steps use d / d0 instead of w, where d0 is the d
 * of this rank's first micro step. Before the last one, their accumulated gradients are multiplied by d0 n / (sum of
 * c).
 *
 * With deterministic_world, bits must not depend on which micro step is the last, because that depends on the
 * number of ranks. All micro steps therefore use d / d0, where d0 is the number of targets, ignored ones included;
 * the summed gradients are multiplied by d0 n / (sum of c). */
#include <string.h>

#include "engine/session/session.h"
#include "memory/host.h"

/* ---- The graph's count ----------------------------------------------------------------------------------------- */

static bool same_node(const rm_node *a, const rm_node *b) {
    return a->op == b->op && a->attr_bytes == b->attr_bytes && !memcmp(a->x, b->x, sizeof a->x) &&
           (!a->attr_bytes || !memcmp(a->attr, b->attr, a->attr_bytes));
}

/* Whether two counts are the same number: every loss has its own count node, even over the same targets. */
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

/* `of` has an entry for each value id; those of all values before the node are filled. */
static rm_mean mean_of(const remat_graph *graph, const rm_node *node, const rm_mean *of) {
    rm_mean any = {0};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        const rm_mean *x = &of[node->x[i]];
        if (x->value) any = (rm_mean){x->value, true};
    }
    if (rm_denominator(node)) return any.value ? any : (rm_mean){rm_denominator(node), false};
    if (node->op == rm_op_find("scale")) return of[node->x[0]];
    if (node->op == rm_op_find("add") || node->op == rm_op_find("sub")) return joined(graph, of[node->x[0]], of[node->x[1]]);
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

/* ---- Weights of the parts -------------------------------------------------------------------------------------- */

static int64_t parts_of(const remat_session *s) { return (int64_t)s->ranks.size * s->micro_steps; }

/* Whether the value is a number computed before the stages run. */
static bool is_known(const rm_chain *chain, int32_t value) {
    const rm_value *v = &chain->graph->value[value];
    return v->origin == RM_VALUE_RESULT && chain->role[v->node] == RM_ROLE_TABLE && v->desc.rank == 0;
}

#define REMEDY "set {loss_mean} to \"parts\" to use the mean of each micro step and rank"

/* Weighting needs one number per part. */
static remat_status check_weighing(const remat_session *s, rm_mean mean) {
    REQUIRE(!mean.mixed, INVALID,
            "only some terms of this loss count their targets, or they count different ones, so micro steps and ranks "
            "cannot be weighted by one count; " REMEDY);
    REQUIRE(!s->chain.n_differentiated, INVALID,
            "this loss counts its targets, but the differentiated outputs have no known count; " REMEDY);
    REQUIRE(is_known(&s->chain, mean.value), INVALID,
            "this loss divides by a value that cannot be counted in its inputs before the step; " REMEDY);
    REQUIRE(s->chain.use[mean.value] != RM_DIFFERENTIATED, INVALID,
            "the class weights of this loss are trained, but their sum over micro steps and ranks has no "
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
    REQUIRE(!parts || mean.value, INVALID,
            "{loss_mean} is \"parts\", which has no effect, because all targets of this loss count, so equal parts have "
            "equal weights; leave it out");
    s->mean_of_parts = parts;
    s->weighs = mean.value && !parts && parts_of(s) > 1;
    return s->weighs ? check_weighing(s, mean) : REMAT_OK;
}

double rm_session_loss_share(const remat_session *s) {
    double shards = (double)s->micro_steps * (s->deterministic_world ? s->ranks.size : 1);
    return s->ranks.weight / shards;
}

/* The d of a part. */
static double divisor_of(double count) { return count != 0 ? count : 1; }

remat_status rm_session_count(remat_session *s) {
    if (!s->counts) return REMAT_OK;
    char *at = s->runner.resident + s->chain.at.value[s->counts].offset;
    s->api->copy_out(s->runner.queue, &s->count, at, sizeof s->count);
    if (!s->weighs || !s->runner.training) return REMAT_OK;
    TRY(s->api->synchronize(s->runner.queue)); /* cheap: the queue holds only the tables */
    s->divisor = (float)divisor_of(s->count);
    if (s->count == 0) s->api->copy_in(s->runner.queue, at, &s->divisor, sizeof s->divisor);
    return REMAT_OK;
}

/* The w of a part in the mean over n parts with a total count of `total`. If none counts, the weight and the loss are
 * 0. */
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
        if (s->n_made && s->correction != 1) rm_session_scale_gradients(s, s->correction);
        s->correction = 1;
    }
    s->share = (float)(weight / (s->micro_steps * (s->deterministic_world ? (double)s->ranks.size : 1)));
    s->api->copy_in(s->runner.queue, s->runner.resident + at->one_offset, &s->share, sizeof s->share);
    return REMAT_OK;
}
