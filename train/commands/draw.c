/* draw.c: see draw.h. */
#include "train/commands/draw.h"

#include "memory/host.h"

#include <math.h>
#include <stdlib.h>

typedef struct rm_draw_item {
    double weight;
    int class;
} item;

remat_status rm_draw_room_create(int n, rm_draw_room *out) {
    out->n = n;
    out->weight = rm_calloc((size_t)n, sizeof *out->weight);
    out->item = rm_calloc((size_t)n, sizeof *out->item);
    REQUIRE(out->weight && out->item, MEMORY, "no memory to draw from %d classes", n);
    return REMAT_OK;
}

void rm_draw_room_free(rm_draw_room *room) {
    rm_free(room->weight);
    rm_free(room->item);
}

/* Among equally likely classes, the first comes first. */
static int likeliest_first(const void *a, const void *b) {
    const item *x = a, *y = b;
    return x->weight != y->weight ? (x->weight < y->weight) - (x->weight > y->weight) : x->class - y->class;
}

/* How many of the sorted classes are kept. */
static int count_top_k(const item *sorted, int n, int k) {
    int kept = k && k < n ? k : n;
    while (kept < n && sorted[kept].weight == sorted[kept - 1].weight) kept++;
    return kept;
}

static int count_top_p(const item *sorted, int n, double p) {
    double all = 0, before = sorted[0].weight;
    int kept = 1;
    for (int i = 0; i < n; i++) all += sorted[i].weight;
    while (kept < n && before < p * all) before += sorted[kept++].weight;
    return kept;
}

/* Sets the weights of other classes to 0. */
static void cut(rm_draw_room *room, const rm_draw_rule *rule) {
    int n = room->n;
    for (int i = 0; i < n; i++) room->item[i] = (item){room->weight[i], i};
    qsort(room->item, (size_t)n, sizeof *room->item, likeliest_first);
    int kept = count_top_k(room->item, n, rule->top_k);
    if (rule->top_p < 1) kept = count_top_p(room->item, kept, rule->top_p);
    for (int i = kept; i < n; i++) room->weight[room->item[i].class] = 0;
}

int rm_draw(const float *logit, const rm_draw_rule *rule, double uniform, rm_draw_room *room) {
    double *weight = room->weight, left = 0;
    int best = 0, n = room->n;
    for (int i = 1; i < n; i++)
        if (logit[i] > logit[best]) best = i;
    if (rule->temperature == 0) return best;
    for (int i = 0; i < n; i++) {
        weight[i] = exp(((double)logit[i] - logit[best]) / rule->temperature);
        if (isnan(weight[i])) weight[i] = 0; /* its logit is NaN */
    }
    if (rule->top_k || rule->top_p < 1) cut(room, rule);
    for (int i = 0; i < n; i++) left += weight[i];
    left *= uniform;
    for (int i = 0; i < n; i++)
        if ((left -= weight[i]) < 0) return i;
    return best; /* rounding, or NaN logits */
}
