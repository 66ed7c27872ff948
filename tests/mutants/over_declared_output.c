/* Saves y, which backward has no use for: memory for nothing. */
#define SAVES_OUTPUT true
#include "tests/mutants/base.h"

MUTANT(over_declared_output);
