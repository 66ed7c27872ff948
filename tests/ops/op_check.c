/* op_check.c: one function per promise of op.h; op_check runs them all on every sample. */
#include "tests/ops/op_check.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/op_run.h"

static _Thread_local char sentence[1024];

__attribute__((format(printf, 1, 2))) static const char *complain(const char *format, ...) {
    char text[sizeof sentence]; /* an argument may be the old sentence */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(sentence, text, sizeof sentence);
    return sentence;
}

/* One sample of one op, and what the checks of it share. */
typedef struct {
    const rm_op *op, *op_f64;
    int sample;
    bool with_states;
    uint32_t needed; /* bit OP_INPUT.. OP_STATE: the declared save was seen to matter */
    op_report *report;
} subject;

static op_setup setup_f32(const subject *s) {
    return (op_setup){.op = s->op, .sample = s->sample, .with_states = s->with_states, .threads = 1};
}
static op_setup setup_f64(const subject *s) {
    op_setup setup = setup_f32(s);
    setup.op = s->op_f64;
    setup.define = true;
    return setup;
}

/* ---- Comparing -------------------------------------------------------------------------------------- */

/* The outputs as a list, with names. */
typedef struct {
    const char *name;
    op_array *array;
} named;
enum { OUTPUTS = 1 + RM_MAX_STATE + RM_MAX_IN + RM_MAX_STATE };

static void list_outputs(op_outputs *out, named *list) {
    static const char *const name[OUTPUTS] = {"y",     "state_out[0]", "state_out[1]", "dx[0]",        "dx[1]",
                                              "dx[2]", "dx[3]",        "dx[4]",        "dstate_in[0]", "dstate_in[1]"};
    op_array *array[OUTPUTS] = {&out->y,     &out->state[0], &out->state[1], &out->dx[0],     &out->dx[1],
                                &out->dx[2], &out->dx[3],    &out->dx[4],    &out->dstate[0], &out->dstate[1]};
    for (int i = 0; i < OUTPUTS; i++) list[i] = (named){name[i], array[i]};
}

/* The name of the first output whose bits differ, or NULL. Outputs that only one of them has are passed over. */
static const char *different_bits(op_outputs *a, op_outputs *b) {
    named la[OUTPUTS], lb[OUTPUTS];
    list_outputs(a, la), list_outputs(b, lb);
    for (int i = 0; i < OUTPUTS; i++) {
        if (!la[i].array->count || !lb[i].array->count) continue;
        if (memcmp(la[i].array->value, lb[i].array->value, (size_t)la[i].array->count * sizeof(double)))
            return la[i].name;
    }
    return NULL;
}

static double largest(const op_array *a) {
    double most = 0;
    for (int64_t i = 0; i < a->count; i++) most = fabs(a->value[i]) > most ? fabs(a->value[i]) : most;
    return most;
}

/* The largest |a - b|; NaN when there is one on either side. */
static double distance(const op_array *a, const op_array *b) {
    double most = 0;
    for (int64_t i = 0; i < a->count; i++) {
        double d = fabs(a->value[i] - b->value[i]);
        if (!(d <= most)) most = d;
        if (isnan(d)) return NAN;
    }
    return most;
}

/* ---- Promise: infer refuses what cannot work, in a sentence that names the op ------------------------- */

static const char *check_refusals(subject *s) {
    const rm_sample *sample = &s->op->samples[s->sample];
    rm_desc x[RM_MAX_IN], y, state[RM_MAX_STATE];
    memcpy(x, sample->x, sizeof x);
    if (s->op->infer(x, sample->attr, &y, state)) return complain("infer refuses it: %s", remat_last_error());
    x[0].dtype = x[0].dtype == REMAT_I32 ? REMAT_F32 : REMAT_I32;
    if (s->op->infer(x, sample->attr, &y, state) != REMAT_INVALID)
        return complain("infer accepts x[0] of a wrong type");
    if (!strstr(remat_last_error(), s->op->name))
        return complain("infer's refusal does not name the op: %s", remat_last_error());
    for (int i = 0; i < s->op->n_in; i++)
        if (sample->x[i].rank >= 0 && sample->x[i].dtype == REMAT_I32 &&
            (!s->op->bound || s->op->bound(sample->x, sample->attr, i) < 1))
            return complain("x[%d] holds integers, but bound gives no limit for them", i);
    return NULL;
}

/* ---- Promise: costs are plausible ------------------------------------------------------------------- */

