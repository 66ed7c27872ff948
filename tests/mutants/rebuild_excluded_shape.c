/* Not broken: rebuild gives different bits for some shapes, which `rebuilds` excludes; those are saved. Rows of nine
 * elements are rebuilt by another formula, as a library might for some sizes. */
#define REBUILT(i)                                                                                                     \
    (c == 9 ? 2 * (x[i] * w[j]) * (1 + (sizeof(real) == 4 ? (real)0x1p-23 : (real)0x1p-52)) : 2 * x[i] * w[j])

#include "ops/op.h"
static bool rebuilds(const remat_desc *x, const void *attr) {
    (void)attr;
    return x[0].dim[1] != 9;
}
#define REBUILDS rebuilds
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_excluded_shape);
