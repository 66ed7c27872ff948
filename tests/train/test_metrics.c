/* test_metrics.c: numbers survive the metrics file, and a resumed run cuts off what it will make again. */
#include "train/metrics.h"

#include "tests/train/train_test.h"

#include <jansson.h>
#include <math.h>

static rm_metrics metrics;

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
    ck_ok(rm_metrics_open(path, 0, &metrics));
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

START_TEST(what_is_no_number_is_null) {
    const char *path = in_scratch("m.jsonl");
    ck_ok(rm_metrics_open(path, 0, &metrics));
    write_steps(1, 1, NAN);
    write_steps(2, 2, INFINITY);
    ck_ok(rm_metrics_close(&metrics));
    json_t *events = read_events(path);
    ck_assert_uint_eq(json_array_size(events), 2);
    for (size_t i = 0; i < 2; i++) ck_assert(json_is_null(json_object_get(json_array_get(events, i), "loss")));
    json_decref(events);
}
END_TEST

/* Killed at step 7, saved at step 5: the resumed run makes 6 and 7 again. */
START_TEST(a_resumed_run_goes_on_in_the_file) {
    const char *path = in_scratch("m.jsonl");
    ck_ok(rm_metrics_open(path, 0, &metrics));
    write_steps(1, 7, 1);
    fputs("{\"event\":\"step\",\"st", metrics.file); /* the line that was being written */
    ck_ok(rm_metrics_close(&metrics));
    ck_ok(rm_metrics_open(path, 5, &metrics));
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

START_TEST(a_new_run_starts_the_file_anew) {
    const char *path = in_scratch("m.jsonl");
    for (int i = 0; i < 2; i++) {
        ck_ok(rm_metrics_open(path, 0, &metrics));
        write_steps(1, 3, i);
        ck_ok(rm_metrics_close(&metrics));
    }
    json_t *events = read_events(path);
    ck_assert_uint_eq(json_array_size(events), 3);
    json_decref(events);
}
END_TEST

START_TEST(a_full_disk_is_noticed) {
    ck_ok(rm_metrics_open("/dev/full", 0, &metrics));
    ck_fails(rm_metrics_step(&metrics, &(rm_step_event){.step = 1}), REMAT_IO, "/dev/full");
    ck_ok(rm_metrics_open(NULL, 0, &metrics));
    ck_ok(rm_metrics_step(&metrics, &(rm_step_event){.step = 1})); /* nobody wants them */
    ck_fails(rm_metrics_open("/nowhere/m.jsonl", 0, &metrics), REMAT_IO, "--metrics");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("metrics");
    tcase_add_test(tests, floats_survive);
    tcase_add_test(tests, what_is_no_number_is_null);
    tcase_add_test(tests, a_resumed_run_goes_on_in_the_file);
    tcase_add_test(tests, a_new_run_starts_the_file_anew);
    tcase_add_test(tests, a_full_disk_is_noticed);
    return run_suite("train/metrics", tests);
}
