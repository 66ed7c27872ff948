/* Rebuilds values that differ from forward's in the last bit. */
#define REBUILT(i) (2 * x[i] * w[j] * (1 + (sizeof(real) == 4 ? (real)0x1p-23 : (real)0x1p-52)))
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_slightly_wrong);
