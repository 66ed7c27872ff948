/* calibrate.h: measured times in place of those guessed from a device's rates: of every program that a plan may run, and of
 * what a step does beside its plan; with a second tier, also of what transfers take from the computation beside which they
 * go on (rm_tier.cost_ns_per_mib). Private to the session. docs/notes/planner.md says how well it predicts.
 *
 * Times are kept by program: machine (processor, instruction set, threads, library of products, Remat's version), and every
 * call in it with its op, attributes and shapes. A tile's length is part of the shapes, and the last tile, short perhaps, is
 * a class of its own: so how efficiency changes with the length of a batched segment is measured, not modelled. */
#ifndef RM_CALIBRATE_H
#define RM_CALIBRATE_H

#include "engine/session/session.h"

/* The limit of all measuring for one session. */
#define RM_CALIBRATION_SECONDS 4.5

/* From the file config->calibration alone: true when all of it was there, and the session's problem has measured times now. */
remat_status rm_session_calibrate_from_file(remat_session *session, const remat_config *config, bool *complete);

/* Measures in a block of at most `block_bytes`, which is given back before this returns, puts the times into the session's
 * problem, and keeps them in the file config->calibration ("", or one that cannot be written: nowhere), unless other programs
 * took the processors meanwhile (session->measured_busy). What does not fit the
 * block keeps its guessed time, scaled as the measured ones of its class were. MEMORY; DEVICE. */
remat_status rm_session_calibrate(remat_session *session, const remat_config *config, uint64_t block_bytes);

#endif
