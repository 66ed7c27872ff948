/* measure.h: runs the programs of a chain's stages on a device, in a temporary block of memory, and times them. calibrate.c uses the
 * times.
 *
 * A window is a run of neighbouring stages. A pass over it does what a plan does: every stage forward without keeping; then, for each
 * option and in segments of three stages from the last, forward with keeping, and backward. So a program finds the caches in the
 * average state of a step: a kept stage takes up to 15 % longer right after a backward run than after another kept stage, and how
 * often that happens depends on the plan, which is not known yet. */
#ifndef RM_MEASURE_H
#define RM_MEASURE_H

#include "engine/session/run.h"

enum { RM_WINDOW_MOST = 16 };

typedef struct {
    const rm_device_api *api;
    rm_device *device;
    const rm_chain *chain;         /* its training problem is filled in */
    const rm_optimizer *optimizer; /* NULL: gradients only */
    const rm_update *update;
    int optimizer_states;
    int threads;
    char **external;      /* the program's own memory (run.h) */
    uint64_t block_bytes; /* upper bound, for resident arrays and the window together */
    double seconds;       /* about how long all measurements take together */
} rm_measure_config;

typedef struct {
    int64_t first, count;
    uint32_t options; /* bit k: option k is measured too */
} rm_measured_window;

/* Medians over passes; if there are enough, over those in which every thread had its processor. 0: not measured. */
typedef struct {
    uint64_t drop, forward[RM_MAX_OPTIONS], backward[RM_MAX_OPTIONS];
} rm_stage_times;

/* Shrinks the window [first, first+count) until it fits config->block_bytes: first fewer stages (along time it keeps the last ones,
 * by depth the first), then fewer options. False: not even one stage without keeping fits. */
bool rm_window_fit(const rm_measure_config *config, rm_measured_window *window);

typedef struct rm_measure rm_measure;

/* Allocates the block, for windows that fit, and fills in random parameters. MEMORY, and errors of the device. */
remat_status rm_measure_create(const rm_measure_config *config, const rm_measured_window *window, int64_t n,
                               rm_measure **out);
void rm_measure_free(rm_measure *measure); /* NULL allowed */

/* times[window->count]. Runs passes for `seconds`, at least one. */
remat_status rm_measure_window(rm_measure *measure, const rm_measured_window *window, double seconds,
                               rm_stage_times *times);

/* How much moving one MiB to `tier` or back slows the computation that it overlaps with. Compares passes that save every block when it
 * is made and load it back when it is needed with passes that move nothing, in alternation. `rates`: the tier's speed, and the least
 * that its copying costs. Result 0: the window has no block to move. IO. */
remat_status rm_measure_beside(rm_measure *measure, const rm_measured_window *window, rm_second_tier *tier,
                               const rm_tier *rates, double seconds, uint64_t *cost_ns_per_mib);

/* The time of a step outside its plan: packing weights, tables, zeroing gradients, their norm, the optimizer. */
remat_status rm_measure_fixed(rm_measure *measure, double seconds, uint64_t *time_ns);

#endif
