/* heartbeat.h: signs of life through the store, for groups whose engine has none of its own (mpi, gloo: a stopped process keeps
 * its connections, so nobody notices before a time-out). Each rank says twice a second that it lives, and listens to the next
 * one; ranks_watch.c makes sentences of it. */
#ifndef RM_HEARTBEAT_H
#define RM_HEARTBEAT_H

#include "dist/group/group.h"

typedef struct rm_heartbeat rm_heartbeat;

/* On every rank. Group and store are borrowed. */
remat_status rm_heartbeat_start(rm_group *group, rm_kv *store, const char *host, rm_heartbeat **out);
/* NULL allowed. From here on silence means that this rank has left. */
void rm_heartbeat_stop(rm_heartbeat *beat);

/* A silence that is worth a word: three signs' worth; more where asking the store takes long, as over great distances. */
double rm_heartbeat_quiet_s(rm_heartbeat *beat);
/* For how many seconds the next rank has said nothing; `who` ("rank 2 on node7 (process 4711)") gets its name. 0: all is
 * well, or it has left. */
double rm_heartbeat_silence(rm_heartbeat *beat, char *who, size_t bytes);
/* For how many seconds the store has owed this rank an answer, and when that is worth a word. */
double rm_heartbeat_store_silence(rm_heartbeat *beat);
double rm_heartbeat_store_quiet_s(rm_heartbeat *beat);
/* For how many seconds the group has been known to have failed; `sentence` gets why. 0: it has not. */
double rm_heartbeat_failure(rm_heartbeat *beat, char *sentence, size_t bytes);

#endif
