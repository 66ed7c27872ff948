/* budget.h: the bytes that a memory budget limits, and the message if no plan fits. Private to the session.
 *
 *   budgeted = arena (resident | activations) + workspace + tables
 *
 * `tables` are the plan, the problem, the stages' programs and the executor's arrays: host memory that grows with the
 * number of stages. The rest of the process (code, libraries and their buffers) has a constant size, given in
 * docs/promises.md. */
#ifndef RM_BUDGET_H
#define RM_BUDGET_H

#include "engine/session/session.h"

/* The part of the budgeted bytes that differs between the ranks of a pipeline, without the plan: arrays, programs, buckets
 * and their send buffers. `chain`: that rank's part of the network. */
uint64_t rm_session_network_bytes(const remat_session *session, const rm_chain *chain);
uint64_t rm_session_workspace_bytes(const remat_session *session);
uint64_t rm_session_tables_bytes(const remat_session *session);
uint64_t
rm_session_budgeted_bytes(const remat_session *session); /* complete when training and evaluation have been planned */

/* Part of the budget that is left for the training schedule (rm_schedule_bytes), in a pipeline on the rank where most is
 * left; 1 if none is left, 0 if there is no budget. Call it after the evaluation has been planned. */
uint64_t rm_session_allowance(const remat_session *session, uint64_t budget_bytes);

/* Fails with INFEASIBLE. The message has the exact minimum, the plan step of its peak and the largest buffers there, in a
 * pipeline those of the rank that needs most. The session's training schedule must be the smallest that exists. */
remat_status rm_session_refuse(remat_session *session, uint64_t budget_bytes);

/* Final check after planning: a plan from the user, inference, or an evaluation larger than the training step may
 * exceed the budget. */
remat_status rm_session_check_budget(remat_session *session, uint64_t budget_bytes);

#endif
