/* dice.h: shapes and formulas of the Dice loss, for dice.c and dice.cu. */
#ifndef RM_DICE_H
#define RM_DICE_H

#include "ops/loss/class_weight.h"
#include "ops/op.h"

typedef struct {
    int64_t images, pixels; /* of this tile */
    int64_t sets;           /* Dice coefficients per image: one for each class, or 1 if joint */
    rm_counted counted;
} rm_dice_shape;

static inline rm_dice_shape rm_dice_shape_of(const remat_desc *logits, const void *attr) {
    const rm_dice_attr none = {0, -1}, *a = attr ? (const rm_dice_attr *)attr : &none;
    int64_t classes = logits->dim[logits->rank - 1], pixels = logits->dim[logits->rank - 2];
    rm_dice_shape s = {
        remat_desc_count(logits) / (classes * pixels), pixels, a->joint ? 1 : classes, {classes, a->ignored, true}};
    return s;
}

RM_HD int64_t rm_dice_set(const rm_dice_shape *s, int64_t k) { return s->sets == 1 ? 0 : k; }

/* both: sum of p q; either: sum of p + sum of q. */
typedef struct {
    double both, either;
} rm_overlap;

#define RM_DICE_EPSILON 1e-6

RM_HD void rm_overlap_add(rm_overlap *sum, double p, bool is_target) {
    sum->both += is_target ? p : 0;
    sum->either += is_target ? p + 1 : p;
}
RM_HD void rm_overlap_join(rm_overlap *sum, rm_overlap more) {
    sum->both += more.both;
    sum->either += more.either;
}
RM_HD double rm_overlap_dice(rm_overlap o) { return (2 * o.both + RM_DICE_EPSILON) / (o.either + RM_DICE_EPSILON); }
/* The derivative of Dice by a p: of_all, and of_target in addition for the target's class. */
typedef struct {
    double of_target, of_all;
} rm_dice_slope;
RM_HD rm_dice_slope rm_dice_slope_of(rm_overlap o) {
    double either = o.either + RM_DICE_EPSILON;
    rm_dice_slope s = {2 / either, -rm_overlap_dice(o) / either};
    return s;
}

#endif
