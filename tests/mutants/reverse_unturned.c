/* Reverses the order of tiles, but not the timesteps in them: right for tiles of one timestep, and without effect for a
 * single tile. */
#define PLACE(t) (t)
#define PLACE_BACK(t) (t)
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_unturned);
