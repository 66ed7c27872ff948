/* test_metrics.c: numbers survive the metrics file, and a resumed run removes the lines of steps that it will
 * repeat. */
#include "train/report/metrics.h"

#include "tests/train/train_test.h"

#include <jansson.h>
#include <math.h>
#include <time.h>

static rm_metrics metrics;
static const rm_metrics_run begins = {.name = "a"}, evaluation = {.name = ""};

static void write_steps(int64_t from, int64_t to, double loss) {
    for (int64_t step = from; step <= to; step++)
        ck_ok(rm_metrics_step(&metrics, &(rm_step_event){.step = step, .loss = loss, .grad_norm = 1}));
}

/* The file's lines; the caller frees the array. A line that is not JSON fails the test. */
static json_t *read_events(const char *path) {
    json_t *events = json_array(), *event;
    json_error_t error;
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while ((event = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error))) json_array_append_new(events, event);
    ck_assert_msg(feof(file), "%s: %s", path, error.text);
    fclose(file);
    return events;
}

START_TEST(floats_survive) {
    const char *path = in_scratch("m.jsonl");
    float value = 5.12345678f;
    ck_ok(rm_metrics_open(path, &begins, &metrics));
    for (int i = 0; i < 2000; i++) {
        value = nextafterf(value * 1.01f, 1e30f);
        write_steps(i + 1, i + 1, (double)value);
    }
    ck_ok(rm_metrics_close(&metrics));
    json_t *events = read_events(path);
    value = 5.12345678f;
    for (int i = 0; i < 2000; i++) {
        value = nextafterf(value * 1.01f, 1e30f);
        double read = json_number_value(json_object_get(json_array_get(events, (size_t)i), "loss"));
        ck_assert((float)read == value);
    }
    json_decref(events);
}
END_TEST

START_TEST(lines_have_times) {
    const char *path = in_scratch("m.jsonl");
    ck_ok(rm_metrics_open(path, &begins, &metrics));
    ck_ok(rm_metrics_step(&metrics, &(rm_step_event){.step = 3, .epoch = 1.5}));
    ck_ok(rm_metrics_close(&metrics));
    json_t *events = read_events(path);
    const json_t *event = json_array_get(events, 0);
    const char *when = json_string_value(json_object_get(event, "time"));
    char today[16];
    time_t now = time(NULL);
    strftime(today, sizeof today, "%Y-%m-%dT", gmtime(&now));
    ck_assert_msg(when && !strncmp(when, today, 8) && strlen(when) == 24 && when[23] == 'Z', "%s", when);
    ck_assert(json_number_value(json_object_get(event, "epoch")) == 1.5);
    json_decref(events);
}
END_TEST

START_TEST(non_finite_numbers_are_null) {
    const char *path = in_scratch("m.jsonl");
    ck_ok(rm_metrics_open(path, &begins, &metrics));
    write_steps(1, 1, NAN);
    write_steps(2, 2, INFINITY);
    ck_ok(rm_metrics_close(&metrics));
    json_t *events = read_events(path);
    ck_assert_uint_eq(json_array_size(events), 2);
    for (size_t i = 0; i < 2; i++) ck_assert(json_is_null(json_object_get(json_array_get(events, i), "loss")));
    json_decref(events);
}
END_TEST

/* Killed at step 7, saved at step 5: the resumed run repeats 6 and 7. */
START_TEST(resumed_run_continues_the_file) {
    const char *path = in_scratch("m.jsonl");
    ck_ok(rm_metrics_open(path, &begins, &metrics));
    write_steps(1, 7, 1);
    fputs("{\"event\":\"step\",\"st", metrics.file); /* an incomplete line */
    ck_ok(rm_metrics_close(&metrics));
    ck_ok(rm_metrics_open(path, &(rm_metrics_run){.name = "a", .resumed_step = 5}, &metrics));
    write_steps(6, 8, 2);
    ck_ok(rm_metrics_close(&metrics));
    json_t *events = read_events(path);
    ck_assert_uint_eq(json_array_size(events), 8);
    for (size_t i = 0; i < 8; i++) {
        const json_t *event = json_array_get(events, i);
        ck_assert_int_eq(json_integer_value(json_object_get(event, "step")), i + 1);
        ck_assert(json_number_value(json_object_get(event, "loss")) == (i < 5 ? 1 : 2));
    }
    json_decref(events);
}
END_TEST

static void need_events(const char *path, size_t count) {
    json_t *events = read_events(path);
    ck_assert_uint_eq(json_array_size(events), count);
    json_decref(events);
}

static void refused(const char *path, rm_metrics_run run) {
    ck_fails(rm_metrics_open(path, &run, &metrics), REMAT_INVALID, "another run");
    ck_ok(rm_metrics_close(&metrics));
    need_events(path, 4);
}

