/* module.c: finds and loads remat_mpi.so and remat_gloo.so. Main entry: rm_module_open. */
#define _GNU_SOURCE
#include "dist/group/module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dist/group/module_calls.h"

static const rm_module_calls calls = {
#define CALL(name) .name = name,
    RM_MODULE_CALLS(CALL)
#undef CALL
};

/* ---- Finding the file -------------------------------------------------------------------------------------------- */

static void cut_to_folder(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
}

/* The folder of this program; "" if unknown. */
static void own_folder(char *text, size_t bytes) {
    ssize_t length = readlink("/proc/self/exe", text, bytes - 1);
    text[length > 0 ? length : 0] = 0;
    cut_to_folder(text);
}

/* The folder of libremat.so or, if the library is linked statically, of the program. */
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

/* The first candidate that exists; false: none. The installation is located from the program `remat` or from
 * libremat.so, so that it can be moved. Another program that contains the static library uses the original installation
 * folder or REMAT_MODULES. */
static bool find_file(const char *name, char *path, size_t bytes) {
    const char *told = secure_getenv("REMAT_MODULES");
    char own[PATH_MAX], library[PATH_MAX];
    own_folder(own, sizeof own);
    library_folder(library, sizeof library);
    if (is_in(told ? told : "", "", name, path, bytes) || is_in(own, "", name, path, bytes) ||
        is_in(library, "/remat", name, path, bytes) || is_in(own, "/" RM_MODULES_FROM_BIN, name, path, bytes) ||
        is_in(RM_MODULES_INSTALLED, "", name, path, bytes))
        return true;
    snprintf(path, bytes, "%s, in %s/%s and in %s", own, own, RM_MODULES_FROM_BIN, RM_MODULES_INSTALLED);
    return false;
}

/* ---- Opening the file -------------------------------------------------------------------------------------------- */

/* Reads the module's stamp without running any of its code. Returns false if there is none. */
static bool read_stamp(const char *path, rm_module_stamp *stamp) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    void *bytes = MAP_FAILED;
    size_t size = file >= 0 && !fstat(file, &about) && about.st_size > 0 ? (size_t)about.st_size : 0;
    if (size) bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (file >= 0) close(file);
    if (bytes == MAP_FAILED) return false;
    const char *found = memmem(bytes, size, RM_MODULE_MARK, sizeof RM_MODULE_MARK);
    bool whole = found && size - (size_t)(found - (const char *)bytes) >= sizeof *stamp;
    if (whole) memcpy(stamp, found, sizeof *stamp);
    munmap(bytes, size);
    return whole;
}

static remat_status check_stamp(const char *path) {
    rm_module_stamp stamp;
    bool read = read_stamp(path, &stamp);
    REQUIRE(read && !strncmp(stamp.version, REMAT_VERSION, sizeof stamp.version) && stamp.sizes == RM_MODULE_SIZES &&
                !strncmp(stamp.calls, RM_MODULE_NAMES, sizeof stamp.calls),
            MISSING, "%s belongs to another build of Remat (%.16s); install both together", path,
            read ? stamp.version : "not a module");
    return REMAT_OK;
}

/* Opened with global visibility, since plug-ins of Open MPI look for its symbols there. Never closed, since MPI cannot
 * be initialised twice. */
static remat_status load(const char *name, const char *path, const rm_group_api **out) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "rm_group_module_%s", name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    REQUIRE(handle, MISSING, "%s cannot be loaded (%.500s); install the libraries that it needs", path, dlerror());
    const rm_group_module *module = dlsym(handle, symbol);
    REQUIRE(module, MISSING, "%s is another module; install Remat again", path);
    *module->calls = &calls;
    *out = module->api;
    return REMAT_OK;
}

bool rm_module_is_there(const char *name) {
    char path[3 * PATH_MAX];
    return find_file(name, path, sizeof path);
}

remat_status rm_module_open(const char *name, const rm_group_api **out) {
    char path[3 * PATH_MAX];
    REQUIRE(find_file(name, path, sizeof path), MISSING,
            "cannot find remat_%s.so, which belongs to this Remat, in %.700s; set REMAT_MODULES=DIR to the folder that "
            "contains it, or install Remat again",
            name, path);
    TRY(check_stamp(path));
    return load(name, path, out);
}
