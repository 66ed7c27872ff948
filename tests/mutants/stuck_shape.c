/* Infer says the same y for every tile. */
#define Y_STEPS 7
#include "tests/mutants/base.h"

MUTANT(stuck_shape);
