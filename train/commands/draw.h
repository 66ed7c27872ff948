/* draw.h: samples one class from a model's logits: temperature, then top-k, then top-p, as in Hugging Face's generate(). */
#ifndef RM_DRAW_H
#define RM_DRAW_H

#include "engine/status.h"

typedef struct {
    double temperature; /* divides the logits; 0: the likeliest class, regardless of the rest */
    int top_k;          /* only the k likeliest, and ties with the k-th; 0: all               */
    double top_p;       /* of these, the fewest with a total probability >= p; 1: all         */
} rm_draw_rule;

/* Workspace. */
typedef struct {
    int n;
    double *weight;            /* of each class */
    struct rm_draw_item *item; /* the classes, the likeliest first */
} rm_draw_room;

remat_status rm_draw_room_create(int n, rm_draw_room *out); /* n >= 1; free even on errors */
void rm_draw_room_free(rm_draw_room *room);

/* Returns one of room->n classes; `uniform` in [0,1) chooses among those that remain. */
int rm_draw(const float *logit, const rm_draw_rule *rule, double uniform, rm_draw_room *room);

#endif
