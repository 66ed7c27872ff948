/* Counts timesteps from the start of the tile, not of the sequence. */
#define TIMESTEP t
#include "tests/mutants/base.h"

MUTANT(forgotten_origin);
