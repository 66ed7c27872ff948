/* Backward reads y, and does not say so. (Right at t = 0 only, but the declaration is what is found first.) */
#define SET_DX(i) dx[i] = 2 * dy[i] * y[i] / x[i]
#include "tests/mutants/base.h"

MUTANT(undeclared_output);
