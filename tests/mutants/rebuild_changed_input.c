/* Rebuild uses x as scratch. */
#define REBUILD_ALSO x[0] += 1
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_changed_input);
