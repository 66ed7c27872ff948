/* Backward reads w, and does not say so. */
#define SAVED_INPUTS (1u << X)
#include "tests/mutants/base.h"

MUTANT(undeclared_input);
