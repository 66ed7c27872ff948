/* planning.h: chooses a session's two schedules, training and evaluation, for its chain. Private to the session. Main
 * entry: rm_session_make_plans.
 *
 * There are three kinds of times: standard (the same numbers on every machine), guessed (from the device's rates) and
 * measured (calibrate.h). Standard times decide whether a budget suffices, and the smallest that would: this answer
 * must not change from run to run, as measurements do. The best times available then choose the plan. Without a
 * calibration, on a device that computes, standard times choose it, so that the same flags give the same plan
 * everywhere. Predicted step times always use the best times available. */
#ifndef RM_PLANNING_H
#define RM_PLANNING_H

#include "engine/session/session.h"

/* 100 GFLOP/s, 10 GB/s, 2 microseconds per call. A chain is built with these. */
rm_rates rm_standard_rates(void);
/* standard_tier: a disk of 1 GB/s with one extra copy of each byte. tier_by_standard: sets a problem's second tier, if
 * any, to that speed. */
rm_tier rm_standard_tier(uint64_t host_bytes);
void rm_tier_by_standard(rm_tier *tier);

/* Without a calibration, measurements must not choose the plan, since they change from run to run. */
bool rm_session_plans_by_standard(const remat_session *session, const remat_config *config);

/* Fills session->training and ->evaluation. The chain has standard times before, and guessed or measured times
 * after. */
remat_status rm_session_make_plans(remat_session *session, const remat_config *config);

/* Bytes of activations: the larger of the two schedules. */
uint64_t rm_session_activations_bytes(const remat_session *session);

#endif
