/* The control for ops with rebuild: the harness must find no mistake. */
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_unbroken);
