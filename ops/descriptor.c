/* descriptor.c: validates op descriptors, whatever their kernels do; and the functions of remat_op.h that op authors
 * call. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/neutral.h"
#include "engine/rng.h"
#include "ops/cuda/cuda_queue.h"
#include "ops/op.h"

enum { LONGEST_NAME = 40, LONGEST_STATE = 20 };

remat_status remat_refuse(const char *format, ...) {
    NEED(format, "a message");
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    rm_vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    FAIL(INVALID, "%s", text);
}

uint32_t remat_random(const remat_key *key, int64_t timestep, uint64_t element) {
    return key ? rm_random(key->seed, key->step, key->node, (uint32_t)timestep, element) : 0;
}

void *remat_cuda_stream(const remat_call *call) {
    return call && call->queue ? ((const rm_cuda_queue *)call->queue)->stream : NULL;
}

void remat_sum_over_ranks(const remat_call *call, double *values, int64_t count) {
    const rm_talk *talk = call ? call->ranks : NULL;
    if (talk) talk->sum(talk->owner, values, count);
}

static remat_status check_inputs(const remat_op *op) {
    uint32_t beyond = ~0u << op->n_in;
    REQUIRE(!((op->optional | op->shared | op->discrete | op->buffers | op->saves.in | op->first_for) & beyond),
            INVALID,
            "%s: optional, shared, discrete, buffers, saves.in or first_for has a bit for an input past its n_in of %d",
            op->name, op->n_in);
    REQUIRE(!(op->buffers & (op->shared | op->discrete | op->saves.in | 1u)), INVALID,
            "%s: a buffer is x[0], or marked in shared, discrete or saves.in; buffers are only for `once`, and have no "
            "gradient",
            op->name);
    REQUIRE(!op->first_for || op->saves.in & 1, INVALID,
            "%s: first_for is set, but saves.in does not declare that backward reads x[0]", op->name);
    REQUIRE(op->once_bytes || !(op->buffers || op->collective), INVALID,
            "%s: it has buffers, or is collective, but has no once_bytes: only `once` may use them", op->name);
    REQUIRE(!(op->optional & 1), INVALID, "%s: x[0] is marked optional, but must always be given", op->name);
    REQUIRE(!op->resets || (op->time == REMAT_TIME_RECURRENT && !(op->resets & ~op->optional) &&
                            !(op->resets & (op->resets - 1)) && !(op->resets & (op->shared | op->discrete | 1u))),
            INVALID, "%s: resets must be the bit of one optional input, a sequence of f32, of a recurrent op",
            op->name);
    bool divides = op->time == REMAT_TIME_SUM && !(op->denominator & (op->denominator - 1)) &&
                   !(op->denominator & ~(uint64_t)op->shared) && !(op->denominator & (op->discrete | 1u));
    REQUIRE(!op->denominator || divides, INVALID,
            "%s: denominator has to be the bit of one scalar input, marked in weights, of an op whose time is SUM",
            op->name);
    REQUIRE(!op->discrete || op->bound, INVALID, "%s: it has discrete inputs, but no bound", op->name);
    REQUIRE((op->n_state > 0) == (op->time == REMAT_TIME_RECURRENT), INVALID,
            "%s: n_state is %d, but its time is%s RECURRENT; RECURRENT ops, and no others, have states", op->name,
            op->n_state, op->time == REMAT_TIME_RECURRENT ? "" : " not");
    return REMAT_OK;
}

static remat_status check_kernels(const remat_op *op) {
    const remat_op_device *cpu = &op->on[REMAT_ON_CPU];
    bool defined = op->define_forward || op->define_backward || op->define_rebuild;
    REQUIRE(cpu->forward && (cpu->backward || op->constant), INVALID,
            "%s: it has no forward or no backward for the CPU", op->name);
    REQUIRE(!defined || (op->define_forward && (op->define_backward || op->constant)), INVALID,
            "%s: of define_forward and define_backward it has only one", op->name);
    REQUIRE(!defined || !cpu->rebuild == !op->define_rebuild, INVALID,
            "%s: of rebuild and define_rebuild it has only one", op->name);
    REQUIRE(!defined || !cpu->once == !op->define_once, INVALID, "%s: of once and define_once there is only one",
            op->name);
    for (int device = 0; device < REMAT_DEVICE_KINDS; device++) {
        const remat_op_device *on = &op->on[device];
        REQUIRE(!on->pack == !on->packed_bytes, INVALID, "%s: of pack and packed_bytes it has only one", op->name);
        REQUIRE(!on->forward || !on->once == !op->once_bytes, INVALID, "%s: of once and once_bytes there is only one",
                op->name);
    }
    return REMAT_OK;
}

static remat_status check_lean(const remat_op *op) {
    bool rebuild = op->on[REMAT_ON_CPU].rebuild;
    REQUIRE(!rebuild || !op->cheap, INVALID, "%s: it has rebuild and is cheap; use one or the other", op->name);
    REQUIRE(!rebuild || op->aux_bytes, INVALID, "%s: it has rebuild, but no aux to be rebuilt", op->name);
    REQUIRE(!op->rebuilds || rebuild, INVALID, "%s: it has rebuilds, but no rebuild", op->name);
    bool alone = op->time != REMAT_TIME_RECURRENT && op->time != REMAT_TIME_SUM && op->time != REMAT_TIME_LAST;
    REQUIRE(!op->cheap || (alone && !op->on[REMAT_ON_CPU].pack), INVALID,
            "%s: it is cheap, but its forward needs more than x (states, other tiles or packed weights)", op->name);
    return REMAT_OK;
}

const char *rm_op_state_name(const remat_op *op, int state) {
    static const char *const usual[REMAT_MAX_STATES] = {"h", "c", "s2", "s3"};
    return op->state_name[state] ? op->state_name[state] : usual[state];
}

remat_status rm_op_check_descriptor(const remat_op *op) {
    REQUIRE(op->name && *op->name && strlen(op->name) <= LONGEST_NAME, INVALID,
            "an op needs a name of 1 to %d bytes; this one's is \"%.60s\"", LONGEST_NAME, op->name ? op->name : "");
    REQUIRE(op->n_in >= 1 && op->n_in <= REMAT_MAX_INPUTS && op->n_state >= 0 && op->n_state <= REMAT_MAX_STATES,
            INVALID, "%s: n_in is %d and n_state %d; use 1 to %d inputs, and up to %d states", op->name, op->n_in,
            op->n_state, REMAT_MAX_INPUTS, REMAT_MAX_STATES);
    for (int k = 0; k < op->n_state; k++)
        REQUIRE(!op->state_name[k] || (*op->state_name[k] && strlen(op->state_name[k]) <= LONGEST_STATE), INVALID,
                "%s: the name of state %d is \"%.60s\"; use 1 to %d bytes", op->name, k, op->state_name[k],
                LONGEST_STATE);
    REQUIRE((unsigned)op->time <= REMAT_TIME_BEGIN, INVALID, "%s: time is %d, which is not a remat_time", op->name,
            (int)op->time);
    REQUIRE(op->infer && op->cost, INVALID, "%s: it has no infer or no cost", op->name);
    TRY(check_inputs(op));
    TRY(check_kernels(op));
    return check_lean(op);
}

/* ---- Results of its functions -------------------------------------------------------------------------------- */

