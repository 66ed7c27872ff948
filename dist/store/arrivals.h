/* arrivals.h: the roll call before a group is opened: it ends when all ranks have come, and until then rank 0 tells people
 * whom it waits for and whom its store has refused. From here on groups watch their ranks by themselves. */
#ifndef RM_ARRIVALS_H
#define RM_ARRIVALS_H

#include "dist/group/group.h"

/* Collective, over config->store. *one_host: all ranks can share memory. PEER, on all ranks: one has died, or did not
 * come in time; the sentence names those that are missing. */
remat_status rm_wait_for_ranks(const rm_group_config *config, bool *one_host);

/* "rank 3 of 8", "ranks 1, 3-7 of 8": those r < size for which here[r] is false. */
void rm_missing_ranks(const bool *here, int32_t size, char *text, size_t bytes);

#endif
