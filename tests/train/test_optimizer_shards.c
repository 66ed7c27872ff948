/* test_optimizer_shards.c: training states of many ranks. Any number of ranks reads what any other number saved, with
 * the optimizer's state sharded or not. If one rank cannot write, the state is not saved. Invalid files are refused. */
#include "train/state/optimizer_shards.h"
#include "memory/host.h"
#include "tests/train/shard_jobs.h"

/* ---- Contents of arrays: a distinct number for each element ---- */

static int64_t check_session(remat_session *s, remat_kind kind) { return check_filled(s, kind, 1); }

/* Every rank reads the state. Together they hold every element, once per copy. */
static void load_job(job *j, const char *state, int from_size, bool from_sharded) {
    rm_state_point point;
    rm_options options;
    int64_t held = 0, all = 0;
    fill_job(j, 0);
    ck_ok(rm_options_defaults(&options));
    ck_ok(rm_state_read(state, RM_TRAIN, &options, &point));
    ck_assert(point.step == 12 && point.epoch == 3 && point.consumed == 31 && point.samples == 99);
    ck_assert(point.last_lr == 0.1 && point.world_size == from_size && point.zero == from_sharded && !point.shards);
    for (int r = 0; r < j->size; r++) {
        ck_ok(rm_state_restore(state, &point, true, j->session[r]));
        all = check_session(j->session[r], REMAT_PARAM);
        held += check_session(j->session[r], REMAT_OPTIMIZER);
        ck_assert_int_eq(remat_step_count(j->session[r]), 12);
    }
    ck_assert_int_eq(held, 2 * all * (j->sharded ? 1 : j->size)); /* the two arrays of Adam */
    rm_options_free(&options);
}

static const int sizes[] = {1, 2, 3, 4, 7};

START_TEST(states_are_read_by_any_number_of_ranks) {
    job *to[10];
    for (int i = 0; i < 10; i++) to[i] = open_job(sizes[i / 2], i % 2, FLAGS);
    for (int i = 0; i < 10; i++) {
        char name[32], path[RM_PATH_BYTES], state[RM_PATH_BYTES];
        bool found;
        snprintf(name, sizeof name, "st-%d", i);
        snprintf(path, sizeof path, "%s", in_scratch(name));
        fill_job(to[i], 1);
        save_job(to[i], path);
        saved_ok(to[i]);
        ck_ok(rm_state_find(path, state, &found));
        ck_assert(found);
        ck_assert_int_eq(rm_path_exists(in_scratch("st-3/step-00000012/optimizer-1-of-2.safetensors")), i >= 3);
        for (int k = 0; k < 10; k++) load_job(to[k], state, to[i]->size, to[i]->sharded);
    }
    for (int i = 0; i < 10; i++) close_job(to[i]);
}
END_TEST

/* Plain sgd has no arrays: the shard files exist and are empty. */
START_TEST(optimizers_without_arrays_are_saved) {
    job *a = open_job(3, true, FLAGS "--optimizer=sgd"), *b = open_job(2, true, FLAGS "--optimizer=sgd");
    rm_state_point point = saved_point;
    save_job(a, in_scratch("st"));
    saved_ok(a);
    ck_ok(rm_state_restore(in_scratch("st/step-00000012"), &point, true, b->session[1]));
    close_job(a);
    close_job(b);
}
END_TEST

/* ---- Failing ---- */

static void in_the_way(int meeting) { /* blocks the file of rank 2's shards, once the directory exists */
    if (meeting == 2) mkdir(in_scratch("st/.tmp-step-00000012/optimizer-2-of-3.safetensors"), 0777);
}

