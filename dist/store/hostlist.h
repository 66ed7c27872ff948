/* hostlist.h: Slurm's short notation for many host names, "node[01-03,7],login2", and for its task counts, "2(x3),1".
 *
 *   list  = name { "," name }           name = text { "[" range { "," range } "]" text }, ending in a bracket if it has any
 *   range = number [ "-" number ]         leading zeros are kept: [08-11] is 08 09 10 11
 *
 * Two brackets in one name multiply, and the last one varies fastest. This agrees with scontrol (Slurm 22.05), which
 * also refuses text after the last bracket ("h[1-2].ib"). Unlike this code, scontrol accepts empty names and open
 * ranges, and expands names with three brackets in an order of its own, of which the first name is the same. */
#ifndef RM_HOSTLIST_H
#define RM_HOSTLIST_H

#include "engine/status.h"

#define RM_HOST_BYTES 256 /* longest name, including its terminating 0 */

/* Writes host number `index` (from 0) of the list to `name`. INVALID: not a list, or too few hosts. */
remat_status rm_hostlist_at(const char *list, int64_t index, char name[RM_HOST_BYTES]);
/* The number of hosts; a list may contain up to a million. */
remat_status rm_hostlist_count(const char *list, int64_t *count);

/* The number of tasks on node number `node` of "2(x3),1". INVALID: not such a text, or too few nodes. */
remat_status rm_tasks_on_node(const char *text, int64_t node, int64_t *tasks);

#endif
