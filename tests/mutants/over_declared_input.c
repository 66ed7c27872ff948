/* Saves w, but backward reads only x and y. */
#define SET_DX(i) dx[i] = 2 * dy[i] * (y[i] - (real)0.125 * (real)(call->t0 + t)) / x[i]
#define SAVES_OUTPUT true
#include "tests/mutants/base.h"

MUTANT(over_declared_input);
