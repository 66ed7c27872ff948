/* draw.h: one class drawn from a model's logits: temperature, then top-k, then top-p, as Hugging Face's generate() has them. */
#ifndef RM_DRAW_H
#define RM_DRAW_H

typedef struct {
    double temperature; /* logits are divided by it; 0: the likeliest class, whatever the rest says         */
    int top_k;          /* only the k likeliest, and those as likely as the k-th; 0: all                    */
    double top_p;       /* of these, only the fewest whose probabilities add up to p or more; 1: all        */
} rm_draw_rule;

enum { RM_DRAW_MOST = 256 };

/* 1 <= n <= RM_DRAW_MOST classes; `uniform` in [0,1) decides among those that are left. */
int rm_draw(const float *logit, int n, const rm_draw_rule *rule, double uniform);

#endif
