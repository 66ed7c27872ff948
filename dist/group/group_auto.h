/* group_auto.h: which engine a group uses. */
#ifndef RM_GROUP_AUTO_H
#define RM_GROUP_AUTO_H

#include "dist/group/group.h"

/* The engine config->engine names. "auto" or NULL: local when all ranks are on one host; across hosts mpi when MPI's
 * launcher started this process, else gloo. Ranks tell each other through the store where they are, so all choose
 * alike. MISSING names what would have to be installed. */
remat_status rm_group_choose(const rm_group_config *config, const rm_group_api **out);

extern const char *const rm_engine_names[]; /* "local", ...: all there can be; NULL ends them */

/* What the engine `name` computes with, and its version: rm_group_api.library. MISSING: it is not in this build, or cannot be
 * loaded on this machine. */
remat_status rm_engine_library(const char *name, char *text, size_t bytes);

#endif
