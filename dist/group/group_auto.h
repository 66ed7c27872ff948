/* group_auto.h: chooses the engine of a group. */
#ifndef RM_GROUP_AUTO_H
#define RM_GROUP_AUTO_H

#include "dist/group/group.h"

/* Returns the engine that config->engine names. "auto" or NULL: local if all ranks are on one host; across hosts, mpi
 * if MPI's launcher started this process, otherwise gloo. Ranks exchange their hosts through the store, so all choose
 * alike. MISSING: the message says what to install. */
remat_status rm_group_choose(const rm_group_config *config, const rm_group_api **out);

/* Why a group of which `wanted` was asked ("auto", "local", ..) has the engine `engine`; completes "because ..". */
const char *rm_engine_reason(const char *wanted, const char *engine);

extern const char *const rm_engine_names[]; /* "local", ...: all engines; NULL-terminated */

/* Describes the library of the engine `name` and its version: rm_group_api.library. MISSING: it is not in this build,
 * or cannot be loaded on this machine. */
remat_status rm_engine_library(const char *name, char *text, size_t bytes);

#endif
