/* parts.h: the micro steps of an update as parts that are in flight together: GPipe's schedule. In a pipeline of a
 * network without time, or with layers that need all timesteps at once, they take the place of tiles: all parts run
 * forward, then all run backward, each in the order of the calls, so that the ranks work on different parts at the same
 * time. A part has the programs, the dropout masks and
 * the order of sums of a micro step, and so its bits.
 *
 * Each part follows the session's plan, with tables of its own. Buffers that a part holds when its forward half ends,
 * and copies of its inputs, once results and outputs, are its own; all others are shared, since one part runs at a time:
 *
 *     arena   | shared | part 0: activations, copies | part 1 | .. | part n - 1 |
 *     tier    | part 0 | part 1 | .. | part n - 1 |                                                                   */
#ifndef RM_PARTS_H
#define RM_PARTS_H

#include "engine/session/session.h"

void rm_parts_choose(remat_session *session); /* sets session->parts.n, once the chain has been built */
/* Bytes of the copies of one part. */
uint64_t rm_parts_copied_bytes(const rm_chain *chain);
/* Places a settled training schedule again, for all parts, each with `copied` bytes of copies. With n = 1 it leaves the
 * schedule alone. MEMORY. */
remat_status rm_parts_place(remat_session *session, uint64_t copied, rm_schedule *schedule);
uint64_t rm_parts_room(const remat_session *session); /* bytes of one part in the second tier */
uint64_t rm_parts_table_bytes(const remat_session *session); /* host memory, of all parts but the first */
/* Makes the tables of all parts; those of the first are in the runner. MEMORY. */
remat_status rm_parts_allocate(remat_session *session);
void rm_parts_free(remat_session *session);

/* begin: the forward half of this part runs next. keep: it has run. take: its backward half runs next. */
void rm_parts_begin(remat_session *session, int part);
void rm_parts_keep(remat_session *session, int part);
void rm_parts_take(remat_session *session, int part);
/* After the backward half: keeps the part's outputs, for remat_pipeline_part. */
void rm_parts_keep_outputs(remat_session *session, int part);

#endif
