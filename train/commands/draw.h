/* draw.h: one class drawn from a model's logits: temperature, then top-k, then top-p, as Hugging Face's generate() has them. */
#ifndef RM_DRAW_H
#define RM_DRAW_H

#include "engine/status.h"

typedef struct {
    double temperature; /* logits are divided by it; 0: the likeliest class, whatever the rest says         */
    int top_k;          /* only the k likeliest, and those as likely as the k-th; 0: all                    */
    double top_p;       /* of these, only the fewest whose probabilities add up to p or more; 1: all        */
} rm_draw_rule;

/* What drawing works in, for so many classes. */
typedef struct {
    int n;
    double *weight;            /* of each class */
    struct rm_draw_item *item; /* the classes, the likeliest first */
} rm_draw_room;

remat_status rm_draw_room_create(int n, rm_draw_room *out); /* n >= 1; free in any case */
void rm_draw_room_free(rm_draw_room *room);

/* Of room->n classes; `uniform` in [0,1) decides among those that are left. */
int rm_draw(const float *logit, const rm_draw_rule *rule, double uniform, rm_draw_room *room);

#endif
