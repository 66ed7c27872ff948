/* Backward is off by one part in a hundred thousand. */
#define SET_DX(i) dx[i] = dy[i] * x[i] * scratch[j] * (real)1.00001
#include "tests/mutants/base.h"

MUTANT(slightly_wrong);
