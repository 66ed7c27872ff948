/* Rebuild reads y without declaring it. The bits are right as long as y exists. */
#define REBUILT(i) (2 * x[i] * w[j] + 0 * y[i])
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_undeclared_output);
