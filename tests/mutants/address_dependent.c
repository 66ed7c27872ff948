/* The last bits depend on the address of y, as in a kernel that starts its vectors at the next multiple of 128
 * bytes. */
#define VALUE(i) ((uintptr_t)y % 128 ? x[i] * x[i] * w[j] : x[i] * (x[i] * w[j]))
#include "tests/mutants/base.h"

MUTANT(address_dependent);
