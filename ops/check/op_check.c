/* op_check.c: remat_op_check: one function per promise of remat_op.h, each run on every sample. It has no knowledge of
 * particular ops; it uses only the descriptor and its samples. */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/neutral.h"
#include "memory/host.h"
#include "ops/check/guard.h"
#include "ops/check/op_run.h"
#include "ops/math/parallel.h"

static _Thread_local char message[1024];

__attribute__((format(printf, 1, 2))) static const char *complain(const char *format, ...) {
    char text[sizeof message]; /* an argument may be the old message */
    va_list arguments;
    va_start(arguments, format);
    rm_vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof message);
    return message;
}

/* One sample of one op, and the state shared by its checks. */
typedef struct {
    const remat_op *op, *op_f64;
    int sample;
    bool with_states;
    uint32_t needed; /* bits of x[i], RM_OP_OUT, RM_OP_STATE: declared saves that changed a gradient */
    remat_op_report *report;
} subject;

static rm_op_setup setup_f32(const subject *s) {
    return (rm_op_setup){.op = s->op, .sample = s->sample, .with_states = s->with_states, .threads = 1};
}
static rm_op_setup setup_f64(const subject *s) {
    rm_op_setup setup = setup_f32(s);
    setup.op = s->op_f64;
    setup.define = true;
    return setup;
}

/* ---- Comparing -------------------------------------------------------------------------------------- */

/* The outputs as a list of names and arrays. */
typedef struct {
    const char *name;
    rm_op_array *array;
} named;
enum { OUTPUTS = 1 + REMAT_MAX_STATES + 2 * REMAT_MAX_INPUTS + REMAT_MAX_STATES };

static void list_outputs(rm_op_outputs *out, named *list) {
    *list++ = (named){"y", &out->y};
    for (int j = 0; j < REMAT_MAX_STATES; j++) *list++ = (named){rm_op_state_out_name[j], &out->state[j]};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) *list++ = (named){rm_op_dx_name[i], &out->dx[i]};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) *list++ = (named){rm_op_x_name[i], &out->buffer[i]};
    for (int j = 0; j < REMAT_MAX_STATES; j++) *list++ = (named){rm_op_dstate_in_name[j], &out->dstate[j]};
}

/* The name of the first output whose bits differ, or NULL. Outputs that only one of them has are skipped. */
static const char *different_bits(rm_op_outputs *a, rm_op_outputs *b) {
    named la[OUTPUTS], lb[OUTPUTS];
    list_outputs(a, la), list_outputs(b, lb);
    for (int i = 0; i < OUTPUTS; i++) {
        if (!la[i].array->count || !lb[i].array->count) continue;
        if (memcmp(la[i].array->value, lb[i].array->value, (size_t)la[i].array->count * sizeof(double)))
            return la[i].name;
    }
    return NULL;
}

static double largest(const rm_op_array *a) {
    double most = 0;
    for (int64_t i = 0; i < a->count; i++) most = fabs(a->value[i]) > most ? fabs(a->value[i]) : most;
    return most;
}

/* The largest |a - b|; NaN if either side has a NaN. */
static double distance(const rm_op_array *a, const rm_op_array *b) {
    double most = 0;
    for (int64_t i = 0; i < a->count; i++) {
        double d = fabs(a->value[i] - b->value[i]);
        if (!(d <= most)) most = d;
        if (isnan(d)) return NAN;
    }
    return most;
}

/* ---- Promise: infer refuses invalid inputs, with an error that names the op --------------------------- */

static const char *check_refusals(subject *s) {
    const remat_sample *sample = &s->op->samples[s->sample];
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    memcpy(x, sample->x, sizeof x);
    if (rm_op_infer(s->op, x, sample->attr, &y, state)) return complain("infer refuses it: %s", remat_last_error());
    x[0].dtype = x[0].dtype == REMAT_I32 ? REMAT_F32 : REMAT_I32;
    rm_fail(REMAT_OK, "%s", ""); /* infer must set a message itself */
    if (s->op->infer(x, sample->attr, &y, state) != REMAT_INVALID)
        return complain("infer accepts x[0] with a wrong type");
    if (!strstr(remat_last_error(), s->op->name))
        return complain("infer's error message does not name the op: %s", remat_last_error());
    for (int i = 0; i < s->op->n_in; i++)
        if (sample->x[i].rank >= 0 && sample->x[i].dtype == REMAT_I32 &&
            (!s->op->bound || s->op->bound(sample->x, sample->attr, i) < 1))
            return complain("x[%d] holds integers, but bound gives no limit", i);
    return NULL;
}

