/* Declares a cost of zero. */
#define FLOPS 0
#include "tests/mutants/base.h"

MUTANT(free_of_charge);
