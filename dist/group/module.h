/* module.h: engines in files of their own, remat_mpi.so and remat_gloo.so, loaded by who asks for one. A program that is linked
 * to libmpi or libgloo cannot start on a machine without them, and takes 1.5 ms longer for each, of 5, wherever it starts. An
 * engine's file ends with RM_GROUP_MODULE(its name), and includes module_calls.h last.
 *
 * A module uses the functions of the library that opens it, through a table that it is given then: one error text, one count
 * of allocations. */
#ifndef RM_MODULE_H
#define RM_MODULE_H

#include "dist/group/group.h"

/* Programs and modules of different builds must not meet. This says which build a module is of, and is found in its file: to
 * open a module is to run its code, and that of the libraries it needs. */
typedef struct {
    char mark[24], version[16];
    uint64_t sizes;
    char calls[800]; /* the names in the table of functions: a module finds them by their position */
} rm_module_stamp;

#define RM_MODULE_MARK "module of Remat, build:" /* 23 characters */
#define RM_MODULE_SIZES                                                                                                \
    (sizeof(rm_group_api) << 40 | sizeof(rm_group_config) << 20 | sizeof(rm_collective) << 8 | (uint64_t)RM_WIRES)

typedef struct rm_module_calls rm_module_calls; /* module_calls.h */

typedef struct {
    rm_module_stamp stamp;
    const rm_group_api *api;
    const rm_module_calls **calls; /* set before anything of api is called */
} rm_group_module;

#define RM_GROUP_MODULE(name)                                                                                          \
    const rm_group_module rm_group_module_##name = {                                                                   \
        {RM_MODULE_MARK, REMAT_VERSION, RM_MODULE_SIZES, RM_MODULE_NAMES}, &rm_group_##name, &rm_calls}

/* Opens remat_NAME.so once, and for good: from the folder REMAT_MODULES, from beside the program, or the installation's
 * lib/remat. MISSING when it is not there or cannot be loaded, with a sentence that says why. */
bool rm_module_is_there(const char *name); /* its file is; only rm_module_open tells whether it fits */
remat_status rm_module_open(const char *name, const rm_group_api **out);

#endif
