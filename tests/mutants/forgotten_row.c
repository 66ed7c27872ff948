/* Does not write the last row of the output. */
#define WRITTEN_ROWS steps - 1
#include "tests/mutants/base.h"

MUTANT(forgotten_row);
