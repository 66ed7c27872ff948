/* test_builders.c: the table of builders says what the headers say: each builder, and each argument's name, type, length and
 * whether it may be absent. */
#include <check.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remat.h"
#include "tests/says.h"
#include "tests/suite.h"

/* The headers without comments, with single spaces. */
static char *headers(void) {
    static const char *const files[] = {RM_SOURCE_DIR "/engine/remat/graph.h", RM_SOURCE_DIR "/engine/remat/layers.h"};
    static char text[1 << 17];
    size_t at = 0;
    int last = 0, before = 0;
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(files[i], "r");
        bool comment = false;
        ck_assert_ptr_nonnull(file);
        for (int c; (c = fgetc(file)) != EOF; before = c) {
            if (comment) {
                comment = !(before == '*' && c == '/');
                continue;
            }
            if (before == '/' && c == '*') {
                comment = true, at--;
                continue;
            }
            if (isspace(c) && isspace(last)) continue;
            ck_assert_uint_lt(at, sizeof text - 1);
            text[at++] = (char)(last = isspace(c) ? ' ' : c);
        }
        fclose(file);
    }
    text[at] = 0;
    return text;
}

static void append(char *text, const char *more) { strcat(text, more); }

/* An argument as the headers write it. */
static void declare(const remat_argument *a, char *text) {
    static const char *const types[] = {[REMAT_ARGUMENT_VALUE] = "remat_value ",
                                        [REMAT_ARGUMENT_VALUES] = "const remat_value *",
                                        [REMAT_ARGUMENT_INT] = "int ",
                                        [REMAT_ARGUMENT_INT64] = "int64_t ",
                                        [REMAT_ARGUMENT_INT64S] = "const int64_t ",
                                        [REMAT_ARGUMENT_DOUBLE] = "double ",
                                        [REMAT_ARGUMENT_BOOL] = "bool ",
                                        [REMAT_ARGUMENT_TEXT] = "const char *",
                                        [REMAT_ARGUMENT_INIT] = "remat_init ",
                                        [REMAT_ARGUMENT_DTYPE] = "remat_dtype ",
                                        [REMAT_ARGUMENT_AXIS] = "remat_axis ",
                                        [REMAT_ARGUMENT_UPSAMPLE] = "remat_upsample ",
                                        [REMAT_ARGUMENT_CELL] = "const remat_cell *"};
    char length[20] = "";
    if (a->length) snprintf(length, sizeof length, "[%d]", a->length);
    append(text, a->optional ? ", REMAT_OPTIONAL " : ", ");
    append(text, types[a->kind]);
    append(text, a->kind == REMAT_ARGUMENT_INT64S && !a->length ? "*" : "");
    append(text, a->name);
    append(text, length);
}

START_TEST(table_matches_the_headers) {
    char *text = headers(), *at = text, line[800];
    int64_t declared = 0;
    for (int64_t i = 0; i < remat_builder_count(); i++) {
        remat_builder builder;
        ck_assert_int_eq(remat_builder_info(i, &builder), REMAT_OK);
        snprintf(line, sizeof line, "remat_value %s(remat_graph *graph", builder.name);
        for (int k = 0; k < builder.n_arguments; k++) declare(&builder.arguments[k], line);
        append(line, ");");
        ck_assert_msg(strstr(text, line), "engine/graph/builders.def says \"%s\", and no header does", line);
    }
    for (; (at = strstr(at, "remat_value remat_")); at++) declared += !strncmp(strchr(at, '(') + 1, "remat_graph", 11);
    ck_assert_msg(declared == remat_builder_count(), "the headers have %lld builders, and builders.def %lld",
                  (long long)declared, (long long)remat_builder_count());
}
END_TEST

/* The number of entries of an array is another argument, or a member of the cell. */
START_TEST(lengths_are_arguments) {
    for (int64_t i = 0; i < remat_builder_count(); i++) {
        remat_builder b;
        ck_assert_int_eq(remat_builder_info(i, &b), REMAT_OK);
        for (int k = 0; k < b.n_arguments; k++) {
            const remat_argument *a = &b.arguments[k];
            bool array = a->kind == REMAT_ARGUMENT_VALUES || a->kind == REMAT_ARGUMENT_INT64S;
            bool found = a->length || b.arguments[0].kind == REMAT_ARGUMENT_CELL;
            ck_assert_int_eq(array && !a->length, a->length_is != NULL);
            for (int j = 0; j < b.n_arguments && a->length_is; j++)
                found |= !strcmp(b.arguments[j].name, a->length_is) && b.arguments[j].kind == REMAT_ARGUMENT_INT;
            ck_assert_msg(!array || found, "%s: length of %s", b.name, a->name);
        }
    }
}
END_TEST

START_TEST(invalid_builder_is_refused) {
    remat_builder b;
    ck_assert_int_eq(remat_builder_info(-1, &b), REMAT_INVALID);
    ck_assert_int_eq(remat_builder_info(remat_builder_count(), &b), REMAT_INVALID);
    ck_says_all(remat_last_error(), "no builder");
    ck_assert_int_eq(remat_builder_info(0, NULL), REMAT_INVALID);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("builders");
    tcase_add_test(tests, table_matches_the_headers);
    tcase_add_test(tests, lengths_are_arguments);
    tcase_add_test(tests, invalid_builder_is_refused);
    return run_cases("builders", tests);
}
