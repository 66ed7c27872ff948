/* infer gives the same shape of y for every tile. */
#define Y_STEPS 7
#include "tests/mutants/base.h"

MUTANT(stuck_shape);
