/* cpu_only.h: ops that have no CUDA kernels yet. Sessions on GPUs refuse them; tests of CUDA kernels say that they leave
 * them out, and fail when one of them gets kernels. Main entry: is_cpu_only. */
#ifndef TEST_CPU_ONLY_H
#define TEST_CPU_ONLY_H

#include <string.h>

#include "engine/remat_op.h"

static inline bool is_cpu_only(const remat_op *op) {
    static const char *const names[] = {"m2rnn"};
    bool is = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) is |= !strcmp(op->name, names[i]);
    return is;
}

#endif
