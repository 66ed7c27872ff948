/* The control: the harness must find nothing. */
#include "tests/mutants/base.h"

MUTANT(unbroken);
