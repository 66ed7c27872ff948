/* Rebuild writes one element past the end of aux. */
#define REBUILD_ALSO aux[steps * c] = 1
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_aux_overrun);
