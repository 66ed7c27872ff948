/* group_auto.h: which engine a group uses. */
#ifndef RM_GROUP_AUTO_H
#define RM_GROUP_AUTO_H

#include "dist/group/group.h"

/* The engine config->engine names. "auto" or NULL: local when all ranks are on one host; across hosts mpi when MPI's
 * launcher started this process, else gloo. Ranks tell each other through the store where they are, so all choose
 * alike. MISSING names what would have to be installed. */
remat_status rm_group_choose(const rm_group_config *config, const rm_group_api **out);

#endif
