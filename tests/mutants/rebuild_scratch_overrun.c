/* Rebuild writes one element past the end of its scratch. */
#define REBUILD_ALSO scratch[c] = 1
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_scratch_overrun);
