/* registry.c: the lists of ops and optimizers, from ops.def and optimizers.def. They are tables, not constructors, so
 * that static linking cannot drop an entry. Compiled twice, like the ops themselves; tests use the list in double. */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/optimizers/optimizer.h"

#define OP(folder, name) extern const remat_op RM_OP(name);
#include "ops/ops.def"
#undef OP

#ifdef RM_REAL_DOUBLE

static const remat_op *const ops_f64[] = {
#define OP(folder, name) &RM_OP(name),
#include "ops/ops.def"
#undef OP
};

const remat_op *rm_op_find_f64(const char *name) {
    for (size_t i = 0; i < sizeof ops_f64 / sizeof *ops_f64; i++)
        if (!strcmp(ops_f64[i]->name, name)) return ops_f64[i];
    return NULL;
}

const remat_op *rm_op_at_f64(int32_t i) { return ops_f64[i]; }

#else

const remat_op *const rm_ops[] = {
#define OP(folder, name) &RM_OP(name),
#include "ops/ops.def"
#undef OP
};
const int rm_n_ops = sizeof rm_ops / sizeof *rm_ops;

const remat_op *rm_op_find(const char *name) {
    for (int i = 0; i < rm_n_ops; i++)
        if (!strcmp(rm_ops[i]->name, name)) return rm_ops[i];
    return NULL;
}

const remat_op *rm_op_at(int32_t i) { return rm_ops[i]; }

#define OPTIMIZER(name) extern const rm_optimizer rm_optimizer_##name;
#include "ops/optimizers/optimizers.def"
#undef OPTIMIZER

const rm_optimizer *const rm_optimizers[] = {
#define OPTIMIZER(name) &rm_optimizer_##name,
#include "ops/optimizers/optimizers.def"
#undef OPTIMIZER
};
const int rm_n_optimizers = sizeof rm_optimizers / sizeof *rm_optimizers;

const rm_optimizer *rm_optimizer_find(const char *name) {
    for (int i = 0; i < rm_n_optimizers; i++)
        if (!strcmp(rm_optimizers[i]->name, name)) return rm_optimizers[i];
    return NULL;
}

#endif
