/* test_module.c: a module of this build is opened; any other file is not even loaded. */
#include <dlfcn.h>

#include "dist/group/group_auto.h"
#include "dist/group/module.h"
#include "memory/host.h"
#include "tests/dist/ranks.h"
#include "tests/suite.h"

#if defined(REMAT_HAVE_MPI)
#define SOME "mpi"
#define LIBRARY "MPI"
#elif defined(REMAT_HAVE_GLOO)
#define SOME "gloo"
#define LIBRARY "Gloo"
#endif

#ifdef SOME

#define OF_BUILD(version) RM_MODULE_MARK "\\x00" version

static const char *copied(const char *folder, const char *old, const char *new) {
    static char path[100];
    char command[800];
    snprintf(path, sizeof path, "%s/remat_" SOME ".so", folder);
    snprintf(command, sizeof command, "sed 's/%s/%s/' %s/remat_" SOME ".so >%s", old, new, RM_BINARY_DIR, path);
    ck_assert_int_eq(system(command), 0);
    return path;
}

START_TEST(modules_of_other_builds_are_refused) {
    char folder[] = "/tmp/remat-modules-XXXXXX";
    const rm_group_api *api = NULL;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("REMAT_MODULES", folder, 1);
    const char *path = copied(folder, OF_BUILD(REMAT_VERSION), OF_BUILD("9.8.7"));
    ck_fails(rm_module_open(SOME, &api), MISSING, "belongs to another build of Remat (9.8.7)");
    ck_assert_ptr_null(dlopen(path, RTLD_NOW | RTLD_NOLOAD)); /* none of its code has run */
    ck_assert_int_eq(truncate(path, 1000), 0);
    ck_fails(rm_module_open(SOME, &api), MISSING, "(not a module)");
    copied(folder, "rm_agree rm_failure_abort", "rm_failure_abort rm_agree"); /* a table in another order */
    ck_fails(rm_module_open(SOME, &api), MISSING, "belongs to another build of Remat");
    ck_assert_ptr_null(dlopen(path, RTLD_NOW | RTLD_NOLOAD));
    char library[200];
    ck_fails(rm_engine_library(SOME, library, sizeof library), MISSING, "belongs to another build of Remat");
    copied(folder, "same", "same");
    ck_ok(rm_module_open(SOME, &api));
    ck_assert_str_eq(api->name, SOME);
    ck_ok(rm_engine_library(SOME, library, sizeof library));
    const char *version = strpbrk(library, "0123456789");
    ck_assert_msg(strstr(library, LIBRARY) && version, "%s has the library '%s'", SOME, library);
    unlink(path);
    rmdir(folder);
}
END_TEST

#endif

int main(void) {
    TCase *tests = tcase_create("module");
#ifdef SOME
    tcase_add_test(tests, modules_of_other_builds_are_refused);
#endif
    return run_cases("module", tests);
}