remat_status rm_op_infer(const remat_op *op, const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    char before[1024];
    snprintf(before, sizeof before, "%s", remat_last_error());
    rm_fail(REMAT_OK, "%s", "");
    if (!op->infer(x, attr, y, state)) return rm_fail(REMAT_OK, "%s", before);
    REQUIRE(*remat_last_error(), INVALID,
            "%s: its infer refuses these inputs without an error message; call remat_refuse", op->name);
    return REMAT_INVALID; /* whatever status it returned */
}

remat_status rm_op_check_discrete(const remat_op *op, const remat_desc *x) {
    char text[REMAT_DESC_TEXT];
    for (int i = 0; i < op->n_in; i++)
        REQUIRE(!(op->discrete >> i & 1) || x[i].rank < 0 || x[i].dtype == REMAT_I32, INVALID,
                "%s: input %d is %s, and marked discrete; only i32 inputs, which have no gradient, can be discrete",
                op->name, i, rm_desc_text(&x[i], text));
    return REMAT_OK;
}

static remat_status check_bytes(const remat_op *op, const char *what, uint64_t bytes) {
    REQUIRE(bytes <= (uint64_t)1 << 60, INVALID, "%s: its %s asks for %llu bytes; the limit is 2^60", op->name, what,
            (unsigned long long)bytes);
    return REMAT_OK;
}

remat_status rm_op_check_demands(const remat_op *op, const remat_desc *x, const remat_desc *y, const void *attr,
                                 remat_device_kind device) {
    static const char *const name[] = {"forward", "backward", "rebuild", "once"};
    const remat_op_device *on = &op->on[device];
    if (op->aux_bytes) TRY(check_bytes(op, "aux_bytes", op->aux_bytes(x, attr)));
    if (op->once_bytes) TRY(check_bytes(op, "once_bytes", op->once_bytes(x, attr)));
    if (on->fixed_bytes) TRY(check_bytes(op, "fixed_bytes", on->fixed_bytes(x, attr)));
    for (int pass = REMAT_FORWARD; pass <= REMAT_ONCE; pass++) {
        if (!rm_op_kernel(op, device, (remat_pass)pass)) continue;
        remat_cost cost = {0};
        op->cost(x, y, attr, (remat_pass)pass, &cost);
        REQUIRE(isfinite(cost.flops) && isfinite(cost.moved_bytes) && cost.flops >= 0 && cost.moved_bytes >= 0, INVALID,
                "%s: the cost of its %s is %g FLOPs and %g bytes; both must be finite and not negative", op->name,
                name[pass], cost.flops, cost.moved_bytes);
        TRY(check_bytes(op, "cost's scratch_bytes", cost.scratch_bytes));
        for (int aux = 0; on->scratch_bytes && aux <= !!op->aux_bytes; aux++)
            TRY(check_bytes(op, "scratch_bytes", on->scratch_bytes(x, attr, (remat_pass)pass, aux, 1)));
    }
    return REMAT_OK;
}
