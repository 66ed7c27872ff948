/* declared.c: what an op declares is true: shapes, refusals, costs, saves and the denominator. See op_check.h. */
#include "ops/check/op_check.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- Promise: infer refuses invalid inputs, with an error that names the op --------------------------- */

const char *rm_op_check_refusals(rm_op_subject *s) {
    const remat_sample *sample = &s->op->samples[s->sample];
    remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
    memcpy(x, sample->x, sizeof x);
    if (rm_op_infer(s->op, x, sample->attr, &y, state))
        return rm_op_complain("infer refuses it: %s", remat_last_error());
    x[0].dtype = x[0].dtype == REMAT_I32 ? REMAT_F32 : REMAT_I32;
    rm_fail(REMAT_OK, "%s", ""); /* infer must set a message itself */
    if (s->op->infer(x, sample->attr, &y, state) != REMAT_INVALID)
        return rm_op_complain("infer accepts x[0] with a wrong type");
    if (!strstr(remat_last_error(), s->op->name))
        return rm_op_complain("infer's error message does not name the op: %s", remat_last_error());
    for (int i = 0; i < s->op->n_in; i++)
        if (sample->x[i].rank >= 0 && sample->x[i].dtype == REMAT_I32 &&
            (!s->op->bound || s->op->bound(sample->x, sample->attr, i) < 1))
            return rm_op_complain("x[%d] holds integers, but bound gives no limit", i);
    return NULL;
}

/* ---- Promise: shapes scale with the timesteps ------------------------------------------------------------- */

static const char *check_shapes_of(const rm_op_subject *s, const remat_op *op, remat_dtype real) {
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
            return rm_op_complain("infer refuses it for %lld timesteps: %s", (long long)tau, remat_last_error());
        if (tau == steps) {
            whole = y, memcpy(states, state, sizeof states);
            if (rm_desc_check(&y, "y") || y.dtype != real)
                return rm_op_complain("infer's y is not a valid shape of real numbers in the inputs' precision");
        }
        remat_desc expected = whole;
        if (sample->sequence && keeps_time) expected.dim[0] = tau;
        if (sample->sequence && keeps_time && whole.rank < 2)
            return rm_op_complain("infer's y is %s; it has a time axis like x, so it must begin with (T,B)",
                                  rm_desc_text(&y, text));
        if (!rm_desc_equal(&y, &expected))
            return rm_op_complain("infer's y is %s for %lld timesteps; as a part of the whole sequence it must be %s",
                                  rm_desc_text(&y, text), (long long)tau, rm_desc_text(&expected, other));
        for (int j = 0; j < op->n_state; j++)
            if (rm_desc_check(&state[j], "a state") || state[j].dtype != real || !rm_desc_equal(&state[j], &states[j]))
                return rm_op_complain(
                    "infer's state %d is not a valid shape of real numbers, or depends on the number of timesteps", j);
    }
    return NULL;
}

const char *rm_op_check_shapes(rm_op_subject *s) {
    const char *wrong = check_shapes_of(s, s->op, REMAT_F32);
    if (wrong) return wrong;
    wrong = check_shapes_of(s, s->op_f64, REMAT_F64);
    return wrong ? rm_op_complain("in double: %s", wrong) : NULL;
}

/* ---- Promise: costs are plausible ------------------------------------------------------------------- */

static remat_cost cost_of(const rm_op_subject *s, int64_t times, remat_pass pass) {
    const remat_sample *sample = &s->op->samples[s->sample];
    remat_desc x[REMAT_MAX_INPUTS], y = {0}, state[REMAT_MAX_STATES];
    memcpy(x, sample->x, sizeof x);
    for (int i = 0; i < s->op->n_in; i++)
        if (x[i].rank >= 0 && !rm_op_shares(s->op, i)) x[i].dim[0] *= times;
    remat_cost cost = {0};
    if (!rm_op_infer(s->op, x, sample->attr, &y, state)) s->op->cost(x, &y, sample->attr, pass, &cost);
    return cost;
}

static remat_status check_demands(const rm_op_subject *s) {
    const remat_sample *sample = &s->op->samples[s->sample];
    remat_desc y = {0}, state[REMAT_MAX_STATES];
    TRY(rm_op_infer(s->op, sample->x, sample->attr, &y, state));
    return rm_op_check_demands(s->op, sample->x, &y, sample->attr, REMAT_ON_CPU);
}

