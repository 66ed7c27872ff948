/* module.h: engines in files of their own, remat_mpi.so and remat_gloo.so, loaded by who asks for one. A program that is linked
 * to libmpi or libgloo cannot start on a machine without them, and takes 1.5 ms longer for each, of 5, wherever it starts. An
 * engine's file ends with RM_GROUP_MODULE(its name).
 *
 * A module uses the functions of the program that opens it (dist/module.list names them, and the linker makes them visible):
 * one error text, one count of allocations. */
#ifndef RM_MODULE_H
#define RM_MODULE_H

#include "dist/group.h"

/* Programs and modules of different builds must not meet. */
typedef struct {
    const char *version;
    uint64_t sizes;
    const rm_group_api *api;
} rm_group_module;

#define RM_GROUP_MODULE_SIZES                                                                                          \
    (sizeof(rm_group_api) << 40 | sizeof(rm_group_config) << 20 | sizeof(rm_collective) << 8 | (uint64_t)RM_WIRES)
#define RM_GROUP_MODULE(name)                                                                                          \
    const rm_group_module rm_group_module_##name = {REMAT_VERSION, RM_GROUP_MODULE_SIZES, &rm_group_##name}

/* Opens remat_NAME.so once, and for good: from the folder REMAT_MODULES, from beside the program, the installation's lib/remat,
 * the build tree. MISSING when it is not there or cannot be loaded, with a sentence that says why. */
remat_status rm_module_open(const char *name, const rm_group_api **out);

#endif
