/* calibrate.h: replaces times guessed from a device's rates by measured ones. It measures every program that a plan may run and
 * the work of a step outside the plan. With a second tier, it also measures how much transfers slow the computation that they
 * overlap with (rm_tier.cost_ns_per_mib). Private to the session. docs/notes/planner.md says how well it predicts.
 *
 * The key of a time is the machine (processor, instruction set, threads, BLAS library, Remat's version) and every call of the
 * program with its op, attributes and shapes. Shapes include the tile's length, and the last tile, which may be short, is a stage
 * kind of its own. So the efficiency of longer batched products is measured, not modelled. */
#ifndef RM_CALIBRATE_H
#define RM_CALIBRATE_H

#include "engine/session/session.h"

/* Upper bound on the time that one session spends measuring. */
#define RM_CALIBRATION_SECONDS 4.5

/* Reads times from the file config->calibration. True if it had all of them; the session's problem then has measured times. */
remat_status rm_session_calibrate_from_file(remat_session *session, const remat_config *config, bool *complete);

/* Measures for about `seconds`, in a block of at most `block_bytes`, which it frees before it returns, and puts the times into the session's problem. It
 * also writes them to the file config->calibration, unless that is "" or cannot be written, or other programs used the processors
 * meanwhile (session->measured_busy). A program that does not fit in the block keeps its guessed time, scaled like the measured ones
 * of its stage kind. MEMORY; DEVICE. */
remat_status rm_session_calibrate(remat_session *session, const remat_config *config, uint64_t block_bytes,
                                  double seconds);

#endif
