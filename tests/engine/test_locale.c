/* test_locale.c: the library in a program whose locale writes "0,5". The library reads and writes the same as in any
 * other locale, and does not change the program's locale. The test creates the locale. */
#include "tests/net.h"

#include <locale.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/neutral.h"
#include "engine/remat_op.h"
#include "engine/session/session.h"
#include "tests/says.h"
#include "tests/suite.h"

static char folder[] = "/tmp/remat_locale_XXXXXX";

static void remove_locale(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) perror(command);
}

/* False: localedef is missing. */
static bool make_locale(void) {
    char command[512];
    if (!mkdtemp(folder)) return false;
    atexit(remove_locale);
    snprintf(command, sizeof command,
             "cd %s && printf 'LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n' "
             ">comma && "
             "localedef --no-archive -c -i ./comma %s/comma.ASCII >/dev/null 2>&1",
             folder, folder);
    if (system(command)) printf("localedef warns about missing categories, as expected\n");
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_NUMERIC, "comma.ASCII") != NULL;
}

static void check_commas(void) {
    char text[16];
    snprintf(text, sizeof text, "%g", 0.5);
    ck_assert_str_eq(text, "0,5");
}

static remat_session *session(remat_graph *g, const char *groups) {
    static const net shape = {NET_LSTM, 1, 7, 5, 6, 9, 2, 0};
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    config.groups = groups;
    config.plan_only = true;
    config.momentum = 0.25;
    CHECKED(remat_session_create(g, net_build(g, &shape), &config, &s));
    return s;
}

/* Parameter groups are read, and settings are written, as in the locale "C". */
START_TEST(sessions_read_and_write_decimal_points) {
    char *settings[2], *plan[2];
    check_commas();
    for (int i = 0; i < 2; i++) {
        remat_graph *g;
        CHECKED(remat_graph_create(&g));
        remat_session *s = session(g, "bias:lr=0.5,weight_decay=0.0625");
        settings[i] = remat_settings_text(s);
        plan[i] = remat_plan_describe(s);
        remat_session_free(s);
        remat_graph_free(g);
        if (!i) check_commas();
        ck_assert_ptr_nonnull(setlocale(LC_NUMERIC, "C"));
    }
    ck_says_all(settings[0], "momentum|0.25|0.5\n");
    ck_assert_str_eq(settings[0], settings[1]);
    ck_assert_str_eq(plan[0], plan[1]);
    for (int i = 0; i < 2; i++) remat_text_free(settings[i]), remat_text_free(plan[i]);
}
END_TEST

START_TEST(messages_have_decimal_points) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 1, (int64_t[]){3});
    (void)remat_dropout(g, x, 1.5);
    ck_assert_int_eq(remat_graph_check(g), REMAT_INVALID);
    ck_says_all(remat_last_error(), "1.5");
    remat_graph_free(g);
    (void)remat_refuse("slope is %g", 2.5);
    ck_assert_str_eq(remat_last_error(), "slope is 2.5");
    check_commas();
}
END_TEST

START_TEST(locale_helpers_restore_the_locale) {
    char text[32], *end;
    ck_assert_int_eq(rm_snprintf(text, sizeof text, "%.2f", 1234567.125), 10);
    ck_assert_str_eq(text, "1234567.12");
    ck_assert_double_eq(rm_strtod("0.5,", &end), 0.5);
    ck_assert_str_eq(end, ",");
    check_commas();
}
END_TEST

int main(void) {
    if (!make_locale()) {
        printf("skipped: needs localedef (libc-bin)\n");
        return 77;
    }
    TCase *tests = tcase_create("locale");
    tcase_add_test(tests, sessions_read_and_write_decimal_points);
    tcase_add_test(tests, messages_have_decimal_points);
    tcase_add_test(tests, locale_helpers_restore_the_locale);
    return run_cases("engine/locale", tests);
}
