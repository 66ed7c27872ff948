/* budget.h: what a memory budget is compared with, and what is said when nothing fits. Private to the session.
 *
 *   budgeted = arena (resident | activations) + workspace + tables
 *
 * `tables` are the plan, the problem, the stages' programs and the executor's arrays: host memory that grows with the number
 * of stages. The process beside that (code, libraries and their own buffers) does not grow with anything; docs/promises.md
 * says how much it is. */
#ifndef RM_BUDGET_H
#define RM_BUDGET_H

#include "engine/session/session.h"

uint64_t rm_session_workspace_bytes(const remat_session *session);
uint64_t rm_session_tables_bytes(const remat_session *session);
uint64_t
rm_session_budgeted_bytes(const remat_session *session); /* complete once training and evaluation are planned */

/* Of a budget, what is left for the training schedule (rm_schedule_bytes); 1 when nothing is, 0 when there is no budget.
 * The evaluation has been planned. */
uint64_t rm_session_allowance(const remat_session *session, uint64_t budget_bytes);

/* INFEASIBLE, with the exact minimum, where it is reached and what is largest there; for a session whose training
 * schedule is the smallest there is. */
remat_status rm_session_refuse(const remat_session *session, uint64_t budget_bytes);

/* What is left to check when all is planned: plans that were given, inference, an evaluation larger than the step. */
remat_status rm_session_check_budget(const remat_session *session, uint64_t budget_bytes);

#endif
