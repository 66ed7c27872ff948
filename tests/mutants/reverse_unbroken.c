/* The control: the harness must find nothing. */
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_unbroken);
