/* clock.h: nanoseconds of a monotonic clock, for measuring durations and for deadlines. */
#ifndef RM_CLOCK_H
#define RM_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t rm_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static inline uint64_t rm_now_ns(void) { return rm_clock_ns(CLOCK_MONOTONIC); }
static inline int64_t rm_now_ms(void) { return (int64_t)(rm_now_ns() / 1000000); }

#endif
