/* The gradient comes back the way it came. */
#define PLACE_BACK(t) (t)
#include "tests/mutants/reverse_base.h"

MUTANT(reverse_gradient_unturned);
