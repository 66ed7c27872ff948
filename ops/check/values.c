/* values.c: what an op computes is right: kernels against the definition, gradients against differences. See op_check.h. */
#include "ops/check/op_check.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "memory/host.h"

/* ---- Promise: kernels in float, with any tile size, agree with the definition in double --------------------- */

/* The effect of float rounding on each output is measured: how far the definition in double moves if every real input
 * moves by one ulp, up or down at random, over some trials. A float kernel makes about one
 * such error per operation, in some order, so a multiple is allowed. */
enum { NUDGES = 4, ALLOWED_NUDGES = 8, ALLOWED_ULPS = 4 };

static void nudge(rm_op_array *a, uint32_t *seed) {
    for (int64_t i = 0; i < a->count; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        a->value[i] *= 1 + (*seed >> 31 ? FLT_EPSILON : -FLT_EPSILON);
    }
}

/* bound[i], for output i: a multiple of the largest movement, and at least a few ulp of its largest element. */
static const char *float_bounds(const rm_op_subject *s, rm_op_outputs *reference, double *bound, bool evaluate) {
    rm_op_named ref[RM_OP_OUTPUTS], moved[RM_OP_OUTPUTS];
    rm_op_setup setup = rm_op_setup_f64(s);
    setup.evaluate = evaluate;
    rm_op_list_outputs(reference, ref);
    for (int i = 0; i < RM_OP_OUTPUTS; i++) bound[i] = ALLOWED_ULPS * FLT_EPSILON * rm_op_largest(ref[i].array);
    const char *wrong = NULL;
    for (uint32_t trial = 1; trial <= NUDGES && !wrong; trial++) {
        rm_op_inputs in;
        rm_op_outputs out;
        uint32_t seed = trial * 7919;
        rm_op_inputs_make(&setup, 5, &in);
        for (int i = 0; i < setup.op->n_in; i++)
            if (setup.op->samples[s->sample].x[i].dtype != REMAT_I32) nudge(&in.x[i], &seed);
        for (int j = 0; j < REMAT_MAX_STATES; j++) nudge(&in.state[j], &seed), nudge(&in.dstate[j], &seed);
        nudge(&in.dy, &seed);
        wrong = rm_op_run(&setup, &in, &out);
        rm_op_list_outputs(&out, moved);
        for (int i = 0; i < RM_OP_OUTPUTS && !wrong; i++)
            if (ref[i].array->count)
                bound[i] = fmax(bound[i], ALLOWED_NUDGES * rm_op_distance(ref[i].array, moved[i].array));
        rm_op_outputs_free(&out);
        rm_op_inputs_free(&in);
    }
    return wrong;
}

static const char *compare_within(rm_op_outputs *got, rm_op_outputs *reference, const double *bound, double *worst) {
    rm_op_named a[RM_OP_OUTPUTS], b[RM_OP_OUTPUTS];
    rm_op_list_outputs(got, a), rm_op_list_outputs(reference, b);
    for (int i = 0; i < RM_OP_OUTPUTS; i++) {
        if (a[i].array->count != b[i].array->count) return rm_op_complain("%s exists on one side only", a[i].name);
        double error = rm_op_distance(a[i].array, b[i].array);
        if (!(error <= bound[i]))
            return rm_op_complain("%s is off by %.3g; %.3g is allowed, and its largest element is %.3g", a[i].name,
                                  error, bound[i], rm_op_largest(b[i].array));
        if (bound[i] > 0 && error / bound[i] > *worst) *worst = error / bound[i];
    }
    return NULL;
}

/* Runs `setup` with each tile size and compares the results with the reference. */
static const char *compare_tiles(rm_op_setup setup, const rm_op_inputs *in, rm_op_outputs *reference,
                                 const double *bound, double *worst, const char *what) {
    static const int64_t tau[] = {0, 1, 2, 3};
    int64_t steps = rm_op_steps(&setup);
    for (size_t i = 0; i < sizeof tau / sizeof *tau; i++) {
        if (tau[i] >= rm_op_tiles(&setup)) continue;
        rm_op_outputs out;
        setup.tau = tau[i];
        const char *wrong = rm_op_run(&setup, in, &out);
        wrong = wrong ? rm_op_complain("%s", wrong) : compare_within(&out, reference, bound, worst);
        rm_op_outputs_free(&out);
        if (wrong)
            return rm_op_complain("%s, tile %lld of %lld timesteps: %s", what, (long long)tau[i], (long long)steps,
                                  wrong);
    }
    return NULL;
}

static const char *check_kernels_in(rm_op_subject *s, bool evaluate) {
    rm_op_setup f64 = rm_op_setup_f64(s), f32 = rm_op_setup_f32(s);
    f64.evaluate = f32.evaluate = evaluate;
    rm_op_inputs in;
    rm_op_outputs reference;
    double bound[RM_OP_OUTPUTS], tight[RM_OP_OUTPUTS] = {0}, unused = 0;
    rm_op_inputs_make(&f64, 5, &in);
    const char *wrong = rm_op_run(&f64, &in, &reference);
    if (!wrong) wrong = float_bounds(s, &reference, bound, evaluate);
    for (int i = 0; i < RM_OP_OUTPUTS && !wrong; i++) tight[i] = bound[i] * (DBL_EPSILON / FLT_EPSILON);
    if (wrong) wrong = rm_op_complain("%s", wrong);
    bool fresh = !s->again, defined = fresh && s->op->define_forward; /* else the kernels are the definition */
    if (!wrong && defined) wrong = compare_tiles(f64, &in, &reference, tight, &unused, "the definition in double");
    f64.define = false;
    if (!wrong && fresh) wrong = compare_tiles(f64, &in, &reference, tight, &unused, "the kernel in double");
    f32.define = true;
    if (!wrong && defined)
        wrong = compare_tiles(f32, &in, &reference, bound, &s->report->float_error, "the definition in float");
    f32.define = false;
    if (!wrong) wrong = compare_tiles(f32, &in, &reference, bound, &s->report->float_error, "the kernel in float");
    f32.threads = 2;
    if (!wrong)
        wrong = compare_tiles(f32, &in, &reference, bound, &s->report->float_error, "the kernel on two threads");
    rm_op_outputs_free(&reference);
    rm_op_inputs_free(&in);
    return wrong;
}

