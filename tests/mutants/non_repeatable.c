/* Gives different last bits at every call, like a kernel with unordered atomic additions. */
static int calls;
#define VALUE(i) (x[i] * x[i] * w[j] * (1 + (real)1e-7 * (real)(calls++ % 2)))
#include "tests/mutants/base.h"

MUTANT(non_repeatable);