START_TEST(one_failing_rank_fails_the_save) {
    job *j = open_job(3, true, FLAGS);
    char state[RM_PATH_BYTES];
    bool found;
    j->before = in_the_way;
    save_job(j, in_scratch("st"));
    for (int r = 0; r < 3; r++) ck_assert_int_eq(j->status[r], REMAT_IO);
    ck_assert_msg(says_all(j->sentence[2], "step 12|not saved|optimizer-2-of-3.safetensors"), "%s", j->sentence[2]);
    ck_ok(rm_state_find(in_scratch("st"), state, &found));
    ck_assert(!found);
    ck_assert_int_eq(rmdir(in_scratch("st/.tmp-step-00000012/optimizer-2-of-3.safetensors")), 0);
    j->before = NULL;
    save_job(j, in_scratch("st"));
    saved_ok(j);
    ck_ok(rm_state_find(in_scratch("st"), state, &found));
    ck_assert(found);
    close_job(j);
}
END_TEST

START_TEST(saving_again_changes_nothing) {
    job *j = open_job(2, true, FLAGS);
    struct stat before, after;
    save_job(j, in_scratch("st"));
    saved_ok(j);
    ck_assert_int_eq(j->meetings, 5);
    ck_assert_int_eq(stat(in_scratch("st/step-00000012/state.json"), &before), 0);
    save_job(j, in_scratch("st"));
    saved_ok(j);
    ck_assert_int_eq(stat(in_scratch("st/step-00000012/state.json"), &after), 0);
    ck_assert(before.st_ino == after.st_ino && j->meetings == 3);
    close_job(j);
}
END_TEST

/* A second job that saves to the same place is refused, on all its ranks, with rank 0's reason. */
START_TEST(second_job_in_the_same_place_is_refused) {
    job *j = open_job(2, false, FLAGS);
    rm_state_store other;
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &other));
    save_job(j, in_scratch("st"));
    ck_assert(j->status[0] == REMAT_IO && j->status[1] == REMAT_IO);
    ck_assert_ptr_nonnull(strstr(j->sentence[0], "another run"));
    rm_state_store_close(&other);
    close_job(j);
}
END_TEST

/* Each allocation fails once: a message, and no files are left. */
START_TEST(failed_allocations_of_saves_are_reported) {
    job *j = open_job(2, true, FLAGS);
    rm_file_writer writer;
    rm_saved_file file[2];
    remat_status status = REMAT_MEMORY;
    fill_job(j, 1);
    for (int r = 0; r < 2; r++) {
        snprintf(file[r].path, sizeof file[r].path, "%s", in_scratch(r ? "one" : "zero"));
        for (int64_t n = 1; r == 0 && n < 100 && status; n++) {
            rm_host_fail_at(n);
            status = rm_optimizer_shards_save(j->session[r], file[r].path, &writer);
            ck_assert(status == REMAT_OK || (status == REMAT_MEMORY && !rm_path_exists(file[r].path)));
        }
        rm_host_fail_at(0);
        ck_ok(rm_optimizer_shards_save(j->session[r], file[r].path, &writer));
        file[r].bytes = writer.bytes;
        file[r].crc32 = writer.crc32;
    }
    status = REMAT_MEMORY;
    int64_t n = 1;
    for (; n < 1000 && status; n++) {
        rm_host_fail_at(n);
        status = rm_optimizer_shards_load(j->session[0], file, 2);
        ck_assert_msg(status == REMAT_OK || status == REMAT_MEMORY, "%d: %s", (int)status, remat_last_error());
    }
    rm_host_fail_at(0);
    ck_assert(n > 10 && !status);
    check_session(j->session[0], REMAT_OPTIMIZER);
    close_job(j);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("shards");
    tcase_add_test(tests, states_are_read_by_any_number_of_ranks);
    tcase_add_test(tests, optimizers_without_arrays_are_saved);
    tcase_add_test(tests, one_failing_rank_fails_the_save);
    tcase_add_test(tests, saving_again_changes_nothing);
    tcase_add_test(tests, second_job_in_the_same_place_is_refused);
    tcase_add_test(tests, failed_allocations_of_saves_are_reported);
    return run_suite("train/optimizer_shards", tests);
}
