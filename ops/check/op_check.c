/* op_check.c: remat_op_check: every promise of remat_op.h (op_check.h), on every sample of an op. It has no knowledge of
 * particular ops; it uses only the descriptor and its samples. */
#include "ops/check/op_check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/neutral.h"
#include "memory/host.h"
#include "ops/check/guard.h"
#include "ops/math/parallel.h"

static _Thread_local char message[1024];

const char *rm_op_complain(const char *format, ...) {
    char text[sizeof message]; /* an argument may be the old message */
    va_list arguments;
    va_start(arguments, format);
    rm_vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof message);
    return message;
}

rm_op_setup rm_op_setup_f32(const rm_op_subject *s) {
    return (rm_op_setup){.op = s->op, .sample = s->sample, .with_states = s->with_states, .threads = 1};
}

rm_op_setup rm_op_setup_f64(const rm_op_subject *s) {
    rm_op_setup setup = rm_op_setup_f32(s);
    setup.op = s->op_f64;
    setup.define = true;
    return setup;
}

/* ---- Comparing -------------------------------------------------------------------------------------- */

void rm_op_list_outputs(rm_op_outputs *out, rm_op_named list[RM_OP_OUTPUTS]) {
    *list++ = (rm_op_named){"y", &out->y};
    for (int j = 0; j < REMAT_MAX_STATES; j++) *list++ = (rm_op_named){rm_op_state_out_name[j], &out->state[j]};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) *list++ = (rm_op_named){rm_op_dx_name[i], &out->dx[i]};
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) *list++ = (rm_op_named){rm_op_x_name[i], &out->buffer[i]};
    for (int j = 0; j < REMAT_MAX_STATES; j++) *list++ = (rm_op_named){rm_op_dstate_in_name[j], &out->dstate[j]};
}

const char *rm_op_different_bits(rm_op_outputs *a, rm_op_outputs *b) {
    rm_op_named la[RM_OP_OUTPUTS], lb[RM_OP_OUTPUTS];
    rm_op_list_outputs(a, la), rm_op_list_outputs(b, lb);
    for (int i = 0; i < RM_OP_OUTPUTS; i++) {
        if (!la[i].array->count || !lb[i].array->count) continue;
        if (memcmp(la[i].array->value, lb[i].array->value, (size_t)la[i].array->count * sizeof(double)))
            return la[i].name;
    }
    return NULL;
}

double rm_op_largest(const rm_op_array *a) {
    double most = 0;
    for (int64_t i = 0; i < a->count; i++) most = fabs(a->value[i]) > most ? fabs(a->value[i]) : most;
    return most;
}

double rm_op_distance(const rm_op_array *a, const rm_op_array *b) {
    double most = 0;
    for (int64_t i = 0; i < a->count; i++) {
        double d = fabs(a->value[i] - b->value[i]);
        if (!(d <= most)) most = d;
        if (isnan(d)) return NAN;
    }
    return most;
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
                op->discrete == op_f64->discrete && op->constant == op_f64->constant &&
                op->attr_bytes == op_f64->attr_bytes && op->saves.in == op_f64->saves.in &&
                op->first_for == op_f64->first_for && op->denominator == op_f64->denominator &&
                op->saves.out == op_f64->saves.out && op->saves.state == op_f64->saves.state &&
                op->n_samples == op_f64->n_samples;
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

static const char *check_sample(rm_op_subject *s) {
    static const char *(*const checks[])(rm_op_subject *) = {
        rm_op_check_shapes,  rm_op_check_refusals, rm_op_check_denominator, rm_op_check_costs,
        rm_op_check_written, rm_op_check_repeats,  rm_op_check_undeclared,  rm_op_note_needed,
        rm_op_note_threads,  rm_op_check_adds,     rm_op_check_no_aux,      rm_op_check_unwanted,
        rm_op_check_lean,    rm_op_check_kernels,  rm_op_check_gradients,
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        const char *wrong = s->again && checks[i] == rm_op_check_gradients ? NULL : checks[i](s);
        if (wrong)
            return rm_op_complain("%s, sample \"%s\"%s: %s", s->op->name, s->op->samples[s->sample].name,
                                  s->with_states ? " with carried states" : "", wrong);
    }
    return NULL;
}

static const char *check_promises(rm_op_subject *s) {
    for (s->sample = 0; s->sample < s->op->n_samples; s->sample++)
        for (int with_states = 0; with_states <= (s->op->n_state > 0); with_states++) {
            s->with_states = with_states;
            const char *wrong = check_sample(s);
            if (wrong) return wrong;
        }
    return rm_op_check_needed(s->op, s->needed);
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

static const char *check_fenced(const remat_op *op, const remat_op *op_f64, bool again, remat_op_report *report) {
    rm_guard_set memory = {0};
    remat_op fenced = fence_attributes(op, &memory), fenced_f64 = fence_attributes(op_f64, &memory);
    rm_op_subject s = {.op = &fenced, .op_f64 = &fenced_f64, .again = again, .report = report};
    rm_op_starved = memory.starved;
    const char *wrong = rm_op_starved ? NULL : check_promises(&s);
    bool overrun;
    const char *what = rm_guard_complaint(&memory, &overrun);
    if (what) wrong = rm_op_complain("%s: it %s %s", op->name, overrun ? "writes outside" : "changes", what);
    rm_guard_free(&memory);
    return wrong;
}

static remat_status check(const remat_op *op, const remat_op *op_f64, bool again, remat_op_report *report) {
    char before[1024]; /* refusals that the check provokes must not stay as the last error */
    snprintf(before, sizeof before, "%s", remat_last_error());
    TRY(check_twins(op, op_f64));
    rm_parallel_pretend(1); /* use two threads even on a busy machine */
    const char *wrong = check_fenced(op, op_f64, again, report);
    rm_parallel_pretend(0);
    REQUIRE(!rm_op_starved, MEMORY, "%s: out of memory for its samples' buffers", op->name);
    REQUIRE(!wrong, INVALID, "%s", wrong);
    return rm_fail(REMAT_OK, "%s", before);
}

/* If a promise is broken, the report still holds what was found before. */
static remat_status check_given(const remat_op *op, const remat_op *op_f64, bool again, remat_op_report *report) {
    remat_op_report made = {.same_across_threads = true};
    remat_op ours, ours_f64;
    TRY(rm_take(&ours, sizeof ours, op, "remat_op"));
    TRY(rm_take(&ours_f64, sizeof ours_f64, op_f64, "remat_op"));
    remat_status status = check(&ours, &ours_f64, again, &made);
    if (report) *report = made;
    return status;
}

remat_status remat_op_check(const remat_op *op, const remat_op *op_f64, remat_op_report *report) {
    NEED(op, "an op");
    NEED(op_f64, "the op in double");
    return check_given(op, op_f64, false, report);
}

remat_status rm_op_check_again(const remat_op *op, const remat_op *op_f64, remat_op_report *report) {
    return check_given(op, op_f64, true, report);
}
