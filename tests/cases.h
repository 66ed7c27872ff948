/* cases.h: the number of cases of a random test: `few`, so that the suite takes minutes, or `many` with
 * REMAT_LONG_TESTS=1. */
#ifndef TEST_CASES_H
#define TEST_CASES_H

#include <stdlib.h>

static inline int rm_cases(int many, int few) { return getenv("REMAT_LONG_TESTS") ? many : few; }

#endif
