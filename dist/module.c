/* module.c: finding and loading remat_mpi.so and remat_gloo.so. Main entry: rm_module_open. */
#define _GNU_SOURCE
#include "dist/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/agree.h"
#include "dist/blame.h"
#include "dist/invite.h"
#include "dist/scale.h"
#include "dist/scratch.h"
#include "dist/slices.h"
#include "memory/host.h"

/* What modules call, so that the program has it: the linker takes from an archive only what is asked for. The names are in
 * module.list too. */
static void *const needed_by_modules[] __attribute__((used)) = {
    remat_last_error,
    rm_fail,
    rm_fail_in,
    rm_malloc,
    rm_calloc,
    rm_free,
    rm_agree,
    rm_blame_begin,
    rm_blame_look,
    rm_blame_find,
    rm_blame_abort,
    rm_contribute,
    rm_scratch_take,
    rm_scratch_free,
    rm_slices_reduce,
    rm_is_sliced,

    rm_kv_set,
    rm_kv_close,
    rm_kv_get,
    rm_kv_lost,
    rm_kv_address,
    rm_invite_make,
    rm_invite_accept,
    rm_kind_text,
    rm_wire_bytes,
    rm_collective_in_bytes,
    rm_collective_out_bytes,
    rm_fingerprint_of,
};

static void cut_to_folder(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
}

/* The folder of this program; "" when it cannot be told. */
static void own_folder(char *text, size_t bytes) {
    ssize_t length = readlink("/proc/self/exe", text, bytes - 1);
    text[length > 0 ? length : 0] = 0;
    cut_to_folder(text);
}

/* The folder of libremat.so; of the program, again, where the library is part of it. */
static void library_folder(char *text, size_t bytes) {
    Dl_info info;
    bool known = dladdr((void *)(uintptr_t)rm_module_open, &info) && info.dli_fname;
    snprintf(text, bytes, "%s", known ? info.dli_fname : "");
    cut_to_folder(text);
}

static bool is_in(const char *folder, const char *below, const char *name, char *path, size_t bytes) {
    snprintf(path, bytes, "%s%s/remat_%s.so", folder, below, name);
    return *folder && !access(path, R_OK);
}

/* The first that exists, or false. The installation's folder is found from the program `remat` or from libremat.so, so that it
 * can be moved; a program of somebody else's that the archive is part of goes by where it was installed first, or is told. */
static bool find_file(const char *name, char *path, size_t bytes) {
    const char *told = getenv("REMAT_MODULES");
    char own[PATH_MAX], library[PATH_MAX];
    own_folder(own, sizeof own);
    library_folder(library, sizeof library);
    if (is_in(told ? told : "", "", name, path, bytes) || is_in(own, "", name, path, bytes) ||
        is_in(library, "/remat", name, path, bytes) || is_in(own, "/" RM_MODULES_FROM_BIN, name, path, bytes) ||
        is_in(RM_MODULES_INSTALLED, "", name, path, bytes) || is_in(RM_MODULES_BUILT, "", name, path, bytes))
        return true;
    snprintf(path, bytes, "%s, in %s/%s and in %s", own, own, RM_MODULES_FROM_BIN, RM_MODULES_INSTALLED);
    return false;
}

/* Globally visible: Open MPI opens plug-ins that look for its symbols there. Never closed: MPI cannot be begun twice. */
static remat_status load(const char *name, const char *path, const rm_group_api **out) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "rm_group_module_%s", name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    REQUIRE(handle, MISSING, "%s cannot be loaded (%.500s): is a library that it needs missing on this machine?", path,
            dlerror());
    const rm_group_module *module = dlsym(handle, symbol);
    REQUIRE(module && !strcmp(module->version, REMAT_VERSION) && module->sizes == RM_GROUP_MODULE_SIZES, MISSING,
            "%s belongs to another build of Remat (%s): install both together", path,
            module ? module->version : "not a module");
    *out = module->api;
    return REMAT_OK;
}

remat_status rm_module_open(const char *name, const rm_group_api **out) {
    char path[3 * PATH_MAX];
    REQUIRE(find_file(name, path, sizeof path), MISSING,
            "remat_%s.so is not there: this Remat was built with it, and looks for it in %.700s. Name the folder that "
            "it is in "
            "with REMAT_MODULES=DIR, or install Remat again",
            name, path);
    return load(name, path, out);
}
