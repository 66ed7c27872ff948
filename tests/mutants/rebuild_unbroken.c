/* The control for those that rebuild: the harness must find nothing. */
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_unbroken);