static rm_cost cost_of(const subject *s, int64_t times, rm_pass pass) {
    const rm_sample *sample = &s->op->samples[s->sample];
    rm_desc x[RM_MAX_IN], y = {0}, state[RM_MAX_STATE];
    memcpy(x, sample->x, sizeof x);
    for (int i = 0; i < s->op->n_in; i++)
        if (x[i].rank >= 0 && !(s->op->weights >> i & 1)) x[i].dim[0] *= times;
    rm_cost cost = {0};
    if (!s->op->infer(x, sample->attr, &y, state)) s->op->cost(x, &y, sample->attr, pass, &cost);
    return cost;
}

/* Ten times the timesteps: ten times the work; the fixed part (reading the weights) may be most of the bytes. */
static const char *check_costs(subject *s) {
    const rm_sample *sample = &s->op->samples[s->sample];
    int last = s->op->on[RM_DEVICE_CPU].rebuild ? RM_REBUILD : RM_BACKWARD;
    for (int pass = RM_FORWARD; pass <= last; pass++) {
        static const char *const pass_name[] = {"forward", "backward", "rebuild"};
        const char *name = pass_name[pass];
        rm_cost one = cost_of(s, 1, (rm_pass)pass), ten = cost_of(s, 10, (rm_pass)pass);
        if (!(one.moved_bytes > 0)) return complain("%s claims to move no bytes", name);
        if (s->op->weights && sample->x[0].dtype != REMAT_I32 && !(one.flops > 0))
            return complain("%s has weights, and claims to compute nothing", name);
        if (sample->sequence && !(ten.flops >= 7 * one.flops && ten.flops <= 13 * one.flops))
            return complain("%s claims %g FLOPs, and %g for ten times the timesteps", name, one.flops, ten.flops);
        if (sample->sequence && !(ten.moved_bytes >= one.moved_bytes && ten.moved_bytes <= 13 * one.moved_bytes))
            return complain("%s claims %g bytes, and %g for ten times the timesteps", name, one.moved_bytes,
                            ten.moved_bytes);
    }
    return NULL;
}

/* ---- Promise: outputs are written in full, whatever was there --------------------------------------- */

/* Outputs start as NaN, and nothing that goes in is NaN. */
static const char *check_written_of(const op_setup *setup, const op_inputs *in) {
    op_outputs out;
    named list[OUTPUTS];
    const char *wrong = op_run(setup, in, &out);
    if (wrong) wrong = complain("%s", wrong);
    list_outputs(&out, list);
    for (int i = 0; i < OUTPUTS && !wrong; i++)
        for (int64_t k = 0; k < list[i].array->count && !wrong; k++)
            if (isnan(list[i].array->value[k]))
                wrong = complain("%s[%lld] is NaN: not written, or made from what is not there", list[i].name,
                                 (long long)k);
    op_outputs_free(&out);
    return wrong;
}

static const char *check_written(subject *s) {
    op_setup f32 = setup_f32(s), f64 = setup_f64(s);
    op_inputs in;
    op_inputs_make(&f32, 10, &in);
    const char *wrong = check_written_of(&f32, &in);
    if (!wrong) wrong = check_written_of(&f64, &in);
    op_inputs_free(&in);
    return wrong;
}

/* ---- Promise: backward reads nothing that `saves` does not declare ------------------------------------- */

static const char *compare_tricked(op_setup setup, const op_inputs *in, op_outputs *plain, op_trick trick) {
    static const char *const how[] = {[OP_UNDECLARED_NAN] = "is NaN",
                                      [OP_UNDECLARED_OTHER] = "has other values",
                                      [OP_UNDECLARED_ABSENT] = "is absent"};
    op_outputs tricked;
    setup.trick = trick;
    const char *wrong = op_run(&setup, in, &tricked), *name = wrong ? NULL : different_bits(plain, &tricked);
    op_outputs_free(&tricked);
    if (wrong) return complain("when what is not declared %s: %s", how[trick], wrong);
    return name ? complain("backward reads what `saves` does not declare: %s changes when that %s", name, how[trick])
                : NULL;
}

