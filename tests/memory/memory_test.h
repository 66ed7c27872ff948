/* memory_test.h: helpers for the tests of memory/: Check, macros that print a failed status, files as text, and the
 * problems of tests/problems/. */
#ifndef TEST_MEMORY_TEST_H
#define TEST_MEMORY_TEST_H

#include <check.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/status.h"
#include "memory/problem.h"
#include "tests/suite.h"

#define ck_ok(call)                                                                                                    \
    do {                                                                                                               \
        remat_status got_ = (call);                                                                                    \
        ck_assert_msg(got_ == REMAT_OK, "%s: %s", #call, remat_last_error());                                          \
    } while (0)

/* `call` fails with this status, and its message contains `words`. */
#define ck_fails(call, status, words)                                                                                  \
    do {                                                                                                               \
        remat_status got_ = (call);                                                                                    \
        ck_assert_msg(got_ == REMAT_##status, "%s: status %d, not %s", #call, (int)got_, #status);                     \
        ck_assert_msg(strstr(remat_last_error(), words), "'%s' does not contain '%s'", remat_last_error(), words);     \
    } while (0)

/* The text that `call` writes to `file`; the caller frees it with free(). */
#define text_of(file, call)                                                                                            \
    ({                                                                                                                 \
        char *text_ = NULL;                                                                                            \
        size_t length_ = 0;                                                                                            \
        FILE *file = open_memstream(&text_, &length_);                                                                 \
        ck_ok(call);                                                                                                   \
        fclose(file);                                                                                                  \
        text_;                                                                                                         \
    })

static inline char *file_text(const char *path) {
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file, "cannot open %s", path);
    char *text = calloc(1, 1 << 16);
    size_t length = fread(text, 1, (1 << 16) - 1, file);
    ck_assert_msg(length > 0 && feof(file), "%s is empty or too long", path);
    fclose(file);
    return text;
}

static inline void read_problem(const char *path, rm_problem *problem) {
    char *text = file_text(path);
    remat_status status = rm_problem_read(problem, text, strlen(text));
    ck_assert_msg(!status, "%s: %s", path, remat_last_error());
    free(text);
}

/* Calls visit(path, problem) for every file in tests/problems/; there are at least three. */
static inline void each_problem(void (*visit)(const char *path, const rm_problem *problem)) {
    glob_t found;
    ck_assert_int_eq(glob(RM_SOURCE_DIR "/tests/problems/*.problem", 0, NULL, &found), 0);
    ck_assert_uint_ge(found.gl_pathc, 3);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        rm_problem problem;
        read_problem(found.gl_pathv[i], &problem);
        visit(found.gl_pathv[i], &problem);
        rm_problem_free(&problem);
    }
    globfree(&found);
}

/* The end of every test program: runs `tests` and returns the exit status. */
static inline int run_tests(const char *name, const TTest *const *tests, int count) {
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 300);
    for (int i = 0; i < count; i++) tcase_add_test(tcase, tests[i]);
    return run_cases(name, tcase);
}
#define RUN_TESTS(name, ...)                                                                                           \
    int main(void) {                                                                                                   \
        const TTest *const tests[] = {__VA_ARGS__};                                                                    \
        return run_tests(name, tests, sizeof tests / sizeof tests[0]);                                                 \
    }

#endif