/* ---- Promise: shapes scale with the timesteps ------------------------------------------------------------- */

static const char *check_shapes_of(const subject *s, const remat_op *op, remat_dtype real) {
    const remat_sample *sample = &op->samples[s->sample];
    bool keeps_time = rm_op_keeps_time(op);
    int64_t steps = sample->sequence ? sample->x[0].dim[0] : 1;
    remat_desc whole = {0}, states[REMAT_MAX_STATES] = {{0}};
    char text[REMAT_DESC_TEXT], other[REMAT_DESC_TEXT];
    for (int64_t tau = steps; tau >= (op->time == REMAT_TIME_FULL ? steps : 1); tau--) {
        remat_desc x[REMAT_MAX_INPUTS], y = {0}, state[REMAT_MAX_STATES] = {{0}};
        memcpy(x, sample->x, sizeof x);
        for (int i = 0; sample->sequence && i < op->n_in; i++)
            if (x[i].rank > 0 && !rm_op_shares(op, i)) x[i].dim[0] = tau;
        if (rm_op_infer(op, x, sample->attr, &y, state))
            return complain("infer refuses it for %lld timesteps: %s", (long long)tau, remat_last_error());
        if (tau == steps) {
            whole = y, memcpy(states, state, sizeof states);
            if (rm_desc_check(&y, "y") || y.dtype != real)
                return complain("infer's y is not a valid shape of real numbers in the inputs' precision");
        }
        remat_desc expected = whole;
        if (sample->sequence && keeps_time) expected.dim[0] = tau;
        if (sample->sequence && keeps_time && whole.rank < 2)
            return complain("infer's y is %s; it has a time axis like x, so it must begin with (T,B)",
                            rm_desc_text(&y, text));
        if (!rm_desc_equal(&y, &expected))
            return complain("infer's y is %s for %lld timesteps; as a part of the whole sequence it must be %s",
                            rm_desc_text(&y, text), (long long)tau, rm_desc_text(&expected, other));
        for (int j = 0; j < op->n_state; j++)
            if (rm_desc_check(&state[j], "a state") || state[j].dtype != real || !rm_desc_equal(&state[j], &states[j]))
                return complain(
                    "infer's state %d is not a valid shape of real numbers, or depends on the number of timesteps", j);
    }
    return NULL;
}

static const char *check_shapes(subject *s) {
    const char *wrong = check_shapes_of(s, s->op, REMAT_F32);
    if (wrong) return wrong;
    wrong = check_shapes_of(s, s->op_f64, REMAT_F64);
    return wrong ? complain("in double: %s", wrong) : NULL;
}

/* ---- Promise: costs are plausible ------------------------------------------------------------------- */

static remat_cost cost_of(const subject *s, int64_t times, remat_pass pass) {
    const remat_sample *sample = &s->op->samples[s->sample];
    remat_desc x[REMAT_MAX_INPUTS], y = {0}, state[REMAT_MAX_STATES];
    memcpy(x, sample->x, sizeof x);
    for (int i = 0; i < s->op->n_in; i++)
        if (x[i].rank >= 0 && !rm_op_shares(s->op, i)) x[i].dim[0] *= times;
    remat_cost cost = {0};
    if (!rm_op_infer(s->op, x, sample->attr, &y, state)) s->op->cost(x, &y, sample->attr, pass, &cost);
    return cost;
}

static remat_status check_demands(const subject *s) {
    const remat_sample *sample = &s->op->samples[s->sample];
    remat_desc y = {0}, state[REMAT_MAX_STATES];
    TRY(rm_op_infer(s->op, sample->x, sample->attr, &y, state));
    return rm_op_check_demands(s->op, sample->x, &y, sample->attr, REMAT_ON_CPU);
}

/* Ten times the timesteps must cost about ten times the work, or more for ops that see all of time at once. The fixed
 * part (reading the weights) may be most of the bytes. */