/* Absent comes last: by then it is known that nothing undeclared matters, so that NULL is not followed. */
static const char *check_undeclared_of(const op_setup *setup, const op_inputs *in) {
    op_outputs plain;
    const char *wrong = op_run(setup, in, &plain);
    if (wrong) wrong = complain("%s", wrong);
    if (!wrong) wrong = compare_tricked(*setup, in, &plain, OP_UNDECLARED_NAN);
    if (!wrong) wrong = compare_tricked(*setup, in, &plain, OP_UNDECLARED_OTHER);
    if (!wrong) wrong = compare_tricked(*setup, in, &plain, OP_UNDECLARED_ABSENT);
    op_outputs_free(&plain);
    return wrong;
}

static const char *check_undeclared(subject *s) {
    op_setup f32 = setup_f32(s), f64 = setup_f64(s);
    op_inputs in;
    op_inputs_make(&f32, 1, &in);
    const char *wrong = check_undeclared_of(&f32, &in);
    f32.define = true;
    if (!wrong) wrong = check_undeclared_of(&f32, &in);
    if (!wrong) wrong = check_undeclared_of(&f64, &in);
    op_inputs_free(&in);
    return wrong;
}

/* ---- Promise: every declared save is needed ---------------------------------------------------------- */

/* Notes in s->needed which of them change a gradient when they change; op_check concludes after all samples. */
static const char *note_needed_by(subject *s, const op_setup *setup, const op_inputs *in) {
    op_outputs plain;
    const char *wrong = op_run(setup, in, &plain);
    for (int item = 0; item < OP_SAVEABLE && !wrong; item++) {
        op_outputs tricked;
        op_setup other = *setup;
        other.trick = OP_DECLARED_OTHER;
        other.which = item;
        wrong = op_run(&other, in, &tricked);
        if (!wrong && different_bits(&plain, &tricked)) s->needed |= 1u << item;
        op_outputs_free(&tricked);
    }
    op_outputs_free(&plain);
    return wrong ? complain("%s", wrong) : NULL;
}

static const char *note_needed(subject *s) {
    op_setup f32 = setup_f32(s), f64 = setup_f64(s);
    op_inputs in;
    op_inputs_make(&f32, 2, &in);
    const char *wrong = note_needed_by(s, &f32, &in);
    if (!wrong) wrong = note_needed_by(s, &f64, &in);
    op_inputs_free(&in);
    return wrong;
}

static const char *check_needed(const rm_op *op, uint32_t needed) {
    uint32_t declared = op->saves.in | (op->saves.out ? 1u << OP_OUT : 0) | (op->saves.state ? 1u << OP_STATE : 0);
    uint32_t idle = declared & ~needed;
    if (!idle) return NULL;
    int item = __builtin_ctz(idle);
    if (item == OP_OUT) return complain("%s: saves.out is declared, but no gradient depends on y", op->name);
    if (item == OP_STATE) return complain("%s: saves.state is declared, but no gradient depends on it", op->name);
    return complain("%s: saves.in declares x[%d], but no gradient depends on it", op->name, item);
}

/* ---- Promise: the same call gives the same bits, wherever its buffers lie --------------------------------- */

static const char *check_repeats_of(op_setup setup, const op_inputs *in) {
    op_outputs first;
    const char *wrong = op_run(&setup, in, &first), *name = NULL;
    for (setup.variant = 1; setup.variant < 6 && !wrong && !name; setup.variant++) {
        op_outputs again;
        wrong = op_run(&setup, in, &again);
        if (!wrong) name = different_bits(&first, &again);
        op_outputs_free(&again);
    }
    op_outputs_free(&first);
    if (wrong) return complain("%s", wrong);
    return name ? complain("%s has other bits when the same call is made again, with %d thread%s", name, setup.threads,
                           setup.threads > 1 ? "s" : "")
                : NULL;
}

static const char *check_repeats(subject *s) {
    op_setup setup = setup_f32(s);
    op_inputs in;
    op_inputs_make(&setup, 3, &in);
    const char *wrong = check_repeats_of(setup, &in);
    setup.threads = 2;
    if (!wrong) wrong = check_repeats_of(setup, &in);
    setup.define = true;
    if (!wrong) wrong = check_repeats_of(setup, &in);
    op_inputs_free(&in);
    return wrong;
}

/* One thread against two: noted, not demanded. */
static const char *note_threads(subject *s) {
    op_setup setup = setup_f32(s);
    op_inputs in;
    op_outputs one, two;
    op_inputs_make(&setup, 4, &in);
    const char *wrong = op_run(&setup, &in, &one);
    setup.threads = 2;
    const char *wrong_two = op_run(&setup, &in, &two);
    if (!wrong && !wrong_two && different_bits(&one, &two)) s->report->same_across_threads = false;
    op_outputs_free(&one), op_outputs_free(&two);
    op_inputs_free(&in);
    return wrong || wrong_two ? complain("%s", wrong ? wrong : wrong_two) : NULL;
}

