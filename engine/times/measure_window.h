/* measure_window.h: the window of stages that is measured: its size, the layout of its block, and the contents of the arrays before a
 * pass (random numbers of realistic size). Private to measure.c, which runs the passes. */
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
    remat_status failed; /* the first failure of a pass; remat_last_error has its sentence */
};

/* Bytes of a stage under the largest of these options. */
void rm_stage_needs(const rm_stage_kind *class, uint32_t options, uint64_t *saved, uint64_t *scratch);
uint64_t rm_window_bytes(const rm_chain *chain, const rm_measured_window *window); /* beside what is resident */

void rm_measure_fill_parameters(rm_measure *measure);

/* enter places everything in the window and fills the values that it reads from outside; leave forgets the places. */
void rm_measure_enter(rm_measure *measure, const rm_measured_window *window);
void rm_measure_leave(rm_measure *measure, const rm_measured_window *window);

/* Waits for the queue and records a failure. */
void rm_measure_settle(rm_measure *measure);

#endif