static const char *check_costs(subject *s) {
    const remat_sample *sample = &s->op->samples[s->sample];
    int last = s->op->on[REMAT_ON_CPU].rebuild ? REMAT_REBUILD : REMAT_BACKWARD;
    double most = s->op->time == REMAT_TIME_FULL ? DBL_MAX : 13;
    if (check_demands(s)) return complain("%s", remat_last_error());
    for (int pass = REMAT_FORWARD; pass <= last; pass++) {
        static const char *const pass_name[] = {"forward", "backward", "rebuild"};
        const char *name = pass_name[pass];
        remat_cost one = cost_of(s, 1, (remat_pass)pass), ten = cost_of(s, 10, (remat_pass)pass);
        if (!(one.moved_bytes > 0)) return complain("%s claims to move no bytes", name);
        if (s->op->shared & ~s->op->discrete && sample->x[0].dtype != REMAT_I32 && !(one.flops > 0))
            return complain("%s has weights, but claims to compute nothing", name);
        if (sample->sequence && !(ten.flops >= 7 * one.flops && ten.flops <= most * one.flops))
            return complain("%s claims %g FLOPs, and %g for ten times the timesteps", name, one.flops, ten.flops);
        if (sample->sequence && !(ten.moved_bytes >= one.moved_bytes && ten.moved_bytes <= most * one.moved_bytes))
            return complain("%s claims %g bytes, and %g for ten times the timesteps", name, one.moved_bytes,
                            ten.moved_bytes);
    }
    return NULL;
}

/* ---- Promise: outputs are written in full, whatever the buffers held before ------------------------- */

/* Outputs start as NaN; no input is NaN. */
static const char *check_written_of(const rm_op_setup *setup, const rm_op_inputs *in) {
    rm_op_outputs out;
    named list[OUTPUTS];
    const char *wrong = rm_op_run(setup, in, &out);
    if (wrong) wrong = complain("%s", wrong);
    list_outputs(&out, list);
    for (int i = 0; i < OUTPUTS && !wrong; i++)
        for (int64_t k = 0; k < list[i].array->count && !wrong; k++)
            if (isnan(list[i].array->value[k]))
                wrong = complain("%s[%lld] is NaN: it was not written, or was computed from uninitialised memory",
                                 list[i].name, (long long)k);
    rm_op_outputs_free(&out);
    return wrong;
}

static const char *check_written(subject *s) {
    rm_op_setup f32 = setup_f32(s), f64 = setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&f32, 10, &in);
    const char *wrong = check_written_of(&f32, &in);
    if (!wrong) wrong = check_written_of(&f64, &in);
    rm_op_inputs_free(&in);
    return wrong;
}

/* ---- Promise: backward reads only tensors that `saves` declares ---------------------------------------- */

static const char *compare_tricked(rm_op_setup setup, const rm_op_inputs *in, rm_op_outputs *plain, rm_op_trick trick) {
    static const char *const how[] = {[RM_OP_UNDECLARED_NAN] = "is NaN",
                                      [RM_OP_UNDECLARED_OTHER] = "has other values",
                                      [RM_OP_UNDECLARED_ABSENT] = "is absent"};
    rm_op_outputs tricked;
    setup.trick = trick;
    const char *wrong = rm_op_run(&setup, in, &tricked), *name = wrong ? NULL : different_bits(plain, &tricked);
    rm_op_outputs_free(&tricked);
    if (wrong) return complain("when an undeclared tensor %s: %s", how[trick], wrong);
    return name ? complain("backward reads a tensor that `saves` does not declare: %s changes when the tensor %s", name,
                           how[trick])
                : NULL;
}

/* Absent comes last. By then the values of undeclared tensors are known not to matter, so NULL is not dereferenced. */
static const char *check_undeclared_of(const rm_op_setup *setup, const rm_op_inputs *in) {
    rm_op_outputs plain;
    const char *wrong = rm_op_run(setup, in, &plain);
    if (wrong) wrong = complain("%s", wrong);
    if (!wrong) wrong = compare_tricked(*setup, in, &plain, RM_OP_UNDECLARED_NAN);
    if (!wrong) wrong = compare_tricked(*setup, in, &plain, RM_OP_UNDECLARED_OTHER);
    if (!wrong) wrong = compare_tricked(*setup, in, &plain, RM_OP_UNDECLARED_ABSENT);
    rm_op_outputs_free(&plain);
    return wrong;
}

static const char *check_undeclared(subject *s) {
    rm_op_setup f32 = setup_f32(s), f64 = setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&f32, 1, &in);
    const char *wrong = check_undeclared_of(&f32, &in);
    f32.define = true;
    if (!wrong) wrong = check_undeclared_of(&f32, &in);
    if (!wrong) wrong = check_undeclared_of(&f64, &in);
    rm_op_inputs_free(&in);
    return wrong;
}

/* ---- Promise: every declared save is needed ---------------------------------------------------------- */

