/* Marked cheap, but forward remembers its operand until backward, and gives another result when it runs again. */
static const void *seen;
static int seen_again(const void *x) {
    int again = x == seen;
    seen = x;
    return again;
}
#define KEPT(i) (2 * x[i] * w[j] + (i ? 0 : seen_again(x)))
#define BACKWARD_ALSO seen = 0
#define LEAN .cheap = true
#include "tests/mutants/lean_base.h"

MUTANT(cheap_with_memory);
