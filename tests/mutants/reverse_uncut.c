/* Given all timesteps it may do anything along time: the harness must find nothing. */
#define TIME RM_TIME_WHOLE
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_uncut);
