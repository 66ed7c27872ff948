/* op_check.h: the promises of remat_op.h, a function for each. It runs on one sample, and returns NULL or what is wrong,
 * in a text that is valid until this thread's next complaint. op_check.c runs all; none knows particular ops. */
#ifndef RM_OP_CHECK_H
#define RM_OP_CHECK_H

#include "ops/check/op_run.h"

/* One sample of one op, and the state shared by its checks. */
typedef struct {
    const remat_op *op, *op_f64;
    int sample;
    bool with_states;
    bool again; /* only the kernels in float are checked: see rm_op_check_again */
    uint32_t needed; /* bits of x[i], RM_OP_OUT, RM_OP_STATE: declared saves that changed a gradient */
    remat_op_report *report;
} rm_op_subject;

/* ---- declared.c ------------------------------------------------------------------------------------------------ */

const char *rm_op_check_shapes(rm_op_subject *s);      /* they scale with the timesteps */
const char *rm_op_check_refusals(rm_op_subject *s);    /* infer refuses invalid inputs, and names the op */
const char *rm_op_check_costs(rm_op_subject *s);       /* they are plausible */
const char *rm_op_check_denominator(rm_op_subject *s); /* y is a sum divided by it */
const char *rm_op_check_undeclared(rm_op_subject *s);  /* backward reads only tensors that `saves` declares */
const char *rm_op_note_needed(rm_op_subject *s);       /* notes in `needed` which of them it reads */
const char *rm_op_check_needed(const remat_op *op, uint32_t needed); /* after all samples: it reads every one */
const char *rm_op_check_lean(rm_op_subject *s); /* what is not saved is recomputed bit-identically */

/* ---- calls.c --------------------------------------------------------------------------------------------------- */

const char *rm_op_check_written(rm_op_subject *s);  /* outputs are written in full, whatever the buffers held */
const char *rm_op_check_repeats(rm_op_subject *s);  /* the same call gives the same bits, wherever its buffers lie */
const char *rm_op_note_threads(rm_op_subject *s);   /* reports whether two threads give the bits of one */
const char *rm_op_check_unwanted(rm_op_subject *s); /* a gradient that is not wanted does not change the others */
const char *rm_op_check_adds(rm_op_subject *s);     /* gradients of weights are accumulated */
const char *rm_op_check_no_aux(rm_op_subject *s);   /* a forward-only pass gives the same bits */

/* ---- values.c -------------------------------------------------------------------------------------------------- */

const char *rm_op_check_kernels(rm_op_subject *s);   /* in float, in any tiles, they agree with the definition */
const char *rm_op_check_gradients(rm_op_subject *s); /* they are derivatives */

/* remat_op_check of the kernels in float alone, for further kernels of an op that has been checked. The definition, the
 * kernels in double and the derivatives, which take most of its time, are known to be right. */
remat_status rm_op_check_again(const remat_op *op, const remat_op *op_f64, remat_op_report *report);

/* ---- For these files ------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) const char *rm_op_complain(const char *format, ...);

rm_op_setup rm_op_setup_f32(const rm_op_subject *s);
rm_op_setup rm_op_setup_f64(const rm_op_subject *s); /* the definition in double */

/* The outputs as a list of names and arrays. */
typedef struct {
    const char *name;
    rm_op_array *array;
} rm_op_named;
enum { RM_OP_OUTPUTS = 1 + REMAT_MAX_STATES + 2 * REMAT_MAX_INPUTS + REMAT_MAX_STATES };
void rm_op_list_outputs(rm_op_outputs *out, rm_op_named list[RM_OP_OUTPUTS]);

/* The name of the first output whose bits differ, or NULL. Outputs that only one of them has are skipped. */
const char *rm_op_different_bits(rm_op_outputs *a, rm_op_outputs *b);

double rm_op_largest(const rm_op_array *a); /* the largest |a| */
double rm_op_distance(const rm_op_array *a,
                      const rm_op_array *b); /* the largest |a - b|; NaN if either side has a NaN */

#endif
