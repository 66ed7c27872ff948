/* heartbeat.h: heartbeats through the store, for groups whose engine has none (mpi, gloo: a stopped process keeps its connections, so
 * nothing notices it before a time-out). Each rank sends a heartbeat twice a second and watches the next rank; ranks_watch.c reports
 * silence. */
#ifndef RM_HEARTBEAT_H
#define RM_HEARTBEAT_H

#include "dist/group/group.h"

typedef struct rm_heartbeat rm_heartbeat;

/* On every rank. Group and store are borrowed. */
remat_status rm_heartbeat_start(rm_group *group, rm_kv *store, const char *host, rm_heartbeat **out);
/* NULL allowed. Tells the others that this rank has left, so that its silence is no failure. */
void rm_heartbeat_stop(rm_heartbeat *beat);

/* The silence after which to report: three heartbeats, or more if the store answers slowly. */
double rm_heartbeat_quiet_s(rm_heartbeat *beat);
/* Seconds since the next rank's last heartbeat; writes its name to `who` ("rank 2 on node7 (process 4711)"). 0: it is alive or has
 * left. */
double rm_heartbeat_silence(rm_heartbeat *beat, char *who, size_t bytes);
/* Seconds that this rank has waited for an answer of the store; 0: not worth a report. */
double rm_heartbeat_store_silence(rm_heartbeat *beat);
double rm_heartbeat_store_quiet_s(rm_heartbeat *beat);
/* Seconds since the group was found to have failed; writes the reason to `sentence`. 0: it has not failed. */
double rm_heartbeat_failure(rm_heartbeat *beat, char *sentence, size_t bytes);

#endif
