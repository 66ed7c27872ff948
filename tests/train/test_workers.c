/* test_workers.c: any number of worker threads process each item once, job after job; of several failures the first is
 * reported. */
#include "train/data/workers.h"

#include "tests/train/train_test.h"

enum { ITEMS = 1000 };
typedef struct {
    int done[ITEMS];
    int64_t fails_from;
} job;

static remat_status do_item(void *context, int64_t item) {
    job *j = context;
    j->done[item]++;
    REQUIRE(item < j->fails_from, IO, "item %d fails", (int)item);
    return REMAT_OK;
}

START_TEST(every_item_is_processed_once) {
    rm_workers *workers;
    ck_ok(rm_workers_create(_i, &workers));
    for (int64_t count = 0; count <= ITEMS; count = count * 3 + 1) {
        job j = {.fails_from = ITEMS};
        rm_workers_start(workers, do_item, &j, count);
        ck_ok(rm_workers_wait(workers));
        for (int i = 0; i < ITEMS; i++) ck_assert_int_eq(j.done[i], i < count);
    }
    rm_workers_free(workers);
}
END_TEST

START_TEST(first_failure_is_reported) {
    rm_workers *workers;
    ck_ok(rm_workers_create(4, &workers));
    for (int round = 0; round < 50; round++) {
        job j = {.fails_from = round};
        rm_workers_start(workers, do_item, &j, ITEMS);
        char sentence[32];
        snprintf(sentence, sizeof sentence, "item %d fails", round);
        ck_fails(rm_workers_wait(workers), REMAT_IO, sentence);
        for (int i = 0; i < ITEMS; i++) ck_assert_int_eq(j.done[i], 1);
    }
    rm_workers_free(workers);
    rm_workers_free(NULL);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("workers");
    tcase_add_loop_test(tests, every_item_is_processed_once, 1, 6);
    tcase_add_test(tests, first_failure_is_reported);
    return run_suite("workers", tests);
}