/* ---- Promise: kernels in float, and any tile, give what the definition in double gives ---------------------- */

/* What float rounding may do to each output, measured: how far the definition in double moves when every real input
 * moves by one unit in its last place, up or down at random; some directions are tried. A float kernel makes about one
 * such error per operation, in some order, so it is allowed a multiple. */
enum { NUDGES = 4, ALLOWED_NUDGES = 8, ALLOWED_ULPS = 4 };

static void nudge(op_array *a, uint32_t *seed) {
    for (int64_t i = 0; i < a->count; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        a->value[i] *= 1 + (*seed >> 31 ? FLT_EPSILON : -FLT_EPSILON);
    }
}

/* bound[i], for output i: the most it moved, and a few units in the last place of its largest element. */
static const char *float_bounds(const subject *s, op_outputs *reference, double *bound, bool evaluate) {
    named ref[OUTPUTS], moved[OUTPUTS];
    op_setup setup = setup_f64(s);
    setup.evaluate = evaluate;
    list_outputs(reference, ref);
    for (int i = 0; i < OUTPUTS; i++) bound[i] = ALLOWED_ULPS * FLT_EPSILON * largest(ref[i].array);
    const char *wrong = NULL;
    for (uint32_t trial = 1; trial <= NUDGES && !wrong; trial++) {
        op_inputs in;
        op_outputs out;
        uint32_t seed = trial * 7919;
        op_inputs_make(&setup, 5, &in);
        for (int i = 0; i < setup.op->n_in; i++)
            if (setup.op->samples[s->sample].x[i].dtype != REMAT_I32) nudge(&in.x[i], &seed);
        for (int j = 0; j < RM_MAX_STATE; j++) nudge(&in.state[j], &seed), nudge(&in.dstate[j], &seed);
        nudge(&in.dy, &seed);
        wrong = op_run(&setup, &in, &out);
        list_outputs(&out, moved);
        for (int i = 0; i < OUTPUTS && !wrong; i++)
            if (ref[i].array->count) bound[i] = fmax(bound[i], ALLOWED_NUDGES * distance(ref[i].array, moved[i].array));
        op_outputs_free(&out);
        op_inputs_free(&in);
    }
    return wrong;
}

static const char *compare_within(op_outputs *got, op_outputs *reference, const double *bound, double *worst) {
    named a[OUTPUTS], b[OUTPUTS];
    list_outputs(got, a), list_outputs(reference, b);
    for (int i = 0; i < OUTPUTS; i++) {
        if (a[i].array->count != b[i].array->count) return complain("%s is there only once", a[i].name);
        double error = distance(a[i].array, b[i].array);
        if (!(error <= bound[i]))
            return complain("%s is off by %.3g, where %.3g is allowed and its largest element is %.3g", a[i].name,
                            error, bound[i], largest(b[i].array));
        if (bound[i] > 0 && error / bound[i] > *worst) *worst = error / bound[i];
    }
    return NULL;
}

/* Runs `setup` with every tile in turn and compares each with the reference. */
static const char *compare_tiles(op_setup setup, const op_inputs *in, op_outputs *reference, const double *bound,
                                 double *worst, const char *what) {
    static const int64_t tau[] = {0, 1, 2, 3};
    int64_t steps = op_steps(&setup);
    for (size_t i = 0; i < sizeof tau / sizeof *tau; i++) {
        if (tau[i] >= steps) continue;
        op_outputs out;
        setup.tau = tau[i];
        const char *wrong = op_run(&setup, in, &out);
        wrong = wrong ? complain("%s", wrong) : compare_within(&out, reference, bound, worst);
        op_outputs_free(&out);
        if (wrong)
            return complain("%s, tile %lld of %lld timesteps: %s", what, (long long)tau[i], (long long)steps, wrong);
    }
    return NULL;
}

