/* planning.h: which plan a session runs: from a chain to its two schedules. Private to the session. Main entry:
 * rm_session_make_plans.
 *
 * Times come in three qualities: standard (the same numbers on every machine), guessed (from the device's rates) and measured
 * (calibrate.h). Whether a budget is enough, and the smallest that would be, is decided by standard times: that answer must
 * not differ from run to run, as anything measured does. The plan that runs is then chosen by the best times there are; without a
 * calibration, on a device that computes, by standard times again, so that the same flags give the same plan everywhere. The
 * times that it is said to take are the best there are in any case. */
#ifndef RM_PLANNING_H
#define RM_PLANNING_H

#include "engine/session/session.h"

/* What a chain is built with: 100 GFLOP/s, 10 GB/s, 2 microseconds a call. */
rm_rates rm_standard_rates(void);
/* A disk of 1 GB/s, whose bytes are copied once more; and a problem's second tier, where it has one, as fast as that. */
rm_tier rm_standard_tier(uint64_t host_bytes);
void rm_tier_by_standard(rm_tier *tier);

/* Without a calibration nothing that is measured may choose between plans: it differs from run to run. */
bool rm_session_plans_by_standard(const remat_session *session, const remat_config *config);

/* Fills session->training and ->evaluation; the chain has standard times before, and guessed or measured ones after. */
remat_status rm_session_make_plans(remat_session *session, const remat_config *config);

/* The larger of what the two schedules place. */
uint64_t rm_session_activations_bytes(const remat_session *session);

#endif
