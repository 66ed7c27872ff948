/* Saves y, which backward does not read: wasted memory. */
#define SAVES_OUTPUT true
#include "tests/mutants/base.h"

MUTANT(over_declared_output);
