/* The gradient is not reversed. */
#define PLACE_BACK(t) (t)
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_gradient_unturned);
