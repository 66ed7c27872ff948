/* An op that gets all timesteps at once may do anything along time: the harness must find no mistake. */
#define TIME REMAT_TIME_FULL
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_uncut);