static const char *check_kernels_in(subject *s, bool evaluate) {
    op_setup f64 = setup_f64(s), f32 = setup_f32(s);
    f64.evaluate = f32.evaluate = evaluate;
    op_inputs in;
    op_outputs reference;
    double bound[OUTPUTS], tight[OUTPUTS], unused = 0;
    op_inputs_make(&f64, 5, &in);
    const char *wrong = op_run(&f64, &in, &reference);
    if (!wrong) wrong = float_bounds(s, &reference, bound, evaluate);
    for (int i = 0; i < OUTPUTS && !wrong; i++) tight[i] = bound[i] * (DBL_EPSILON / FLT_EPSILON);
    if (wrong) wrong = complain("%s", wrong);
    if (!wrong) wrong = compare_tiles(f64, &in, &reference, tight, &unused, "the definition in double");
    f64.define = false;
    if (!wrong) wrong = compare_tiles(f64, &in, &reference, tight, &unused, "the kernel in double");
    f32.define = true;
    if (!wrong) wrong = compare_tiles(f32, &in, &reference, bound, &s->report->float_error, "the definition in float");
    f32.define = false;
    if (!wrong) wrong = compare_tiles(f32, &in, &reference, bound, &s->report->float_error, "the kernel in float");
    f32.threads = 2;
    if (!wrong)
        wrong = compare_tiles(f32, &in, &reference, bound, &s->report->float_error, "the kernel on two threads");
    op_outputs_free(&reference);
    op_inputs_free(&in);
    return wrong;
}

static const char *check_kernels(subject *s) {
    const char *wrong = check_kernels_in(s, false);
    if (wrong) return wrong;
    wrong = check_kernels_in(s, true);
    return wrong ? complain("in evaluation: %s", wrong) : NULL;
}

/* ---- Promise: the gradient is the derivative ------------------------------------------------------------ */

/* Central differences of op_objective in double. With step h the error is about h^2/6 f''' + eps |f| / h; h = 1e-5
 * balances them near 1e-10 for functions of order 1. Losses here sum up to some thousand terms of order 1. */
static const double STEP = 1e-5, ALLOWED_GRADIENT = 2e-7;
enum { COORDINATES = 40 /* tried per input, spread over it */ };

static double objective_at(const op_setup *setup, const op_inputs *in) {
    op_outputs out;
    op_setup forward = *setup;
    forward.forward_only = true;
    const char *wrong = op_run(&forward, in, &out);
    double value = wrong ? NAN : op_objective(in, &out);
    op_outputs_free(&out);
    return value;
}

static const char *check_slopes(const op_setup *setup, op_inputs *in, op_array *at, const op_array *gradient,
                                const char *name, double *worst) {
    double scale = 1 + largest(gradient);
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
            return complain("the gradient of %s[%lld] is %.9g, but the objective changes by %.9g", name, (long long)i,
                            gradient->value[i], slope);
        if (error > *worst) *worst = error;
    }
    return NULL;
}

/* All coordinates at once, in a direction of random signs: what no single coordinate above happened to be. */
static const char *check_direction(const op_setup *setup, op_inputs *in, op_array *at, const op_array *gradient,
                                   const char *name) {
    double expected = 0, size = 0, side[2];
    double *kept = malloc((size_t)at->count * sizeof *kept);
    if (!kept) abort();
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
    free(kept);
    double slope = (side[0] - side[1]) / (2 * STEP);
    if (!(fabs(slope - expected) <= ALLOWED_GRADIENT * (1 + size)))
        return complain("along a random direction of %s the gradient is %.9g, but the objective changes by %.9g", name,
                        expected, slope);
    return NULL;
}

static const char *check_gradients_of(op_setup setup, op_inputs *in, op_outputs *out, double *worst) {
    static const char *const x_name[] = {"x[0]", "x[1]", "x[2]", "x[3]", "x[4]"};
    static const char *const state_name[] = {"state_in[0]", "state_in[1]"};
    const char *wrong = op_run(&setup, in, out);
    if (wrong) return complain("%s", wrong);
    for (int i = 0; i < setup.op->n_in && !wrong; i++) {
        if (!out->dx[i].count) continue;
        wrong = check_slopes(&setup, in, &in->x[i], &out->dx[i], x_name[i], worst);
        if (!wrong) wrong = check_direction(&setup, in, &in->x[i], &out->dx[i], x_name[i]);
    }
    for (int j = 0; j < setup.op->n_state && !wrong; j++)
        if (out->dstate[j].count)
            wrong = check_slopes(&setup, in, &in->state[j], &out->dstate[j], state_name[j], worst);
    return wrong;
}

