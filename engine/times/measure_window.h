/* measure_window.h: the window of stages that is measured, in a block of its own: how much it needs, where everything
 * lies, and what the arrays hold before a pass: random numbers, as large as those of a run. Private to measure.c, which
 * runs the passes. */
#ifndef RM_MEASURE_WINDOW_H
#define RM_MEASURE_WINDOW_H

#include "engine/times/measure.h"

enum { RM_WINDOW_PROGRAMS = sizeof(rm_stage_times) / sizeof(uint64_t) };
enum { RM_WINDOW_MARKS = RM_WINDOW_MOST * RM_WINDOW_PROGRAMS + 1 };

struct rm_measure {
    rm_measure_config config;
    rm_runner runner;
    uint64_t random;
    /* Where the device has timers: one before each program of a pass, and one at its end; and where the time of what follows
     * each goes. */
    rm_event *timer[RM_WINDOW_MARKS];
    uint64_t *time[RM_WINDOW_MARKS];
    int marks;
    remat_status failed; /* the first failure of a pass; its sentence waits */
};

/* Of a stage in the largest of these options. */
void rm_stage_needs(const rm_stage_kind *class, uint32_t options, uint64_t *saved, uint64_t *scratch);
uint64_t rm_window_bytes(const rm_chain *chain, const rm_measured_window *window); /* beside what is resident */

void rm_measure_fill_parameters(rm_measure *measure);

/* Gives everything in the window its place, and fills what it reads from outside. Leaving it forgets the places. */
void rm_measure_enter(rm_measure *measure, const rm_measured_window *window);
void rm_measure_leave(rm_measure *measure, const rm_measured_window *window);

/* Waits for the queue, and remembers what failed. */
void rm_measure_settle(rm_measure *measure);

#endif
