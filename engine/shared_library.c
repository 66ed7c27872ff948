/* shared_library.c: see shared_library.h. */
#include "engine/shared_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLAGS = RTLD_NOW | RTLD_LOCAL };

/* NVIDIA's Python packages have one folder for each library. */
static void *open_in_folders(const rm_shared_library *library) {
    char path[600];
    void *handle = NULL;
    for (const char *at = library->folders; *at && !handle;) {
        int length = (int)strcspn(at, ":");
        snprintf(path, sizeof path, "%.*s/%s", length, at, library->name);
        handle = dlopen(path, FLAGS);
        at += length + (at[length] == ':');
    }
    return handle;
}

bool rm_shared_library_is_named(const rm_shared_library *library) {
    const char *named = getenv(library->variable);
    return named && *named;
}

remat_status rm_shared_library_open(const rm_shared_library *library, void **handle) {
    char why[300];
    if (rm_shared_library_is_named(library)) {
        const char *named = getenv(library->variable);
        *handle = dlopen(named, FLAGS);
        REQUIRE(*handle, MISSING, "%s=%s cannot be opened: %.300s", library->variable, named, dlerror());
        return REMAT_OK;
    }
    if ((*handle = dlopen(library->name, FLAGS))) return REMAT_OK;
    snprintf(why, sizeof why, "%s", dlerror());
    *handle = open_in_folders(library);
    REQUIRE(
        *handle, MISSING,
        "%s %s, and it is not on this machine (%s): install %s, add its folder to LD_LIBRARY_PATH, or name the file "
        "in %s",
        library->needs, library->name, why, library->install, library->variable);
    return REMAT_OK;
}

/* dlsym returns data pointers; POSIX allows this conversion. */
remat_status rm_shared_library_find(const rm_shared_library *library, void *handle, const char *name, void *function) {
    void *found = dlsym(handle, name);
    REQUIRE(found, MISSING, "%s has no function %s: it is too old for this Remat, which needs %s", library->name, name,
            library->oldest);
    *(void **)function = found;
    return REMAT_OK;
}
