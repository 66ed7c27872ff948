/* Turns its tile round, and does not say so. */
#define TIME REMAT_TIME_POINTWISE
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_pointwise);
