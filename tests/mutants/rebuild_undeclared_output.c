/* Rebuild reads y, and does not say so. The bits are right, as long as y is there. */
#define REBUILT(i) (2 * x[i] * w[j] + 0 * y[i])
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_undeclared_output);
