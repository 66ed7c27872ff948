/* op_check.h: the generic harness. It knows nothing of any particular op: everything follows from the descriptor and
 * its samples. What it demands is what op.h promises, one function per promise in op_check.c. It is used on the list
 * of ops (test_ops.c), and on broken ones that it must catch (test_mutants.c). */
#ifndef RM_TEST_OP_CHECK_H
#define RM_TEST_OP_CHECK_H

#include "ops/op.h"

typedef struct {
    bool same_across_threads; /* one thread and two gave the same bits: wished for, not demanded of library GEMMs */
    double gradient_error;    /* the worst difference between a finite difference and a gradient, of what is allowed */
    double float_error; /* the worst difference between float kernels and double definitions, of what is allowed */
} op_report;

/* NULL when the op keeps all promises on all its samples; else a sentence, valid until the next call on this thread.
 * `op_f64` is the same op in double precision. */
const char *op_check(const rm_op *op, const rm_op *op_f64, op_report *report);

#endif
