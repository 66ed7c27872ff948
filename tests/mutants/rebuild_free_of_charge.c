/* Says that to rebuild costs nothing. */
#define REBUILD_FLOPS 0
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_free_of_charge);
