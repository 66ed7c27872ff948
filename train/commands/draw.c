/* draw.c: see draw.h. */
#include "train/commands/draw.h"

#include <math.h>

/* Of classes that are equally likely, the first comes first. */
static void sort_by_weight(const double *weight, int n, int *class) {
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && weight[class[at - 1]] < weight[i]; at--) class[at] = class[at - 1];
        class[at] = i;
    }
}

/* How many of the sorted classes are kept. */
static int count_top_k(const double *weight, const int *class, int n, int k) {
    int kept = k && k < n ? k : n;
    while (kept < n && weight[class[kept]] == weight[class[kept - 1]]) kept++;
    return kept;
}

static int count_top_p(const double *weight, const int *class, int n, double p) {
    double all = 0, before = weight[class[0]];
    int kept = 1;
    for (int i = 0; i < n; i++) all += weight[class[i]];
    while (kept < n && before < p * all) before += weight[class[kept++]];
    return kept;
}

/* The weight of what is not kept becomes 0. */
static void cut(double *weight, int n, const rm_draw_rule *rule) {
    int class[RM_DRAW_MOST];
    sort_by_weight(weight, n, class);
    int kept = count_top_k(weight, class, n, rule->top_k);
    if (rule->top_p < 1) kept = count_top_p(weight, class, kept, rule->top_p);
    for (int i = kept; i < n; i++) weight[class[i]] = 0;
}

int rm_draw(const float *logit, int n, const rm_draw_rule *rule, double uniform) {
    double weight[RM_DRAW_MOST], left = 0;
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logit[i] > logit[best]) best = i;
    if (rule->temperature == 0) return best;
    for (int i = 0; i < n; i++) weight[i] = exp(((double)logit[i] - logit[best]) / rule->temperature);
    cut(weight, n, rule);
    for (int i = 0; i < n; i++) left += weight[i];
    left *= uniform;
    for (int i = 0; i < n; i++)
        if ((left -= weight[i]) < 0) return i;
    return best; /* rounding, or logits that are not numbers */
}
