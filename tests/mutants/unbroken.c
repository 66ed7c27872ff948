/* The control: the harness must find no mistake. */
#include "tests/mutants/base.h"

MUTANT(unbroken);
