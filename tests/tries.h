/* tries.h: what a busy machine may spoil, or make slow, must go well in one of up to five tries (tests/README.md). Needs <check.h>. */
#ifndef RM_TEST_TRIES_H
#define RM_TEST_TRIES_H

/* `scene` is an expression, evaluated until it is true. */
#define once_of_five(scene) ((scene) || (scene) || (scene) || (scene) || (scene))

/* `seconds` is a call that takes, and returns, that many seconds: less than `limit` at least once. */
#define ck_quick_once(seconds, limit)                                                                                  \
    do {                                                                                                               \
        double took_ = 0, limit_ = (limit);                                                                            \
        ck_assert_msg(once_of_five((took_ = (seconds)) < limit_), "%s took %.3f s", #seconds, took_);                  \
    } while (0)

#endif
