/* measure.h: how long the programs of a chain's stages take on a device: runs them, in a block of their own that is given
 * back afterwards, and takes the time. What is done with the times is calibrate.c's business.
 *
 * A window is a run of neighbouring stages. A pass over it does what a plan does: every stage forward, dropping; then for
 * each option, in segments of three stages, last first: forward, keeping, and backward. So a program finds the caches as it
 * finds them in a step, on average: a stage that is kept right after a backward run takes up to 15 % longer than one after
 * another that was kept, and how many are is the plan's choice, which is not known yet. */
#ifndef RM_MEASURE_H
#define RM_MEASURE_H

#include "engine/session/run.h"

enum { RM_WINDOW_MOST = 16 };

typedef struct {
    const rm_device_api *api;
    rm_device *device;
    const rm_chain *chain;         /* whose training problem is written */
    const rm_optimizer *optimizer; /* NULL: gradients only */
    const rm_update *update;
    int optimizer_states;
    int threads;
    char **external;      /* the program's own memory (run.h) */
    uint64_t block_bytes; /* at most; of what is resident and the window together */
} rm_measure_config;

typedef struct {
    int64_t first, count;
    uint32_t options; /* bit k: option k is measured too */
} rm_measured_window;

/* Medians of the passes, of those in which all threads had their processors, if there are enough; 0: not measured. */
typedef struct {
    uint64_t drop, forward[RM_MAX_OPTIONS], backward[RM_MAX_OPTIONS];
} rm_stage_times;

/* The window [first, first+count) made smaller until it fits config->block_bytes: fewer stages (along time the last ones
 * stay, by depth the first), then fewer options. False: not even one stage dropping fits. */
bool rm_window_fit(const rm_measure_config *config, rm_measured_window *window);

typedef struct rm_measure rm_measure;

/* Makes the block, for windows that fit, with random parameters in it. MEMORY, and what the device fails with. */
remat_status rm_measure_create(const rm_measure_config *config, const rm_measured_window *window, int64_t n,
                               rm_measure **out);
void rm_measure_free(rm_measure *measure); /* NULL allowed */

/* times: window->count of them. Passes until `seconds` are over; at least one. */
remat_status rm_measure_window(rm_measure *measure, const rm_measured_window *window, double seconds,
                               rm_stage_times *times);

/* What moving a MiB to `tier` or back takes from the computation while it goes on beside: passes of the window, every
 * block saved when it is made and fetched when it is done with, against passes that move nothing, in turns. `rates`: how
 * quick the tier is, and what its copying costs at least. 0: the window has no block to move. IO. */
remat_status rm_measure_beside(rm_measure *measure, const rm_measured_window *window, rm_second_tier *tier,
                               const rm_tier *rates, double seconds, uint64_t *cost_ns_per_mib);

/* What a step takes beside its plan: packing weights, tables, zeroing gradients, their norm, the optimizer. */
remat_status rm_measure_fixed(rm_measure *measure, double seconds, uint64_t *time_ns);

#endif
