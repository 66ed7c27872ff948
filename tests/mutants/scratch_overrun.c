/* Writes one element past the end of its scratch. */
#define SCRATCH_USED c + 1
#include "tests/mutants/base.h"

MUTANT(scratch_overrun);
