/* test_shared_library.c: libraries that are opened on demand: the search order, and the messages for missing,
 * unreadable and too old ones. The mathematics library stands for NVIDIA's. */
#define _GNU_SOURCE
#include "engine/shared_library.h"
#include "tests/says.h"
#include "tests/suite.h"

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MATHS "libm.so.6"
#define VARIABLE "REMAT_TEST_LIBRARY"

static rm_shared_library library(const char *name, const char *folders) {
    return (rm_shared_library){.name = name,
                               .folders = folders,
                               .variable = VARIABLE,
                               .needs = "this test needs",
                               .install = "the maths",
                               .oldest = "maths 9"};
}

static void expect_missing(remat_status status, const char *sentence) {
    ck_assert_int_eq(status, REMAT_MISSING);
    ck_says_all(remat_last_error(), sentence);
}

START_TEST(libraries_are_found_by_name) {
    rm_shared_library maths = library(MATHS, "");
    void *handle = NULL;
    double (*root)(double) = NULL;
    unsetenv(VARIABLE);
    ck_assert(!rm_shared_library_is_named(&maths));
    ck_assert_int_eq(rm_shared_library_open(&maths, &handle), REMAT_OK);
    ck_assert_int_eq(rm_shared_library_find(&maths, handle, "sqrt", &root), REMAT_OK);
    ck_assert_double_eq(root(9), 3);
    expect_missing(rm_shared_library_find(&maths, handle, "square_the_circle", &root),
                   MATHS "|square_the_circle|old|maths 9");
}
END_TEST

START_TEST(libraries_are_found_in_folders) {
    char folder[] = "/tmp/remat-library-XXXXXX", link[60], folders[80];
    void *handle = NULL;
    Dl_info maths;
    ck_assert(dladdr(dlsym(dlopen(MATHS, RTLD_NOW), "sqrt"), &maths));
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(link, sizeof link, "%s/libelsewhere.so.3", folder);
    ck_assert_int_eq(symlink(maths.dli_fname, link), 0);
    snprintf(folders, sizeof folders, "/nowhere:%s", folder);
    unsetenv(VARIABLE);
    rm_shared_library there = library("libelsewhere.so.3", folders), nowhere = library("libelsewhere.so.3", "/nowhere");
    ck_assert_int_eq(rm_shared_library_open(&there, &handle), REMAT_OK);
    ck_assert_ptr_nonnull(dlsym(handle, "sqrt"));
    expect_missing(rm_shared_library_open(&nowhere, &handle), "this test|libelsewhere.so.3");
    expect_missing(rm_shared_library_open(&nowhere, &handle), "the maths|LD_LIBRARY_PATH|" VARIABLE);
    unlink(link);
    rmdir(folder);
}
END_TEST

/* If the variable names a file, no other file is tried. */
START_TEST(environment_variable_names_the_file) {
    rm_shared_library maths = library(MATHS, ""), nothing = library("libnothing.so.1", "");
    void *handle = NULL;
    setenv(VARIABLE, "", 1);
    ck_assert(!rm_shared_library_is_named(&maths));
    ck_assert_int_eq(rm_shared_library_open(&maths, &handle), REMAT_OK);
    setenv(VARIABLE, MATHS, 1);
    ck_assert(rm_shared_library_is_named(&nothing));
    ck_assert_int_eq(rm_shared_library_open(&nothing, &handle), REMAT_OK);
    setenv(VARIABLE, "/nowhere/lib.so", 1);
    expect_missing(rm_shared_library_open(&maths, &handle), VARIABLE "=/nowhere/lib.so");
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("shared_library");
    tcase_add_test(cases, libraries_are_found_by_name);
    tcase_add_test(cases, libraries_are_found_in_folders);
    tcase_add_test(cases, environment_variable_names_the_file);
    return run_cases("shared_library", cases);
}
