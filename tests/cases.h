/* cases.h: how many cases a sweep tries. scripts/test.sh runs every test twice, sanitized and released. The released run
 * tries them all. A sanitizer looks for another kind of mistake, a byte beyond an end or a race, which shows where a path is
 * taken at all; there a sweep may try fewer cases of the same kinds, and takes as long as the others. */
#ifndef TEST_CASES_H
#define TEST_CASES_H

#include <stdlib.h>

/* Of a sweep that tries `released` cases, or `sanitized` under a sanitizer; REMAT_LONG_TESTS=1: all of them there, too. */
static inline int rm_cases(int released, int sanitized) {
#ifdef REMAT_SANITIZED
    return getenv("REMAT_LONG_TESTS") ? released : sanitized;
#else
    (void)sanitized;
    return released;
#endif
}

/* The same where REMAT_LONG_TESTS=1 tries `by_hand` cases, in any build. */
static inline int rm_long_cases(int by_hand, int released, int sanitized) {
    return getenv("REMAT_LONG_TESTS") ? by_hand : rm_cases(released, sanitized);
}

#endif
