/* joining.h: waiting for other ranks between a rank's first connection and the open group, for all engines. Each rank
 * reports its progress in the store and sends a heartbeat twice a second. The lowest live rank reads all entries. It
 * tells the user which ranks the others wait for. It ends the wait for all ranks when a rank died, left or failed, or
 * when a step has lasted longer than config->join_ms.
 *
 *     rm_joining_begin(config, &joining);
 *     rm_joining_step(joining, "connecting");                 // all ranks take the same steps
 *     TRY(rm_joining_get(joining, key, value, ...));          // waits for a key
 *     while (!there) TRY(rm_joining_pause(joining, &pause));  // waits for something else
 *     rm_joining_end(joining, status);                        // reports a failure to the others
 *
 * Engines find it in config->joining. */
#ifndef RM_JOINING_H
#define RM_JOINING_H

#include "dist/group/group.h"

/* Starts a thread that sends heartbeats and, if config->say is set, one that reports waiting. `config` is borrowed.
 * Without a store (when MPI will make one), no rank can be named, but the time limit holds. */
remat_status rm_joining_begin(const rm_group_config *config, rm_joining **out);

/* This rank starts a step that all ranks take: from here it waits for those that have not reached it. `doing` describes
 * the step ("connecting by Gloo") and must stay valid. The time limit starts anew. */
void rm_joining_step(rm_joining *joining, const char *doing);

/* PEER if the wait is over, with the same message on all ranks; otherwise OK. Does not query the store. */
remat_status rm_joining_look(rm_joining *joining);
/* Sleeps, longer each time, and then returns rm_joining_look. *pause_us: 0 before the first call. */
remat_status rm_joining_pause(rm_joining *joining, int64_t *pause_us);
/* rm_kv_get that waits in this way. */
remat_status rm_joining_get(rm_joining *joining, const char *key, void *value, uint32_t capacity, uint32_t *bytes);

/* The remaining time for this step in ms, at least 1. For libraries that wait by themselves. */
int64_t rm_joining_left_ms(rm_joining *joining);

/* The group is open or, if `status` is an error, will not be; the others then get remat_last_error(), which is kept.
 * After this, rm_joining_look always returns OK. */
void rm_joining_end(rm_joining *joining, remat_status status);
void rm_joining_free(rm_joining *joining); /* after rm_joining_end; accepts NULL */

#endif
