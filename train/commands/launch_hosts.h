/* launch_hosts.h: the hosts of `remat launch -H` and --hostfile, and the command that starts the launcher of each. */
#ifndef RM_LAUNCH_HOSTS_H
#define RM_LAUNCH_HOSTS_H

#include "dist/launch/launch.h"
#include "dist/store/hostlist.h"

typedef struct {
    char name[RM_HOST_BYTES];
    int64_t slots, ranks, first; /* `first`: the number of its first rank */
} rm_slots;

typedef struct {
    rm_slots *host; /* in the order in which they were first named */
    int32_t n;
    int64_t ranks; /* of the job */
} rm_slots_list;

/* "a:2,b,a:1": host a has 3 slots, b has 1. `where` names the flag. */
remat_status rm_slots_parse(const char *where, const char *text, rm_slots_list *out);
/* Open MPI's "host slots=2", or "host:2", one host a line; # begins a comment. */
remat_status rm_slots_read(const char *path, rm_slots_list *out);
void rm_slots_free(rm_slots_list *list);

/* Fills the slots in order. np -1: all. Hosts without ranks are dropped. INVALID: too few slots. */
remat_status rm_slots_divide(rm_slots_list *list, int64_t np);

bool rm_slots_is_here(const char *name); /* this host */

#endif
