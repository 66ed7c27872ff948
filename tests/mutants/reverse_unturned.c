/* Right for one timestep, and where all are one tile it does nothing: the tiles are turned round, not what is in them. */
#define PLACE(t) (t)
#define PLACE_BACK(t) (t)
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_unturned);
