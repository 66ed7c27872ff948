/* Backward has a wrong sign. */
#define SET_DX(i) dx[i] = -dy[i] * x[i] * scratch[j]
#include "tests/mutants/base.h"

MUTANT(wrong_sign);
