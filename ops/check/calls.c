/* calls.c: a call depends on its arguments alone: it writes all of its outputs, repeats its bits, and needs no gradient
 * that is not wanted. See op_check.h. */
#include "ops/check/op_check.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- Promise: outputs are written in full, whatever the buffers held before ------------------------- */

/* Outputs start as NaN; no input is NaN. */
static const char *check_written_of(const rm_op_setup *setup, const rm_op_inputs *in) {
    rm_op_outputs out;
    rm_op_named list[RM_OP_OUTPUTS];
    const char *wrong = rm_op_run(setup, in, &out);
    if (wrong) wrong = rm_op_complain("%s", wrong);
    rm_op_list_outputs(&out, list);
    for (int i = 0; i < RM_OP_OUTPUTS && !wrong; i++)
        for (int64_t k = 0; k < list[i].array->count && !wrong; k++)
            if (isnan(list[i].array->value[k]))
                wrong = rm_op_complain("%s[%lld] is NaN: it was not written, or was computed from uninitialised memory",
                                       list[i].name, (long long)k);
    rm_op_outputs_free(&out);
    return wrong;
}

const char *rm_op_check_written(rm_op_subject *s) {
    rm_op_setup f32 = rm_op_setup_f32(s), f64 = rm_op_setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&f32, 10, &in);
    const char *wrong = check_written_of(&f32, &in);
    if (!wrong && !s->again) wrong = check_written_of(&f64, &in);
    rm_op_inputs_free(&in);
    return wrong;
}

/* ---- Promise: the same call gives the same bits, wherever its buffers lie --------------------------------- */

static const char *check_repeats_of(rm_op_setup setup, const rm_op_inputs *in) {
    rm_op_outputs first;
    const char *wrong = rm_op_run(&setup, in, &first), *name = NULL;
    for (setup.variant = 1; setup.variant < 6 && !wrong && !name; setup.variant++) {
        rm_op_outputs again;
        wrong = rm_op_run(&setup, in, &again);
        if (!wrong) name = rm_op_different_bits(&first, &again);
        rm_op_outputs_free(&again);
    }
    rm_op_outputs_free(&first);
    if (wrong) return rm_op_complain("%s", wrong);
    return name ? rm_op_complain("%s has different bits when the same call is repeated with %d thread%s", name,
                                 setup.threads, setup.threads > 1 ? "s" : "")
                : NULL;
}

const char *rm_op_check_repeats(rm_op_subject *s) {
    rm_op_setup setup = rm_op_setup_f32(s);
    rm_op_inputs in;
    rm_op_inputs_make(&setup, 3, &in);
    const char *wrong = check_repeats_of(setup, &in);
    setup.threads = 2;
    if (!wrong) wrong = check_repeats_of(setup, &in);
    setup.define = true;
    if (!wrong && !s->again) wrong = check_repeats_of(setup, &in);
    rm_op_inputs_free(&in);
    return wrong;
}

/* Compares one thread with two: reported, not required. */
const char *rm_op_note_threads(rm_op_subject *s) {
    rm_op_setup setup = rm_op_setup_f32(s);
    rm_op_inputs in;
    rm_op_outputs one, two;
    rm_op_inputs_make(&setup, 4, &in);
    const char *wrong = rm_op_run(&setup, &in, &one);
    setup.threads = 2;
    const char *wrong_two = rm_op_run(&setup, &in, &two);
    if (!wrong && !wrong_two && rm_op_different_bits(&one, &two)) s->report->same_across_threads = false;
    rm_op_outputs_free(&one), rm_op_outputs_free(&two);
    rm_op_inputs_free(&in);
    return wrong || wrong_two ? rm_op_complain("%s", wrong ? wrong : wrong_two) : NULL;
}

/* ---- Promises about the arguments of a call -------------------------------------------------------------- */

/* A NULL dx or dstate_in does not change the other gradients. */
const char *rm_op_check_unwanted(rm_op_subject *s) {
    rm_op_setup setup = rm_op_setup_f32(s);
    rm_op_inputs in;
    rm_op_outputs all;
    rm_op_inputs_make(&setup, 7, &in);
    const char *wrong = rm_op_run(&setup, &in, &all), *name = NULL;
    setup.trick = RM_OP_UNWANTED;
    for (setup.which = 0; setup.which < REMAT_MAX_INPUTS + s->op->n_state && !wrong && !name; setup.which++) {
        rm_op_outputs some;
        if (setup.which < REMAT_MAX_INPUTS && !all.dx[setup.which].count) continue;
        wrong = rm_op_run(&setup, &in, &some);
        if (!wrong) name = rm_op_different_bits(&all, &some);
        rm_op_outputs_free(&some);
    }
    rm_op_outputs_free(&all);
    rm_op_inputs_free(&in);
    if (wrong) return rm_op_complain("when a gradient is not wanted: %s", wrong);
    return name ? rm_op_complain("%s changes when another gradient is not wanted", name) : NULL;
}

/* Gradients of weights are accumulated: if they start at 3 instead of 0, they end 3 higher. */
static const char *check_adds_of(const rm_op_setup *setup, const rm_op_inputs *in, double epsilon) {
    rm_op_outputs from_0, from_3;
    rm_op_setup onto = *setup;
    onto.trick = RM_OP_ONTO;
    const char *wrong = rm_op_run(setup, in, &from_0), *wrong_onto = rm_op_run(&onto, in, &from_3);
    for (int i = 0; i < REMAT_MAX_INPUTS && !wrong && !wrong_onto; i++) {
        if (!(setup->op->shared >> i & 1)) continue;
        double bound = 100 * epsilon * (3 + rm_op_largest(&from_0.dx[i]));
        for (int64_t k = 0; k < from_0.dx[i].count && !wrong; k++)
            if (!(fabs(from_3.dx[i].value[k] - from_0.dx[i].value[k] - 3) <= bound))
                wrong = rm_op_complain(
                    "the gradient of weight x[%d] is not accumulated: starting from 0 it ends at %g, from 3 "
                    "at %g",
                    i, from_0.dx[i].value[k], from_3.dx[i].value[k]);
    }
    rm_op_outputs_free(&from_0), rm_op_outputs_free(&from_3);
    return wrong || wrong_onto ? rm_op_complain("%s", wrong ? wrong : wrong_onto) : NULL;
}

const char *rm_op_check_adds(rm_op_subject *s) {
    rm_op_setup f32 = rm_op_setup_f32(s), f64 = rm_op_setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&f32, 8, &in);
    const char *wrong = check_adds_of(&f32, &in, FLT_EPSILON);
    if (!wrong && !s->again) wrong = check_adds_of(&f64, &in, DBL_EPSILON);
    rm_op_inputs_free(&in);
    return wrong;
}

/* A forward-only pass, with aux NULL, gives the same bits. */
const char *rm_op_check_no_aux(rm_op_subject *s) {
    rm_op_setup setup = rm_op_setup_f32(s);
    rm_op_inputs in;
    rm_op_outputs with, without;
    rm_op_inputs_make(&setup, 9, &in);
    const char *wrong = rm_op_run(&setup, &in, &with);
    setup.no_aux = true;
    const char *wrong_without = rm_op_run(&setup, &in, &without), *name = NULL;
    if (!wrong && !wrong_without) name = rm_op_different_bits(&with, &without);
    rm_op_outputs_free(&with), rm_op_outputs_free(&without);
    rm_op_inputs_free(&in);
    if (wrong || wrong_without) return rm_op_complain("%s", wrong ? wrong : wrong_without);
    return name ? rm_op_complain("%s has different bits in a forward-only pass", name) : NULL;
}
