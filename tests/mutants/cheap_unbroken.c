/* The control for those whose forward is run again: the harness must find nothing. */
#define LEAN .cheap = true
#include "tests/mutants/lean_base.h"

MUTANT(cheap_unbroken);
