/* The control for ops whose forward is run again: the harness must find no mistake. */
#define LEAN .cheap = true
#include "tests/mutants/lean_base.h"

MUTANT(cheap_unbroken);
