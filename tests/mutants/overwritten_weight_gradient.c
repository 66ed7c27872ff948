/* Sets the gradient of a weight in its first row, where it must add to what earlier tiles left. */
#define SET_DW(i) dw[j] = (t ? dw[j] : 0) + dy[i] * x[i] * x[i]
#include "tests/mutants/base.h"

MUTANT(overwritten_weight_gradient);