/* Only the run that wrote a metrics file continues it. */
START_TEST(metrics_of_other_runs_are_not_changed) {
    const char *path = make_file("m.jsonl", "{\"event\":\"plan\",\"run\":\"a\"}\n", 27);
    const rm_metrics_run goes_on = {.name = "a", .resumed_step = 2}, again = {.name = "b", .again = true};
    ck_ok(rm_metrics_open(path, &goes_on, &metrics));
    write_steps(1, 3, 1);
    ck_ok(rm_metrics_close(&metrics));
    refused(path, begins);
    refused(path, (rm_metrics_run){.name = "b", .resumed_step = 2});
    ck_fails(rm_metrics_open(path, &evaluation, &metrics), REMAT_INVALID, "metrics|run");
    ck_ok(rm_metrics_close(&metrics));
    need_events(path, 4);
    ck_ok(rm_metrics_open(path, &again, &metrics)); /* killed before the first save */
    ck_ok(rm_metrics_close(&metrics));
    need_events(path, 0);
    ck_ok(rm_metrics_open(path, &begins, &metrics));
    ck_ok(rm_metrics_end(&metrics, &(rm_end_event){.steps = 0})); /* stopped before the first step */
    ck_ok(rm_metrics_close(&metrics));
    ck_ok(rm_metrics_open(path, &again, &metrics));
    write_steps(1, 3, 1);
    ck_ok(rm_metrics_end(&metrics, &(rm_end_event){.steps = 3}));
    ck_ok(rm_metrics_close(&metrics));
    refused(path, again);                             /* a finished run has saved */
    ck_ok(rm_metrics_open(path, &goes_on, &metrics)); /* a file of a version without run names */
    ck_ok(rm_metrics_close(&metrics));
    need_events(path, 2);
}
END_TEST

/* A file that also has lines of another run is refused. Lines that this run will not write again stay, also after a line that
 * is not JSON. */
START_TEST(nothing_is_lost_from_a_file_of_several_hands) {
    static const char both[] = "{\"event\":\"plan\",\"run\":\"a\"}\n{\"event\":\"plan\",\"run\":\"b\"}\n";
    static const char edited[] = "{\"event\":\"plan\",\"run\":\"a\"}\n\n{\"event\":\"step\",\"step\":1}\nnote\n"
                                 "{\"event\":\"step\",\"step\":2}\n{\"event\":\"step\",\"step\":3}\nnote\n";
    const rm_metrics_run goes_on = {.name = "a", .resumed_step = 2};
    const char *path = make_file("both", both, sizeof both - 1);
    ck_fails(rm_metrics_open(path, &goes_on, &metrics), REMAT_INVALID, "another run");
    ck_ok(rm_metrics_close(&metrics));
    need_events(path, 2);
    path = make_file("edited", edited, sizeof edited - 1);
    ck_ok(rm_metrics_open(path, &goes_on, &metrics));
    ck_ok(rm_metrics_close(&metrics));
    char left[sizeof edited] = "";
    FILE *file = fopen(path, "r");
    size_t bytes = fread(left, 1, sizeof edited - 1, file);
    (void)fclose(file);
    const size_t kept = (size_t)(strstr(edited, "\"step\":3") - edited) - strlen("{\"event\":\"step\",");
    ck_assert_uint_eq(bytes, kept);
    ck_assert_mem_eq(left, edited, kept);
}
END_TEST

/* Evaluations are appended, also after an incomplete line of a killed one. They belong to no run, so no run continues
 * the file. */
START_TEST(evaluations_are_appended) {
    const char *path = make_file("e.jsonl", "{\"event\":\"eval\",\"step\":9}\n{\"event\":", 35);
    for (int i = 0; i < 2; i++) {
        ck_ok(rm_metrics_open(path, &evaluation, &metrics));
        ck_ok(rm_metrics_eval(&metrics, &(rm_eval_event){.step = 9, .samples = 1}));
        ck_ok(rm_metrics_close(&metrics));
        need_events(path, 2 + i);
    }
    const rm_metrics_run goes_on = {.name = "a", .resumed_step = 9};
    ck_fails(rm_metrics_open(path, &goes_on, &metrics), REMAT_INVALID, "another run");
    ck_ok(rm_metrics_close(&metrics));
    need_events(path, 3);
}
END_TEST

START_TEST(two_runs_at_once_are_refused) {
    const char *path = in_scratch("m.jsonl");
    rm_metrics other;
    ck_ok(rm_metrics_open(path, &begins, &metrics));
    write_steps(1, 3, 1);
    const rm_metrics_run goes_on = {.name = "a", .resumed_step = 1};
    ck_fails(rm_metrics_open(path, &goes_on, &other), REMAT_IO, "another run");
    ck_ok(rm_metrics_close(&other));
    ck_ok(rm_metrics_close(&metrics));
    need_events(path, 3);
    ck_ok(rm_metrics_open("/dev/null", &begins, &metrics)); /* a device may have several writers */
    ck_ok(rm_metrics_open("/dev/null", &begins, &other));
    ck_ok(rm_metrics_close(&other));
    ck_ok(rm_metrics_close(&metrics));
}
END_TEST

START_TEST(full_disk_is_reported) {
    ck_ok(rm_metrics_open("/dev/full", &begins, &metrics));
    ck_fails(rm_metrics_step(&metrics, &(rm_step_event){.step = 1}), REMAT_IO, "/dev/full");
    ck_ok(rm_metrics_open(NULL, &begins, &metrics));
    ck_ok(rm_metrics_step(&metrics, &(rm_step_event){.step = 1})); /* without --metrics */
    ck_fails(rm_metrics_open("/nowhere/m.jsonl", &begins, &metrics), REMAT_IO, "--metrics");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("metrics");
    tcase_add_test(tests, floats_survive);
    tcase_add_test(tests, lines_have_times);
    tcase_add_test(tests, non_finite_numbers_are_null);
    tcase_add_test(tests, resumed_run_continues_the_file);
    tcase_add_test(tests, metrics_of_other_runs_are_not_changed);
    tcase_add_test(tests, nothing_is_lost_from_a_file_of_several_hands);
    tcase_add_test(tests, evaluations_are_appended);
    tcase_add_test(tests, two_runs_at_once_are_refused);
    tcase_add_test(tests, full_disk_is_reported);
    return run_suite("train/metrics", tests);
}
