/* hostlist.h: Slurm's short way of writing many host names, "node[01-03,7],login2", and its count of tasks, "2(x3),1".
 *
 *   list  = name { "," name }           name = text { "[" range { "," range } "]" text }, ending in a bracket if it has any
 *   range = number [ "-" number ]         leading zeros are kept: [08-11] is 08 09 10 11
 *
 * Two brackets in one name multiply, the last turning fastest. This agrees with scontrol (Slurm 22.05), which refuses text
 * behind the last bracket ("h[1-2].ib") as well; but scontrol lets empty names and open ranges pass, and gives names with
 * three brackets in an order of its own, of which the first is ours too. */
#ifndef RM_HOSTLIST_H
#define RM_HOSTLIST_H

#include "engine/status.h"

#define RM_HOST_BYTES 256 /* longest name, with its end */

/* Host number `index` (from 0) of the list, into `name`. INVALID: this is no list, or has fewer hosts. */
remat_status rm_hostlist_at(const char *list, int64_t index, char name[RM_HOST_BYTES]);
/* How many hosts; a list may name up to a million. */
remat_status rm_hostlist_count(const char *list, int64_t *count);

/* Tasks on node number `node` of "2(x3),1". INVALID: this is no such text, or has fewer nodes. */
remat_status rm_tasks_on_node(const char *text, int64_t node, int64_t *tasks);

#endif
