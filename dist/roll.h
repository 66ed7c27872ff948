/* roll.h: the roll call before a group is opened: it ends when all ranks have come, and until then rank 0 tells people
 * whom it waits for and whom its store has refused. From here on groups watch their ranks by themselves. */
#ifndef RM_ROLL_H
#define RM_ROLL_H

#include "dist/group.h"

/* Collective, over config->store. *one_host: all ranks can share memory. PEER, on all ranks: one has died, or did not
 * come in time; the sentence names those that are missing. */
remat_status rm_roll_call(const rm_group_config *config, bool *one_host);

/* "rank 3 of 8", "ranks 1, 3-7 of 8": those r < size for which here[r] is false. */
void rm_roll_missing(const bool *here, int32_t size, char *text, size_t bytes);

#endif