/* Records in s->needed the saves whose change changes a gradient; check_needed evaluates it after all samples. */
static const char *note_needed_by(subject *s, const rm_op_setup *setup, const rm_op_inputs *in) {
    rm_op_outputs plain;
    const char *wrong = rm_op_run(setup, in, &plain);
    for (int item = 0; item < RM_OP_SAVEABLE && !wrong; item++) {
        rm_op_outputs tricked;
        rm_op_setup other = *setup;
        other.trick = RM_OP_DECLARED_OTHER;
        other.which = item;
        wrong = rm_op_run(&other, in, &tricked);
        if (!wrong && different_bits(&plain, &tricked)) s->needed |= 1u << item;
        rm_op_outputs_free(&tricked);
    }
    rm_op_outputs_free(&plain);
    return wrong ? complain("%s", wrong) : NULL;
}

static const char *note_needed(subject *s) {
    rm_op_setup f32 = setup_f32(s), f64 = setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&f32, 2, &in);
    const char *wrong = note_needed_by(s, &f32, &in);
    if (!wrong) wrong = note_needed_by(s, &f64, &in);
    rm_op_inputs_free(&in);
    return wrong;
}

static const char *check_needed(const remat_op *op, uint32_t needed) {
    uint32_t declared =
        op->saves.in | (op->saves.out ? 1u << RM_OP_OUT : 0) | (op->saves.state ? 1u << RM_OP_STATE : 0);
    uint32_t idle = declared & ~needed;
    if (!idle) return NULL;
    int item = __builtin_ctz(idle);
    if (item == RM_OP_OUT) return complain("%s: saves.out is declared, but no gradient depends on y", op->name);
    if (item == RM_OP_STATE) return complain("%s: saves.state is declared, but no gradient depends on it", op->name);
    return complain("%s: saves.in declares x[%d], but no gradient depends on it", op->name, item);
}

/* ---- Promise: y is a sum divided by the declared denominator ---------------------------------------------- */

static const char *check_halved(rm_op_setup setup, rm_op_inputs *in, rm_op_array *count) {
    rm_op_outputs once, half;
    const char *wrong = rm_op_run(&setup, in, &once);
    for (int64_t i = 0; i < count->count; i++) count->value[i] *= 2;
    const char *wrong_half = rm_op_run(&setup, in, &half);
    bool halved = true;
    for (int64_t i = 0; !wrong && !wrong_half && i < once.y.count; i++)
        halved &= fabs(once.y.value[i] - 2 * half.y.value[i]) <= 1e-12 * fabs(once.y.value[i]);
    rm_op_outputs_free(&once), rm_op_outputs_free(&half);
    if (wrong || wrong_half) return complain("%s", wrong ? wrong : wrong_half);
    return halved ? NULL : complain("y is not divided by the denominator: doubling it does not halve y");
}

static const char *check_denominator(subject *s) {
    rm_op_setup setup = setup_f64(s);
    rm_op_inputs in;
    if (!s->op->denominator) return NULL;
    int i = __builtin_ctzll(s->op->denominator);
    const remat_desc *x = &s->op->samples[s->sample].x[i];
    char text[REMAT_DESC_TEXT];
    if (x->rank < 0) return NULL;
    if (x->rank > 0) return complain("x[%d] is %s; as the denominator it must be a scalar", i, rm_desc_text(x, text));
    setup.forward_only = true;
    rm_op_inputs_make(&setup, 5, &in);
    const char *wrong = check_halved(setup, &in, &in.x[i]);
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
        if (!wrong) name = different_bits(&first, &again);
        rm_op_outputs_free(&again);
    }
    rm_op_outputs_free(&first);
    if (wrong) return complain("%s", wrong);
    return name ? complain("%s has different bits when the same call is repeated with %d thread%s", name, setup.threads,
                           setup.threads > 1 ? "s" : "")
                : NULL;
}

static const char *check_repeats(subject *s) {
    rm_op_setup setup = setup_f32(s);
    rm_op_inputs in;
    rm_op_inputs_make(&setup, 3, &in);
    const char *wrong = check_repeats_of(setup, &in);
    setup.threads = 2;
    if (!wrong) wrong = check_repeats_of(setup, &in);
    setup.define = true;
    if (!wrong) wrong = check_repeats_of(setup, &in);
    rm_op_inputs_free(&in);
    return wrong;
}

