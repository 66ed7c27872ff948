/* test_member_flag.c: the library's messages name members of structs, the program's name flags. */
#include <check.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/status.h"
#include "train/flags/member_flag.h"
#include "train/flags/options.h"
#include "tests/suite.h"

START_TEST(messages_name_members_by_default) {
    ck_assert_int_eq(rm_fail(REMAT_INVALID, "{end_lr}=%g is too large: %s", 2.0, "{lr}"), REMAT_INVALID);
    ck_assert_str_eq(remat_last_error(), "end_lr=2 is too large: {lr}"); /* arguments stay unchanged */
    rm_set_member_names(rm_flag_of_member);
    rm_fail(REMAT_INVALID, "{end_lr}=%g: {schedule}=%s, {carry_stride}, {", 2.0, "poly");
    ck_assert_str_eq(remat_last_error(), "--end-lr=2: --lr-schedule=poly, the second number of --tbptt, {");
    rm_fail_in(REMAT_INVALID, "{tile} {Tile} {a b} {}");
    rm_set_member_names(NULL);
    ck_assert_str_eq(strtok(strdup(remat_last_error()), ":"), "--tile {Tile} {a b} {}");
}
END_TEST

/* A member's flag may be surrounded by words. */
static bool is_flag(const char *help, const char *text) {
    const char *flag = strstr(text, "--");
    char line[80] = "";
    if (flag) snprintf(line, sizeof line, "%.*s", (int)strcspn(flag, " "), flag);
    return *line && strstr(help, line);
}

static int check_file(const char *path, const char *help) {
    char line[4096], member[64];
    int found = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        for (char *at = strchr(line, '"'); at && (at = strchr(at, '{')); at++) {
            int end = 0;
            if (sscanf(at, "{%63[a-z_]}%n", member, &end) != 1 || !end) continue;
            ck_assert_msg(is_flag(help, rm_flag_of_member(member)), "%s: {%s} is no flag", path, member);
            found++;
        }
    fclose(file);
    return found;
}

START_TEST(every_member_in_a_message_has_a_flag) {
    static char help[1 << 17];
    FILE *out = fmemopen(help, sizeof help, "w");
    rm_options_help(RM_TRAIN, out);
    fclose(out);
    static const char *const folders[] = {"engine/*/*.c", "engine/*.c", "ops/*/*.c",
                                          "memory/*.c",   "dist/*/*.c", "dist/*.c"};
    int found = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char pattern[1024];
        glob_t files;
        snprintf(pattern, sizeof pattern, "%s/%s", RM_SOURCE_DIR, folders[i]);
        ck_assert_int_eq(glob(pattern, 0, NULL, &files), 0);
        for (size_t k = 0; k < files.gl_pathc; k++) found += check_file(files.gl_pathv[k], help);
        globfree(&files);
    }
    ck_assert_int_ge(found, 50);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("member_flag");
    tcase_add_test(tests, messages_name_members_by_default);
    tcase_add_test(tests, every_member_in_a_message_has_a_flag);
    return run_cases("member_flag", tests);
}
