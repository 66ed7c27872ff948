/* Reverses time in its tile without declaring it. */
#define TIME REMAT_TIME_POINTWISE
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_pointwise);
