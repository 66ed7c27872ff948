/* cases.h: how many cases a random test tries: `few` of every kind, so that the suite takes minutes, or `many` where
 * REMAT_LONG_TESTS=1 asks for them. */
#ifndef TEST_CASES_H
#define TEST_CASES_H

#include <stdlib.h>

static inline int rm_cases(int many, int few) { return getenv("REMAT_LONG_TESTS") ? many : few; }

#endif