static const char *check_gradients(subject *s) {
    op_setup setup = setup_f64(s);
    op_inputs in;
    op_outputs out;
    op_inputs_make(&setup, 6, &in);
    if (!s->with_states) /* so that op_objective counts only what backward was told of */
        for (int j = 0; j < RM_MAX_STATE; j++) in.dstate[j].count = 0;
    const char *wrong = check_gradients_of(setup, &in, &out, &s->report->gradient_error);
    op_outputs_free(&out);
    op_inputs_free(&in);
    return wrong;
}

/* ---- Promises about what is handed over ------------------------------------------------------------------ */

/* A NULL dx, or a NULL dstate_in, changes nothing about the others. */
static const char *check_unwanted(subject *s) {
    op_setup setup = setup_f32(s);
    op_inputs in;
    op_outputs all;
    op_inputs_make(&setup, 7, &in);
    const char *wrong = op_run(&setup, &in, &all), *name = NULL;
    setup.trick = OP_UNWANTED;
    for (setup.which = 0; setup.which < RM_MAX_IN + s->op->n_state && !wrong && !name; setup.which++) {
        op_outputs some;
        wrong = op_run(&setup, &in, &some);
        if (!wrong) name = different_bits(&all, &some);
        op_outputs_free(&some);
    }
    op_outputs_free(&all);
    op_inputs_free(&in);
    if (wrong) return complain("when a gradient is not wanted: %s", wrong);
    return name ? complain("%s changes when another gradient is not wanted", name) : NULL;
}

/* Gradients of weights are added to what is there. Started from 3, they end 3 higher. */
static const char *check_adds_of(const op_setup *setup, const op_inputs *in, double epsilon) {
    op_outputs from_0, from_3;
    op_setup onto = *setup;
    onto.trick = OP_ONTO;
    const char *wrong = op_run(setup, in, &from_0), *wrong_onto = op_run(&onto, in, &from_3);
    for (int i = 0; i < RM_MAX_IN && !wrong && !wrong_onto; i++) {
        if (!(setup->op->weights >> i & 1)) continue;
        double bound = 100 * epsilon * (3 + largest(&from_0.dx[i]));
        for (int64_t k = 0; k < from_0.dx[i].count && !wrong; k++)
            if (!(fabs(from_3.dx[i].value[k] - from_0.dx[i].value[k] - 3) <= bound))
                wrong =
                    complain("the gradient of weight x[%d] is not added to what is there: from 0 it ends at %g, from "
                             "3 at %g",
                             i, from_0.dx[i].value[k], from_3.dx[i].value[k]);
    }
    op_outputs_free(&from_0), op_outputs_free(&from_3);
    return wrong || wrong_onto ? complain("%s", wrong ? wrong : wrong_onto) : NULL;
}

static const char *check_adds(subject *s) {
    op_setup f32 = setup_f32(s), f64 = setup_f64(s);
    op_inputs in;
    op_inputs_make(&f32, 8, &in);
    const char *wrong = check_adds_of(&f32, &in, FLT_EPSILON);
    if (!wrong) wrong = check_adds_of(&f64, &in, DBL_EPSILON);
    op_inputs_free(&in);
    return wrong;
}

/* A forward-only pass, aux NULL, gives the same bits. */
static const char *check_no_aux(subject *s) {
    op_setup setup = setup_f32(s);
    op_inputs in;
    op_outputs with, without;
    op_inputs_make(&setup, 9, &in);
    const char *wrong = op_run(&setup, &in, &with);
    setup.no_aux = true;
    const char *wrong_without = op_run(&setup, &in, &without), *name = NULL;
    if (!wrong && !wrong_without) name = different_bits(&with, &without);
    op_outputs_free(&with), op_outputs_free(&without);
    op_inputs_free(&in);
    if (wrong || wrong_without) return complain("%s", wrong ? wrong : wrong_without);
    return name ? complain("%s has other bits in a forward-only pass", name) : NULL;
}

/* ---- Promise: what is not saved by a lean stage is made again, bit for bit -------------------------------- */

static const char *check_lean_descriptor(subject *s) {
    const rm_op *op = s->op;
    bool rebuild = op->on[RM_DEVICE_CPU].rebuild;
    if (rebuild != (op->define_rebuild != NULL)) return complain("of rebuild and define_rebuild there is only one");
    if (rebuild && op->cheap) return complain("it has rebuild and is cheap: one or the other");
    if (rebuild && !op->aux_bytes) return complain("it has rebuild, but no aux to be rebuilt");
    if (op->rebuilds && !rebuild) return complain("it has rebuilds, but no rebuild");
    if (op->cheap && (op->time != RM_TIME_POINTWISE || op->n_state || op->on[RM_DEVICE_CPU].pack))
        return complain("it is cheap, but its forward needs more than a tile of x: states, other tiles or packed "
                        "weights");
    return NULL;
}