/* Ten times the timesteps must cost about ten times the work, or more for ops that see all of time at once. The fixed
 * part (reading the weights) may be most of the bytes. */
const char *rm_op_check_costs(rm_op_subject *s) {
    const remat_sample *sample = &s->op->samples[s->sample];
    int last = s->op->constant ? REMAT_FORWARD : s->op->on[REMAT_ON_CPU].rebuild ? REMAT_REBUILD : REMAT_BACKWARD;
    double most = s->op->time == REMAT_TIME_FULL ? DBL_MAX : 13;
    if (check_demands(s)) return rm_op_complain("%s", remat_last_error());
    for (int pass = REMAT_FORWARD; pass <= last; pass++) {
        static const char *const pass_name[] = {"forward", "backward", "rebuild"};
        const char *name = pass_name[pass];
        remat_cost one = cost_of(s, 1, (remat_pass)pass), ten = cost_of(s, 10, (remat_pass)pass);
        if (!(one.moved_bytes > 0)) return rm_op_complain("%s claims to move no bytes", name);
        if (s->op->shared & ~s->op->discrete && sample->x[0].dtype != REMAT_I32 && !(one.flops > 0))
            return rm_op_complain("%s has weights, but claims to compute nothing", name);
        if (sample->sequence && !(ten.flops >= 7 * one.flops && ten.flops <= most * one.flops))
            return rm_op_complain("%s claims %g FLOPs, and %g for ten times the timesteps", name, one.flops, ten.flops);
        if (sample->sequence && !(ten.moved_bytes >= one.moved_bytes && ten.moved_bytes <= most * one.moved_bytes))
            return rm_op_complain("%s claims %g bytes, and %g for ten times the timesteps", name, one.moved_bytes,
                                  ten.moved_bytes);
    }
    return NULL;
}

/* ---- Promise: backward reads only tensors that `saves` declares ---------------------------------------- */

static const char *compare_tricked(rm_op_setup setup, const rm_op_inputs *in, rm_op_outputs *plain, rm_op_trick trick) {
    static const char *const how[] = {[RM_OP_UNDECLARED_NAN] = "is NaN",
                                      [RM_OP_UNDECLARED_OTHER] = "has other values",
                                      [RM_OP_UNDECLARED_ABSENT] = "is absent"};
    rm_op_outputs tricked;
    setup.trick = trick;
    const char *wrong = rm_op_run(&setup, in, &tricked), *name = wrong ? NULL : rm_op_different_bits(plain, &tricked);
    rm_op_outputs_free(&tricked);
    if (wrong) return rm_op_complain("when an undeclared tensor %s: %s", how[trick], wrong);
    return name ? rm_op_complain("backward reads a tensor that `saves` does not declare: %s changes when the tensor %s",
                                 name, how[trick])
                : NULL;
}

/* Absent comes last. By then the values of undeclared tensors are known not to matter, so NULL is not dereferenced. */
static const char *check_undeclared_of(const rm_op_setup *setup, const rm_op_inputs *in) {
    rm_op_outputs plain;
    const char *wrong = rm_op_run(setup, in, &plain);
    if (wrong) wrong = rm_op_complain("%s", wrong);
    if (!wrong) wrong = compare_tricked(*setup, in, &plain, RM_OP_UNDECLARED_NAN);
    if (!wrong) wrong = compare_tricked(*setup, in, &plain, RM_OP_UNDECLARED_OTHER);
    if (!wrong) wrong = compare_tricked(*setup, in, &plain, RM_OP_UNDECLARED_ABSENT);
    rm_op_outputs_free(&plain);
    return wrong;
}

const char *rm_op_check_undeclared(rm_op_subject *s) {
    rm_op_setup f32 = rm_op_setup_f32(s), f64 = rm_op_setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&f32, 1, &in);
    const char *wrong = check_undeclared_of(&f32, &in);
    f32.define = true;
    if (!wrong && !s->again) wrong = check_undeclared_of(&f32, &in);
    if (!wrong && !s->again) wrong = check_undeclared_of(&f64, &in);
    rm_op_inputs_free(&in);
    return wrong;
}

/* ---- Promise: every declared save is needed ---------------------------------------------------------- */

static uint32_t declared_saves(const remat_op *op) {
    return op->saves.in | (op->saves.out ? 1u << RM_OP_OUT : 0) | (op->saves.state ? 1u << RM_OP_STATE : 0);
}

/* Records in s->needed the saves whose change changes a gradient, each of which needs one sample where it does;
 * rm_op_check_needed evaluates it after all samples. */
