/* lateness.h: which rank the others wait for, and how long. No clocks are compared: a rank that arrives late at a collective is
 * blocked in it for less time than the others, by as much as it is late, whatever the engine. */
#ifndef RM_TRAIN_LATENESS_H
#define RM_TRAIN_LATENESS_H

#include "engine/status.h"

typedef struct {
    int32_t size;
    double *late_s; /* by rank: how long the others have waited for it */
} rm_lateness;

remat_status rm_lateness_open(int32_t size, rm_lateness *out);
void rm_lateness_close(rm_lateness *lateness);

/* Adds a step, from how long each rank was blocked in its collectives, in microseconds: the rank that was blocked least was late
 * by the difference to the others' mean. */
void rm_lateness_add(rm_lateness *lateness, const int32_t *blocked_us);

/* The rank that was late for the longest time in total; *late_s: that time. */
int32_t rm_lateness_worst(const rm_lateness *lateness, double *late_s);

#endif
