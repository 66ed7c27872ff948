/* Backward reads w without declaring it. */
#define SAVED_INPUTS (1u << X)
#include "tests/mutants/base.h"

MUTANT(undeclared_input);
