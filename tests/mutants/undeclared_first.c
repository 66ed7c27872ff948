/* Backward reads x for dx, too, and says that it does for dw alone. */
#define FIRST_FOR (1u << W)
#include "tests/mutants/base.h"

MUTANT(undeclared_first);
