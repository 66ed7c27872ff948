/* test_status.c: error messages contain no control sequences for the terminal. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/status.h"
#include "tests/suite.h"

static const struct {
    const char *given, *shown;
} texts[] = {
    {"", ""},
    {"node7, process 4711", "node7, process 4711"},
    {"\x1b[2J\x1b]0;owned\x07", "?[2J?]0;owned?"},
    {"a\nb\tc\rd\x7f", "a?b?c?d?"},
    {"Z\xc3\xbcrich, \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x92\xa1",
     "Z\xc3\xbcrich, \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x92\xa1"},
    {"\xc2\x9b"
     "31m",
     "??31m"}, /* U+009B alone starts a control sequence */
    {"\x9b"
     "31m\xff",
     "?31m?"},
    {"cut \xe6\x9d", "cut ??"}, /* ends in the middle of a character */
    {"\xc3\x1b[m", "??[m"},
    {"\xe0\x80\xaf \xed\xa0\x80 \xf0\x80\x80\xaf \xf4\x90\x80\x80", "??? ??? ???? ????"}, /* invalid UTF-8 */
    {"\xed\x9f\xbf \xf4\x8f\xbf\xbd", "\xed\x9f\xbf \xf4\x8f\xbf\xbd"},
};

START_TEST(control_characters_are_replaced) {
    char text[64];
    strcpy(text, texts[_i].given);
    ck_assert_str_eq(rm_printable(text), texts[_i].shown);
    ck_assert_ptr_eq(rm_printable(text), text);
}
END_TEST

START_TEST(messages_are_printable) {
    ck_assert_int_eq(rm_fail(REMAT_PEER, "rank 1 is '%s'", "\x1b[31m"), REMAT_PEER);
    ck_assert_str_eq(remat_last_error(), "rank 1 is '?[31m'");
    ck_assert_int_eq(rm_fail_in(REMAT_PEER, "in %s",
                                "a\x1b"
                                "b"),
                     REMAT_PEER);
    ck_assert_str_eq(remat_last_error(), "in a?b: rank 1 is '?[31m'");
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("printable");
    tcase_add_loop_test(cases, control_characters_are_replaced, 0, sizeof texts / sizeof *texts);
    tcase_add_test(cases, messages_are_printable);
    return run_cases("engine/status", cases);
}