/* Compares one thread with two: reported, not required. */
static const char *note_threads(subject *s) {
    rm_op_setup setup = setup_f32(s);
    rm_op_inputs in;
    rm_op_outputs one, two;
    rm_op_inputs_make(&setup, 4, &in);
    const char *wrong = rm_op_run(&setup, &in, &one);
    setup.threads = 2;
    const char *wrong_two = rm_op_run(&setup, &in, &two);
    if (!wrong && !wrong_two && different_bits(&one, &two)) s->report->same_across_threads = false;
    rm_op_outputs_free(&one), rm_op_outputs_free(&two);
    rm_op_inputs_free(&in);
    return wrong || wrong_two ? complain("%s", wrong ? wrong : wrong_two) : NULL;
}

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
static const char *float_bounds(const subject *s, rm_op_outputs *reference, double *bound, bool evaluate) {
    named ref[OUTPUTS], moved[OUTPUTS];
    rm_op_setup setup = setup_f64(s);
    setup.evaluate = evaluate;
    list_outputs(reference, ref);
    for (int i = 0; i < OUTPUTS; i++) bound[i] = ALLOWED_ULPS * FLT_EPSILON * largest(ref[i].array);
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
        list_outputs(&out, moved);
        for (int i = 0; i < OUTPUTS && !wrong; i++)
            if (ref[i].array->count) bound[i] = fmax(bound[i], ALLOWED_NUDGES * distance(ref[i].array, moved[i].array));
        rm_op_outputs_free(&out);
        rm_op_inputs_free(&in);
    }
    return wrong;
}

static const char *compare_within(rm_op_outputs *got, rm_op_outputs *reference, const double *bound, double *worst) {
    named a[OUTPUTS], b[OUTPUTS];
    list_outputs(got, a), list_outputs(reference, b);
    for (int i = 0; i < OUTPUTS; i++) {
        if (a[i].array->count != b[i].array->count) return complain("%s exists on one side only", a[i].name);
        double error = distance(a[i].array, b[i].array);
        if (!(error <= bound[i]))
            return complain("%s is off by %.3g; %.3g is allowed, and its largest element is %.3g", a[i].name, error,
                            bound[i], largest(b[i].array));
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
        wrong = wrong ? complain("%s", wrong) : compare_within(&out, reference, bound, worst);
        rm_op_outputs_free(&out);
        if (wrong)
            return complain("%s, tile %lld of %lld timesteps: %s", what, (long long)tau[i], (long long)steps, wrong);
    }
    return NULL;
}

