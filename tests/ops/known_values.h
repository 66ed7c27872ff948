/* known_values.h: runs one call of an op in double, to compare it with values from other implementations. */
#ifndef KNOWN_VALUES_H
#define KNOWN_VALUES_H

#include <check.h>
#include <math.h>

#include "ops/op.h"

/* y of an op in double, in one call; x[i] are arrays of the given shapes. */
static inline double y_of(const char *name, const void *attr, remat_tensor a, remat_tensor b, remat_tensor c,
                          double *dx, int64_t which) {
    const remat_op *op = rm_op_find_f64(name);
    remat_call call = {.attr = attr, .x = {a, b, c}, .t_total = 1, .threads = 1, .training = true};
    remat_desc x[REMAT_MAX_INPUTS] = {a.desc, b.desc, c.desc}, state[REMAT_MAX_STATES];
    double y[64], dy[64], gradient[64], aux[64], scratch[64];
    for (int i = 3; i < REMAT_MAX_INPUTS; i++) x[i].rank = call.x[i].desc.rank = -1;
    ck_assert_msg(!op->infer(x, attr, &call.y.desc, state), "%s", remat_last_error());
    call.dy.desc = call.y.desc;
    for (int i = 0; i < 64; i++) dy[i] = 1;
    call.y.data = y, call.dy.data = dy, call.aux = aux, call.scratch = scratch;
    call.dx[0] = (remat_tensor){a.desc, gradient};
    op->on[REMAT_ON_CPU].forward(&call);
    op->on[REMAT_ON_CPU].backward(&call);
    *dx = gradient[which];
    return y[call.y.desc.rank ? which : 0];
}

#define CLOSE(got, expected) ck_assert_msg(fabs((got) - (expected)) <= 1e-14, "%.17g, not %.17g", got, expected)

static const remat_tensor none = {.desc = {.rank = -1}};

#endif
