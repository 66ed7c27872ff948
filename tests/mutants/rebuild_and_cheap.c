/* Declares both rebuild and cheap. */
#define LEAN .define_rebuild = rebuild, .on[REMAT_ON_CPU].rebuild = rebuild, .cheap = true
#include "tests/mutants/lean_base.h"

MUTANT(rebuild_and_cheap);
