/* Adds to dx instead of overwriting it. */
#define SET_DX(i) dx[i] += dy[i] * x[i] * scratch[j]
#include "tests/mutants/base.h"

MUTANT(accumulated_gradient);
