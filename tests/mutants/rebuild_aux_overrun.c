/* Rebuild writes one element beyond aux. */
#define REBUILD_ALSO aux[steps * c] = 1
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_aux_overrun);
