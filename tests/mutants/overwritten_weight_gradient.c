/* Overwrites a weight's gradient in its first row instead of adding to that of earlier tiles. */
#define SET_DW(i) dw[j] = (t ? dw[j] : 0) + dy[i] * x[i] * x[i]
#include "tests/mutants/base.h"

MUTANT(overwritten_weight_gradient);
