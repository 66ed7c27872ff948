/* Rebuild writes one element beyond the scratch it asked for. */
#define REBUILD_ALSO scratch[c] = 1
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_scratch_overrun);
