/* joining.h: the time between a rank's first connection and the open group. Every wait in it is for other ranks, and goes by
 * this, whatever the engine. Each rank leaves in the store how far it has come and, twice a second, that it lives. The lowest rank
 * that lives reads what all have left: it tells people whom the others wait for, and ends the wait for all when it cannot
 * come to an end (a rank died, left, failed) or has lasted for longer than config->join_ms.
 *
 *     rm_joining_begin(config, &joining);
 *     rm_joining_step(joining, "connecting");                 // all ranks take the same steps
 *     TRY(rm_joining_get(joining, key, value, ...));          // waits for a key
 *     while (!there) TRY(rm_joining_pause(joining, &pause));  // waits for something else
 *     rm_joining_end(joining, status);                        // the others hear of a failure
 *
 * Engines find it in config->joining. */
#ifndef RM_JOINING_H
#define RM_JOINING_H

#include "dist/group/group.h"

/* A thread gives the signs of life, a second one talks where config->say is set. `config` is borrowed. Without a store (MPI will
 * make one) nobody can be named, and the time is over all the same. */
remat_status rm_joining_begin(const rm_group_config *config, rm_joining **out);

/* This rank has come as far as all others will: from here it waits for those that have not. `doing`, which must stay, is what it does
 * then: "connecting by Gloo". The time counts anew. */
void rm_joining_step(rm_joining *joining, const char *doing);

/* PEER: the wait is over, with the same sentence on all ranks; else OK. Asks nobody. */
remat_status rm_joining_look(rm_joining *joining);
/* As rm_joining_look, after a pause, which is longer each time. *pause_us: 0 before the first. */
remat_status rm_joining_pause(rm_joining *joining, int64_t *pause_us);
/* rm_kv_get that waits in this way. */
remat_status rm_joining_get(rm_joining *joining, const char *key, void *value, uint32_t capacity, uint32_t *bytes);

/* For how long this rank may still wait in this step, in ms; at least 1. For libraries that wait by themselves. */
int64_t rm_joining_left_ms(rm_joining *joining);

/* The group is open, or `status` says that it will not be: then the others are told remat_last_error(), which stays. After this,
 * looking is always OK. */
void rm_joining_end(rm_joining *joining, remat_status status);
void rm_joining_free(rm_joining *joining); /* after the end; NULL allowed */

#endif
