/* Declares a cost of zero for rebuild. */
#define REBUILD_FLOPS 0
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_free_of_charge);
