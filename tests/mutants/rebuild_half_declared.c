/* Has rebuild, but no definition of it. */
#define LEAN .on[REMAT_ON_CPU].rebuild = rebuild
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_half_declared);