const char *rm_op_check_kernels(rm_op_subject *s) {
    const char *wrong = check_kernels_in(s, false);
    if (wrong) return wrong;
    wrong = check_kernels_in(s, true);
    return wrong ? rm_op_complain("in evaluation: %s", wrong) : NULL;
}

/* ---- Promise: the gradient is the derivative ------------------------------------------------------------ */

/* Central differences of rm_op_objective in double. With step h the error is about h^2/6 f''' + eps |f| / h; h = 1e-5
 * balances the two near 1e-10 for functions of order 1. The objectives here sum up to some thousand terms of order
 * 1. */
static const double STEP = 1e-5, ALLOWED_GRADIENT = 2e-7;
enum { COORDINATES = 40 /* tried per input, spread over it */ };

static double objective_at(const rm_op_setup *setup, const rm_op_inputs *in) {
    rm_op_outputs out;
    rm_op_setup forward = *setup;
    forward.forward_only = true;
    const char *wrong = rm_op_run(&forward, in, &out);
    double value = wrong ? NAN : rm_op_objective(in, &out);
    rm_op_outputs_free(&out);
    return value;
}

static const char *check_slopes(const rm_op_setup *setup, rm_op_inputs *in, rm_op_array *at,
                                const rm_op_array *gradient, const char *name, double *worst) {
    double scale = 1 + rm_op_largest(gradient);
    for (int64_t tried = 0; tried < COORDINATES && tried < at->count; tried++) {
        int64_t i = at->count <= COORDINATES ? tried : tried * (at->count - 1) / (COORDINATES - 1);
        double kept = at->value[i];
        at->value[i] = kept + STEP;
        double above = objective_at(setup, in);
        at->value[i] = kept - STEP;
        double slope = (above - objective_at(setup, in)) / (2 * STEP);
        at->value[i] = kept;
        double error = fabs(slope - gradient->value[i]) / scale / ALLOWED_GRADIENT;
        if (!(error <= 1))
            return rm_op_complain("the gradient of %s[%lld] is %.9g, but the objective changes by %.9g", name,
                                  (long long)i, gradient->value[i], slope);
        if (error > *worst) *worst = error;
    }
    return NULL;
}

/* All coordinates at once, in a direction of random signs: covers the coordinates that check_slopes skips. */
static const char *check_direction(const rm_op_setup *setup, rm_op_inputs *in, rm_op_array *at,
                                   const rm_op_array *gradient, const char *name) {
    double expected = 0, size = 0, side[2];
    double *kept = rm_malloc((size_t)at->count * sizeof *kept);
    if (!kept) {
        rm_op_starved = true;
        return "out of memory for a direction";
    }
    memcpy(kept, at->value, (size_t)at->count * sizeof *kept);
    for (int k = 0; k < 2; k++) {
        uint32_t seed = 12345;
        expected = size = 0;
        for (int64_t i = 0; i < at->count; i++) {
            seed = seed * 1664525u + 1013904223u;
            double direction = seed >> 31 ? 1 : -1;
            at->value[i] = kept[i] + (k ? -STEP : STEP) * direction;
            expected += gradient->value[i] * direction;
            size += fabs(gradient->value[i]);
        }
        side[k] = objective_at(setup, in);
    }
    memcpy(at->value, kept, (size_t)at->count * sizeof *kept);
    rm_free(kept);
    double slope = (side[0] - side[1]) / (2 * STEP);
    if (!(fabs(slope - expected) <= ALLOWED_GRADIENT * (1 + size)))
        return rm_op_complain("along a random direction of %s the gradient is %.9g, but the objective changes by %.9g",
                              name, expected, slope);
    return NULL;
}

static const char *check_gradients_of(rm_op_setup setup, rm_op_inputs *in, rm_op_outputs *out, double *worst) {
    const char *wrong = rm_op_run(&setup, in, out);
    if (wrong) return rm_op_complain("%s", wrong);
    for (int i = 0; i < setup.op->n_in && !wrong; i++) {
        if (!out->dx[i].count) continue;
        wrong = check_slopes(&setup, in, &in->x[i], &out->dx[i], rm_op_x_name[i], worst);
        if (!wrong) wrong = check_direction(&setup, in, &in->x[i], &out->dx[i], rm_op_x_name[i]);
    }
    for (int j = 0; j < setup.op->n_state && !wrong; j++)
        if (out->dstate[j].count)
            wrong = check_slopes(&setup, in, &in->state[j], &out->dstate[j], rm_op_state_in_name[j], worst);
    return wrong;
}

const char *rm_op_check_gradients(rm_op_subject *s) {
    rm_op_setup setup = rm_op_setup_f64(s);
    rm_op_inputs in;
    rm_op_outputs out;
    rm_op_inputs_make(&setup, 6, &in);
    if (!s->with_states) /* so that rm_op_objective counts only gradients that backward received */
        for (int j = 0; j < REMAT_MAX_STATES; j++) in.dstate[j].count = 0;
    const char *wrong = check_gradients_of(setup, &in, &out, &s->report->gradient_error);
    rm_op_outputs_free(&out);
    rm_op_inputs_free(&in);
    return wrong;
}
