/* module.h: engines in files of their own, remat_mpi.so and remat_gloo.so, which are loaded on demand. A program linked
 * to libmpi or libgloo would not start on a machine without them, and each would add 1.5 ms to a start of 5 ms. An
 * engine's file ends with RM_GROUP_MODULE(its name), and includes module_calls.h last.
 *
 * A module calls the library that opens it through a table of functions, so that both share one error text and one
 * count of allocations. */
#ifndef RM_MODULE_H
#define RM_MODULE_H

#include "dist/group/group.h"

/* Programs and modules of different builds must not be mixed. This stamp identifies a module's build. It is read from
 * the file, because opening a module runs its code and that of the libraries it needs. */
typedef struct {
    char mark[24], version[16];
    uint64_t sizes;
    char calls[800]; /* the names in the table of functions, which a module accesses by position */
} rm_module_stamp;

#define RM_MODULE_MARK "module of Remat, build:" /* 23 characters */
#define RM_MODULE_SIZES                                                                                                \
    (sizeof(rm_group_api) << 40 | sizeof(rm_group_config) << 20 | sizeof(rm_collective) << 8 | (uint64_t)RM_WIRES)

typedef struct rm_module_calls rm_module_calls; /* module_calls.h */

typedef struct {
    rm_module_stamp stamp;
    const rm_group_api *api;
    const rm_module_calls **calls; /* set before any function of api is called */
} rm_group_module;

#define RM_GROUP_MODULE(name)                                                                                          \
    const rm_group_module rm_group_module_##name = {                                                                   \
        {RM_MODULE_MARK, REMAT_VERSION, RM_MODULE_SIZES, RM_MODULE_NAMES}, &rm_group_##name, &rm_calls}

/* Opens remat_NAME.so once and for the life of the process: from the folder REMAT_MODULES, from the program's folder,
 * or from the installation's lib/remat. MISSING: it does not exist or cannot be loaded; the message says why. */
bool rm_module_is_there(const char *name); /* whether its file exists; only rm_module_open checks whether it fits */
remat_status rm_module_open(const char *name, const rm_group_api **out);

#endif
