/* Writes one element beyond the scratch it asked for. */
#define SCRATCH_USED c + 1
#include "tests/mutants/base.h"

MUTANT(scratch_overrun);
