/* Given all timesteps it may do anything along time: the harness must find nothing. */
#define TIME REMAT_TIME_FULL
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_uncut);