/* A lean run against one that saved everything; op_run itself compares what was made again. */
static const char *compare_lean(op_setup setup, const op_inputs *in, op_trick trick) {
    static const char *const when[] = {[OP_PLAIN] = "",
                                       [OP_UNDECLARED_NAN] = " when what it may not read is NaN",
                                       [OP_UNDECLARED_OTHER] = " when what it may not read has other values",
                                       [OP_UNDECLARED_ABSENT] = " when what it may not read is absent"};
    op_outputs kept, lean;
    const char *wrong = op_run(&setup, in, &kept);
    setup.lean = true, setup.trick = trick;
    const char *wrong_lean = op_run(&setup, in, &lean), *name = NULL;
    if (!wrong && !wrong_lean) name = different_bits(&kept, &lean);
    op_outputs_free(&kept), op_outputs_free(&lean);
    if (wrong) return complain("%s", wrong);
    const char *how = setup.define ? ", by the definition" : setup.threads > 1 ? ", on two threads" : "";
    int64_t tau = setup.tau ? setup.tau : op_steps(&setup);
    if (wrong_lean) return complain("kept lean%s, tile %lld: %s%s", how, (long long)tau, wrong_lean, when[trick]);
    return name ? complain("kept lean%s, tile %lld: %s has other bits than when everything is saved%s", how,
                           (long long)tau, name, when[trick])
                : NULL;
}

/* Every tile; buffers in several places, whose poison differs; and what is not declared, absent last. */
static const char *check_lean_of(op_setup setup, const op_inputs *in) {
    const char *wrong = NULL;
    int64_t steps = op_steps(&setup);
    for (setup.tau = 0; setup.tau <= 3 && setup.tau < steps && !wrong; setup.tau++)
        for (setup.variant = 0; setup.variant < 3 && !wrong; setup.variant++) wrong = compare_lean(setup, in, OP_PLAIN);
    setup.tau = 0, setup.variant = 0;
    for (int trick = OP_UNDECLARED_NAN; trick <= OP_UNDECLARED_ABSENT && !wrong; trick++)
        wrong = compare_lean(setup, in, (op_trick)trick);
    return wrong;
}

static const char *check_lean(subject *s) {
    const char *wrong = check_lean_descriptor(s);
    if (wrong || !(s->op->on[RM_DEVICE_CPU].rebuild || s->op->cheap)) return wrong;
    op_setup setup = setup_f32(s), f64 = setup_f64(s);
    op_inputs in;
    op_inputs_make(&setup, 11, &in);
    wrong = check_lean_of(setup, &in);
    setup.threads = 2;
    if (!wrong) wrong = check_lean_of(setup, &in);
    setup.define = true;
    if (!wrong) wrong = check_lean_of(setup, &in);
    if (!wrong) wrong = check_lean_of(f64, &in);
    op_inputs_free(&in);
    return wrong;
}

/* ---- All of them ------------------------------------------------------------------------------------------ */

static const char *check_sample(subject *s) {
    static const char *(*const checks[])(subject *) = {
        check_refusals, check_costs,  check_written,  check_repeats, check_undeclared, note_needed,     note_threads,
        check_adds,     check_no_aux, check_unwanted, check_lean,    check_kernels,    check_gradients,
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        const char *wrong = checks[i](s);
        if (wrong)
            return complain("%s, sample \"%s\"%s: %s", s->op->name, s->op->samples[s->sample].name,
                            s->with_states ? " with carried states" : "", wrong);
    }
    return NULL;
}

const char *op_check(const rm_op *op, const rm_op *op_f64, op_report *report) {
    subject s = {.op = op, .op_f64 = op_f64, .report = report};
    *report = (op_report){.same_across_threads = true};
    if (!op->n_samples) return complain("%s has no samples", op->name);
    for (s.sample = 0; s.sample < op->n_samples; s.sample++)
        for (int with_states = 0; with_states <= (op->n_state > 0); with_states++) {
            s.with_states = with_states;
            const char *wrong = check_sample(&s);
            if (wrong) return wrong;
        }
    return check_needed(op, s.needed);
}
