/* Leaves the last row of the output as it found it. */
#define WRITTEN_ROWS steps - 1
#include "tests/mutants/base.h"

MUTANT(forgotten_row);
