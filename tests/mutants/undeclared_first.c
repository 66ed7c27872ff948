/* Backward reads x for dx and dw, but declares it for dw alone. */
#define FIRST_FOR (1u << W)
#include "tests/mutants/base.h"

MUTANT(undeclared_first);
