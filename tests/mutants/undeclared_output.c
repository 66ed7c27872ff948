/* Backward reads y without declaring it. (The result is right only at t = 0, but the harness finds the missing
 * declaration first.) */
#define SET_DX(i) dx[i] = 2 * dy[i] * y[i] / x[i]
#include "tests/mutants/base.h"

MUTANT(undeclared_output);