static const char *check_kernels_in(subject *s, bool evaluate) {
    rm_op_setup f64 = setup_f64(s), f32 = setup_f32(s);
    f64.evaluate = f32.evaluate = evaluate;
    rm_op_inputs in;
    rm_op_outputs reference;
    double bound[OUTPUTS], tight[OUTPUTS], unused = 0;
    rm_op_inputs_make(&f64, 5, &in);
    const char *wrong = rm_op_run(&f64, &in, &reference);
    if (!wrong) wrong = float_bounds(s, &reference, bound, evaluate);
    for (int i = 0; i < OUTPUTS && !wrong; i++) tight[i] = bound[i] * (DBL_EPSILON / FLT_EPSILON);
    if (wrong) wrong = complain("%s", wrong);
    bool defined = s->op->define_forward; /* else the kernels are the definition */
    if (!wrong && defined) wrong = compare_tiles(f64, &in, &reference, tight, &unused, "the definition in double");
    f64.define = false;
    if (!wrong) wrong = compare_tiles(f64, &in, &reference, tight, &unused, "the kernel in double");
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

static const char *check_kernels(subject *s) {
    const char *wrong = check_kernels_in(s, false);
    if (wrong) return wrong;
    wrong = check_kernels_in(s, true);
    return wrong ? complain("in evaluation: %s", wrong) : NULL;
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
        return complain("along a random direction of %s the gradient is %.9g, but the objective changes by %.9g", name,
                        expected, slope);
    return NULL;
}

static const char *check_gradients_of(rm_op_setup setup, rm_op_inputs *in, rm_op_outputs *out, double *worst) {
    const char *wrong = rm_op_run(&setup, in, out);
    if (wrong) return complain("%s", wrong);
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

static const char *check_gradients(subject *s) {
    rm_op_setup setup = setup_f64(s);
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

/* ---- Promises about the arguments of a call -------------------------------------------------------------- */

/* A NULL dx or dstate_in does not change the other gradients. */
static const char *check_unwanted(subject *s) {
    rm_op_setup setup = setup_f32(s);
    rm_op_inputs in;
    rm_op_outputs all;
    rm_op_inputs_make(&setup, 7, &in);
    const char *wrong = rm_op_run(&setup, &in, &all), *name = NULL;
    setup.trick = RM_OP_UNWANTED;
    for (setup.which = 0; setup.which < REMAT_MAX_INPUTS + s->op->n_state && !wrong && !name; setup.which++) {
        rm_op_outputs some;
        wrong = rm_op_run(&setup, &in, &some);
        if (!wrong) name = different_bits(&all, &some);
        rm_op_outputs_free(&some);
    }
    rm_op_outputs_free(&all);
    rm_op_inputs_free(&in);
    if (wrong) return complain("when a gradient is not wanted: %s", wrong);
    return name ? complain("%s changes when another gradient is not wanted", name) : NULL;
}

/* Gradients of weights are accumulated: if they start at 3 instead of 0, they end 3 higher. */
static const char *check_adds_of(const rm_op_setup *setup, const rm_op_inputs *in, double epsilon) {
    rm_op_outputs from_0, from_3;
    rm_op_setup onto = *setup;
    onto.trick = RM_OP_ONTO;
    const char *wrong = rm_op_run(setup, in, &from_0), *wrong_onto = rm_op_run(&onto, in, &from_3);
    for (int i = 0; i < REMAT_MAX_INPUTS && !wrong && !wrong_onto; i++) {
        if (!(setup->op->shared >> i & 1)) continue;
        double bound = 100 * epsilon * (3 + largest(&from_0.dx[i]));
        for (int64_t k = 0; k < from_0.dx[i].count && !wrong; k++)
            if (!(fabs(from_3.dx[i].value[k] - from_0.dx[i].value[k] - 3) <= bound))
                wrong =
                    complain("the gradient of weight x[%d] is not accumulated: starting from 0 it ends at %g, from 3 "
                             "at %g",
                             i, from_0.dx[i].value[k], from_3.dx[i].value[k]);
    }
    rm_op_outputs_free(&from_0), rm_op_outputs_free(&from_3);
    return wrong || wrong_onto ? complain("%s", wrong ? wrong : wrong_onto) : NULL;
}

static const char *check_adds(subject *s) {
    rm_op_setup f32 = setup_f32(s), f64 = setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&f32, 8, &in);
    const char *wrong = check_adds_of(&f32, &in, FLT_EPSILON);
    if (!wrong) wrong = check_adds_of(&f64, &in, DBL_EPSILON);
    rm_op_inputs_free(&in);
    return wrong;
}

/* A forward-only pass, with aux NULL, gives the same bits. */
static const char *check_no_aux(subject *s) {
    rm_op_setup setup = setup_f32(s);
    rm_op_inputs in;
    rm_op_outputs with, without;
    rm_op_inputs_make(&setup, 9, &in);
    const char *wrong = rm_op_run(&setup, &in, &with);
    setup.no_aux = true;
    const char *wrong_without = rm_op_run(&setup, &in, &without), *name = NULL;
    if (!wrong && !wrong_without) name = different_bits(&with, &without);
    rm_op_outputs_free(&with), rm_op_outputs_free(&without);
    rm_op_inputs_free(&in);
    if (wrong || wrong_without) return complain("%s", wrong ? wrong : wrong_without);
    return name ? complain("%s has different bits in a forward-only pass", name) : NULL;
}

/* ---- Promise: tensors that a lean stage does not save are recomputed bit-identically ---------------------- */

/* Compares a lean run with one that saved everything; rm_op_run itself compares the recomputed tensors. */
static const char *compare_lean(rm_op_setup setup, const rm_op_inputs *in, rm_op_trick trick) {
    static const char *const when[] = {[RM_OP_PLAIN] = "",
                                       [RM_OP_UNDECLARED_NAN] = " when undeclared tensors are NaN",
                                       [RM_OP_UNDECLARED_OTHER] = " when undeclared tensors have other values",
                                       [RM_OP_UNDECLARED_ABSENT] = " when undeclared tensors are absent"};
    rm_op_outputs kept, lean;
    const char *wrong = rm_op_run(&setup, in, &kept);
    setup.lean = true, setup.trick = trick;
    const char *wrong_lean = rm_op_run(&setup, in, &lean), *name = NULL;
    if (!wrong && !wrong_lean) name = different_bits(&kept, &lean);
    rm_op_outputs_free(&kept), rm_op_outputs_free(&lean);
    if (wrong) return complain("%s", wrong);
    const char *how = setup.define ? ", by the definition" : setup.threads > 1 ? ", on two threads" : "";
    int64_t tau = setup.tau ? setup.tau : rm_op_steps(&setup);
    if (wrong_lean) return complain("kept lean%s, tile %lld: %s%s", how, (long long)tau, wrong_lean, when[trick]);
    return name ? complain("kept lean%s, tile %lld: %s differs from a run that saves everything%s", how, (long long)tau,
                           name, when[trick])
                : NULL;
}

/* Every tile size; buffers at several addresses with different poison; undeclared tensors changed, and absent last. */
static const char *check_lean_of(rm_op_setup setup, const rm_op_inputs *in) {
    const char *wrong = NULL;
    int64_t most = rm_op_tiles(&setup);
    for (setup.tau = 0; setup.tau <= 3 && setup.tau < most && !wrong; setup.tau++)
        for (setup.variant = 0; setup.variant < 3 && !wrong; setup.variant++)
            wrong = compare_lean(setup, in, RM_OP_PLAIN);
    setup.tau = 0, setup.variant = 0;
    for (int trick = RM_OP_UNDECLARED_NAN; trick <= RM_OP_UNDECLARED_ABSENT && !wrong; trick++)
        wrong = compare_lean(setup, in, (rm_op_trick)trick);
    return wrong;
}

static const char *check_lean(subject *s) {
    const char *wrong = NULL;
    if (!s->op->on[REMAT_ON_CPU].rebuild && !s->op->cheap) return NULL;
    rm_op_setup setup = setup_f32(s), f64 = setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&setup, 11, &in);
    wrong = check_lean_of(setup, &in);
    setup.threads = 2;
    if (!wrong) wrong = check_lean_of(setup, &in);
    setup.define = true;
    if (!wrong) wrong = check_lean_of(setup, &in);
    if (!wrong) wrong = check_lean_of(f64, &in);
    rm_op_inputs_free(&in);
    return wrong;
}

/* ---- Before anything runs: descriptors and samples ---------------------------------------------------------- */

static remat_status check_operand(const remat_op *op, const remat_sample *sample, int i, remat_dtype real) {
    const remat_desc *x = &sample->x[i];
    char text[REMAT_DESC_TEXT];
    if (x->rank < 0) {
        REQUIRE(op->optional >> i & 1, INVALID, "%s, sample \"%s\": x[%d] is not given, and is not optional", op->name,
                sample->name, i);
        return REMAT_OK;
    }
    remat_status status = rm_desc_check(x, "an input");
    if (status) return rm_fail_in(status, "%s, sample \"%s\", x[%d]", op->name, sample->name, i);
    REQUIRE(x->dtype == real || (x->dtype == REMAT_I32 && op->bound), INVALID,
            "%s, sample \"%s\": x[%d] is %s; it must be %s, or integers limited by bound", op->name, sample->name, i,
            rm_desc_text(x, text), real == REMAT_F32 ? "f32" : "f64 in the op in double");
    bool any_length = !sample->sequence || rm_op_shares(op, i) || op->time == REMAT_TIME_FULL;
    REQUIRE(any_length || (x->rank >= 2 && x->dim[0] == sample->x[0].dim[0]), INVALID,
            "%s, sample \"%s\": x[%d] is %s; in a sequence it must begin with (T,B), with the T of x[0]", op->name,
            sample->name, i, rm_desc_text(x, text));
    return REMAT_OK;
}

static remat_status check_samples(const remat_op *op, remat_dtype real) {
    bool along_time = rm_op_needs_time(op);
    TRY(rm_op_check_descriptor(op));
    REQUIRE(op->samples && op->n_samples > 0, INVALID, "%s has no samples", op->name);
    for (int k = 0; k < op->n_samples; k++) {
        const remat_sample *sample = &op->samples[k];
        REQUIRE(sample->name, INVALID, "%s: sample %d has no name", op->name, k);
        REQUIRE(sample->sequence || !along_time, INVALID,
                "%s, sample \"%s\": the op works along time, but the sample is not a sequence", op->name, sample->name);
        REQUIRE(!sample->attr || op->attr_bytes, INVALID,
                "%s, sample \"%s\": it has attributes, but the op's attr_bytes is 0", op->name, sample->name);
        for (int i = 0; i < op->n_in; i++) TRY(check_operand(op, sample, i, real));
        TRY(rm_op_check_discrete(op, sample->x));
    }
    return REMAT_OK;
}

/* Both describe the same op: equal inputs, saves and samples, except for the precision. */
static remat_status check_twins(const remat_op *op, const remat_op *op_f64) {
    TRY(check_samples(op, REMAT_F32));
    TRY(check_samples(op_f64, REMAT_F64));
    bool same = op->n_in == op_f64->n_in && op->n_state == op_f64->n_state && op->time == op_f64->time &&
                op->shared == op_f64->shared && op->buffers == op_f64->buffers && op->optional == op_f64->optional &&
                op->discrete == op_f64->discrete && op->attr_bytes == op_f64->attr_bytes &&
                op->saves.in == op_f64->saves.in && op->first_for == op_f64->first_for &&
                op->denominator == op_f64->denominator && op->saves.out == op_f64->saves.out &&
                op->saves.state == op_f64->saves.state && op->n_samples == op_f64->n_samples;
    for (int k = 0; same && k < op->n_samples; k++) {
        same &= op->samples[k].sequence == op_f64->samples[k].sequence;
        for (int i = 0; i < op->n_in; i++) {
            remat_desc x = op->samples[k].x[i], x_f64 = op_f64->samples[k].x[i];
            if (x.dtype == REMAT_F32) x.dtype = REMAT_F64;
            same &= x.rank < 0 ? x_f64.rank < 0 : rm_desc_equal(&x, &x_f64);
        }
    }
    REQUIRE(same, INVALID,
            "%s: the op in double is not the same op: it differs in inputs, states, time, saves, attr_bytes or samples",
            op->name);
    return REMAT_OK;
}

/* ---- All of them ------------------------------------------------------------------------------------------ */

static const char *check_sample(subject *s) {
    static const char *(*const checks[])(subject *) = {
        check_shapes,  check_refusals,   check_denominator, check_costs,   check_written,
        check_repeats, check_undeclared, note_needed,       note_threads,  check_adds,
        check_no_aux,  check_unwanted,   check_lean,        check_kernels, check_gradients,
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        const char *wrong = checks[i](s);
        if (wrong)
            return complain("%s, sample \"%s\"%s: %s", s->op->name, s->op->samples[s->sample].name,
                            s->with_states ? " with carried states" : "", wrong);
    }
    return NULL;
}

static const char *check_promises(subject *s) {
    for (s->sample = 0; s->sample < s->op->n_samples; s->sample++)
        for (int with_states = 0; with_states <= (s->op->n_state > 0); with_states++) {
            s->with_states = with_states;
            const char *wrong = check_sample(s);
            if (wrong) return wrong;
        }
    return check_needed(s->op, s->needed);
}

/* The op with samples whose attributes are exactly attr_bytes long: reading past their end finds NaN. */
static remat_op fence_attributes(const remat_op *op, rm_guard_set *memory) {
    remat_op fenced = *op;
    remat_sample *sample = rm_guard_alloc(memory, (size_t)op->n_samples * sizeof *sample, "the samples");
    for (int k = 0; sample && k < op->n_samples; k++) {
        sample[k] = op->samples[k];
        if (!sample[k].attr) continue;
        void *attr = rm_guard_alloc(memory, op->attr_bytes, "the attributes");
        if (attr) memcpy(attr, sample[k].attr, op->attr_bytes);
        rm_guard_seal(memory, attr);
        sample[k].attr = attr;
    }
    fenced.samples = sample;
    return fenced;
}

static const char *check_fenced(const remat_op *op, const remat_op *op_f64, remat_op_report *report) {
    rm_guard_set memory = {0};
    remat_op fenced = fence_attributes(op, &memory), fenced_f64 = fence_attributes(op_f64, &memory);
    subject s = {.op = &fenced, .op_f64 = &fenced_f64, .report = report};
    rm_op_starved = memory.starved;
    const char *wrong = rm_op_starved ? NULL : check_promises(&s);
    bool overrun;
    const char *what = rm_guard_complaint(&memory, &overrun);
    if (what) wrong = complain("%s: it %s %s", op->name, overrun ? "writes outside" : "changes", what);
    rm_guard_free(&memory);
    return wrong;
}

static remat_status check(const remat_op *op, const remat_op *op_f64, remat_op_report *report) {
    char before[1024]; /* refusals that the check provokes must not stay as the last error */
    snprintf(before, sizeof before, "%s", remat_last_error());
    TRY(check_twins(op, op_f64));
    rm_parallel_pretend(1); /* use two threads even on a busy machine */
    const char *wrong = check_fenced(op, op_f64, report);
    rm_parallel_pretend(0);
    REQUIRE(!rm_op_starved, MEMORY, "%s: out of memory for its samples' buffers", op->name);
    REQUIRE(!wrong, INVALID, "%s", wrong);
    return rm_fail(REMAT_OK, "%s", before);
}

/* If a promise is broken, the report still holds what was found before. */
remat_status remat_op_check(const remat_op *op, const remat_op *op_f64, remat_op_report *report) {
    remat_op_report made = {.same_across_threads = true};
    remat_op ours, ours_f64;
    NEED(op, "an op");
    NEED(op_f64, "the op in double");
    TRY(rm_take(&ours, sizeof ours, op, "remat_op"));
    TRY(rm_take(&ours_f64, sizeof ours_f64, op_f64, "remat_op"));
    remat_status status = check(&ours, &ours_f64, &made);
    if (report) *report = made;
    return status;
}
