/* Does not write the last row of aux. */
#define REBUILT_ROWS steps - 1
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_forgotten_row);
