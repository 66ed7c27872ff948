/* The control: the harness must find no mistake. */
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_unbroken);