static const char *note_needed_by(rm_op_subject *s, const rm_op_setup *setup, const rm_op_inputs *in) {
    const uint32_t unknown = declared_saves(s->op) & ~s->needed;
    rm_op_outputs plain;
    if (!unknown) return NULL;
    const char *wrong = rm_op_run(setup, in, &plain);
    for (int item = 0; item < RM_OP_SAVEABLE && !wrong; item++) {
        rm_op_outputs tricked;
        rm_op_setup other = *setup;
        if (!(unknown >> item & 1)) continue;
        other.trick = RM_OP_DECLARED_OTHER;
        other.which = item;
        wrong = rm_op_run(&other, in, &tricked);
        if (!wrong && rm_op_different_bits(&plain, &tricked)) s->needed |= 1u << item;
        rm_op_outputs_free(&tricked);
    }
    rm_op_outputs_free(&plain);
    return wrong ? rm_op_complain("%s", wrong) : NULL;
}

const char *rm_op_note_needed(rm_op_subject *s) {
    rm_op_setup f32 = rm_op_setup_f32(s), f64 = rm_op_setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&f32, 2, &in);
    const char *wrong = note_needed_by(s, &f32, &in);
    if (!wrong) wrong = note_needed_by(s, &f64, &in);
    rm_op_inputs_free(&in);
    return wrong;
}

const char *rm_op_check_needed(const remat_op *op, uint32_t needed) {
    uint32_t idle = declared_saves(op) & ~needed;
    if (!idle) return NULL;
    int item = __builtin_ctz(idle);
    if (item == RM_OP_OUT) return rm_op_complain("%s: saves.out is declared, but no gradient depends on y", op->name);
    if (item == RM_OP_STATE)
        return rm_op_complain("%s: saves.state is declared, but no gradient depends on it", op->name);
    return rm_op_complain("%s: saves.in declares x[%d], but no gradient depends on it", op->name, item);
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
    if (wrong || wrong_half) return rm_op_complain("%s", wrong ? wrong : wrong_half);
    return halved ? NULL : rm_op_complain("y is not divided by the denominator: doubling it does not halve y");
}

const char *rm_op_check_denominator(rm_op_subject *s) {
    rm_op_setup setup = rm_op_setup_f64(s);
    rm_op_inputs in;
    if (!s->op->denominator) return NULL;
    int i = __builtin_ctzll(s->op->denominator);
    const remat_desc *x = &s->op->samples[s->sample].x[i];
    char text[REMAT_DESC_TEXT];
    if (x->rank < 0) return NULL;
    if (x->rank > 0)
        return rm_op_complain("x[%d] is %s; as the denominator it must be a scalar", i, rm_desc_text(x, text));
    setup.forward_only = true;
    rm_op_inputs_make(&setup, 5, &in);
    const char *wrong = check_halved(setup, &in, &in.x[i]);
    rm_op_inputs_free(&in);
    return wrong;
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
    if (!wrong && !wrong_lean) name = rm_op_different_bits(&kept, &lean);
    rm_op_outputs_free(&kept), rm_op_outputs_free(&lean);
    if (wrong) return rm_op_complain("%s", wrong);
    const char *how = setup.define ? ", by the definition" : setup.threads > 1 ? ", on two threads" : "";
    int64_t tau = setup.tau ? setup.tau : rm_op_steps(&setup);
    if (wrong_lean) return rm_op_complain("kept lean%s, tile %lld: %s%s", how, (long long)tau, wrong_lean, when[trick]);
    return name ? rm_op_complain("kept lean%s, tile %lld: %s differs from a run that saves everything%s", how,
                                 (long long)tau, name, when[trick])
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

const char *rm_op_check_lean(rm_op_subject *s) {
    const char *wrong = NULL;
    if (!s->op->on[REMAT_ON_CPU].rebuild && !s->op->cheap) return NULL;
    rm_op_setup setup = rm_op_setup_f32(s), f64 = rm_op_setup_f64(s);
    rm_op_inputs in;
    rm_op_inputs_make(&setup, 11, &in);
    wrong = check_lean_of(setup, &in);
    setup.threads = 2;
    if (!wrong) wrong = check_lean_of(setup, &in);
    setup.define = true;
    if (!wrong && !s->again) wrong = check_lean_of(setup, &in);
    if (!wrong && !s->again) wrong = check_lean_of(f64, &in);
    rm_op_inputs_free(&in);
    return wrong;
}
