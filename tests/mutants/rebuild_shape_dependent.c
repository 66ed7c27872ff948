/* Rebuild gives different bits for some shapes without declaring it. Rows of nine elements are rebuilt by another
 * formula, as a library might for some sizes. */
#define REBUILT(i)                                                                                                     \
    (c == 9 ? 2 * (x[i] * w[j]) * (1 + (sizeof(real) == 4 ? (real)0x1p-23 : (real)0x1p-52)) : 2 * x[i] * w[j])
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_shape_dependent);
