/* test_state_jobs.c: a restarted job continues from its own training states, and skips damaged ones. */
#include "tests/train/state_runs.h"

/* Sets the variables of a launcher, or none: "NAME=value NAME=value". */
static void launched(const char *line) {
    static const char *const names[] = {
        "REMAT_JOB_ID",        "TORCHELASTIC_RUN_ID",          "SLURM_JOB_ID",      "TORCHELASTIC_RESTART_COUNT",
        "SLURM_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "SLURM_CLUSTER_NAME"};
    char copy[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        *strchr(word, '=') = 0;
        setenv(word, word + strlen(word) + 1, 1);
    }
}

static char note[RM_STATE_NOTE];

/* The state from which a job with these variables continues; "" for none. */
static const char *goes_on_from(const char *variables) {
    static char state[RM_PATH_BYTES];
    launched(variables);
    ck_ok(rm_state_after_restart(in_scratch("st"), state, note));
    return *state ? strrchr(state, '/') + 1 : "";
}

static void save_as(rm_state_store *store, bench *b, const char *variables) {
    launched(variables);
    step(b);
    save_ok(store, b);
}

/* A restart of a job is told apart from another job with the same name. */
START_TEST(jobs_continue_from_their_own_states) {
    bench b;
    rm_state_store store;
    open_bench(&b, FLAGS);
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=1"), ""); /* no state was saved yet */
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    save_as(&store, &b, "REMAT_JOB_ID=a TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0"), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1"),
                     "step-00000001");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=12"), "step-00000001");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=b TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=-1"), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT="), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a"), "");
    save_as(&store, &b, ""); /* newer, but of a run that is never restarted */
    ck_assert_str_eq(goes_on_from("TORCHELASTIC_RESTART_COUNT=1 SLURM_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("TORCHELASTIC_RESTART_COUNT=1 SLURM_JOB_ID=78 SLURM_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=1"), "");
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

/* Runs in a child process, which therefore has another agent than this process. */
static bool another_agent_goes_on(const char *variables) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(*goes_on_from(variables) != 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define TORCHRUN "TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True "

START_TEST(torchrun_jobs_without_a_name_are_told_apart) {
    bench b;
    rm_state_store store;
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    save_as(&store, &b, TORCHRUN "TORCHELASTIC_RESTART_COUNT=0");
    ck_assert_str_eq(goes_on_from(TORCHRUN "TORCHELASTIC_RESTART_COUNT=2"), "step-00000001");
    ck_assert(!another_agent_goes_on(TORCHRUN "TORCHELASTIC_RESTART_COUNT=2"));
    ck_assert_str_eq(goes_on_from("TORCHELASTIC_RUN_ID=night TORCHELASTIC_RESTART_COUNT=2"), "");
    ck_assert_str_eq(goes_on_from(TORCHRUN "REMAT_JOB_ID=outer TORCHELASTIC_RESTART_COUNT=2"), "step-00000001");
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

#define SLURM "SLURM_CLUSTER_NAME=c SLURM_JOB_ID=77 "

/* Only states saved before Slurm requeued the job belong to it: another step of the same job may save there, too. */
START_TEST(requeued_slurm_jobs_continue) {
    bench b;
    rm_state_store store;
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    save_as(&store, &b, SLURM);
    ck_assert_str_eq(goes_on_from(SLURM), "");
    ck_assert_str_eq(goes_on_from(SLURM "SLURM_RESTART_COUNT=1"), "step-00000001");
    ck_assert_str_eq(goes_on_from(SLURM "SLURM_RESTART_COUNT=1 REMAT_JOB_ID=new TORCHELASTIC_RESTART_COUNT=0"),
                     "step-00000001");
    ck_assert_str_eq(goes_on_from("SLURM_CLUSTER_NAME=c SLURM_JOB_ID=78 SLURM_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from("SLURM_CLUSTER_NAME=d SLURM_JOB_ID=77 SLURM_RESTART_COUNT=1"), "");
    save_as(&store, &b, SLURM "SLURM_RESTART_COUNT=1");
    ck_assert_str_eq(goes_on_from(SLURM "SLURM_RESTART_COUNT=1"), "");
    ck_assert_str_eq(goes_on_from(SLURM "SLURM_RESTART_COUNT=2"), "step-00000002");
    rm_state_store_close(&store);
    close_bench(&b);
}
END_TEST

#define JOB "REMAT_JOB_ID=a TORCHELASTIC_RESTART_COUNT=1"

static void spoil(const char *name, long at) {
    FILE *file = fopen(in_scratch(name), "r+b");
    ck_assert_ptr_nonnull(file);
    fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
    int byte = fgetc(file);
    fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
    fputc(byte ^ 1, file);
    ck_assert_int_eq(fclose(file), 0);
}

/* Newest first: a damaged header, a damaged state.json, a missing and a truncated file. Each state is skipped and
 * renamed. */
START_TEST(damaged_states_are_skipped) {
    bench b;
    rm_state_store store;
    rm_state_point point = {0};
    char state[RM_PATH_BYTES];
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    for (int i = 0; i < 5; i++) save_as(&store, &b, JOB);
    spoil("st/step-00000005/model.safetensors", 12);
    spoil("st/step-00000004/state.json", 4);
    unlink(in_scratch("st/step-00000003/optimizer.safetensors"));
    ck_assert_int_eq(truncate(in_scratch("st/step-00000002/optimizer.safetensors"), 100), 0);
    ck_fails(rm_state_after_restart(in_scratch("st"), state, note), REMAT_IO, "another run");
    ck_assert_int_eq(count_entries(in_scratch("st"), "step-"), 5);
    rm_state_store_close(&store);
    ck_assert_str_eq(goes_on_from(JOB), "step-00000001");
    ck_says_all(note, "step-00000005/model.safetensors|damaged-step-00000005|older");
    ck_assert_msg(!strchr(note, '\n'), "%s", note);
    ck_assert_int_eq(count_entries(in_scratch("st"), "step-"), 1);
    ck_assert_int_eq(count_entries(in_scratch("st"), "damaged-step-"), 4);
    ck_ok(rm_state_restore(in_scratch("st/step-00000001"), &point, true, b.session));
    ck_fails(rm_state_restore(in_scratch("st/damaged-step-00000005"), &point, true, b.session), REMAT_IO, "saved");
    ck_assert_str_eq(goes_on_from(JOB), "step-00000001");
    ck_assert_str_eq(note, "");
    spoil("st/step-00000001/model.safetensors", -1);
    ck_fails(rm_state_after_restart(in_scratch("st"), state, note), REMAT_IO, "training state");
    ck_assert_int_eq(count_entries(in_scratch("st"), "step-"), 1); /* no state to continue from: nothing changes */
    close_bench(&b);
}
END_TEST

/* Damaged states of another or an unknown run are not skipped, and stay in place. */
START_TEST(damaged_states_of_other_runs_are_not_skipped) {
    bench b;
    rm_state_store store;
    open_bench(&b, FLAGS);
    ck_ok(rm_state_store_open(in_scratch("st"), 0, 0, NULL, &store));
    save_as(&store, &b, JOB);
    save_as(&store, &b, "REMAT_JOB_ID=b");
    rm_state_store_close(&store);
    spoil("st/step-00000002/model.safetensors", -1);
    ck_assert_str_eq(goes_on_from(JOB), "");
    ck_assert_int_eq(count_entries(in_scratch("st"), "step-"), 2);
    ck_assert_str_eq(note, "");
    close_bench(&b);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("state_jobs");
    tcase_add_test(tests, jobs_continue_from_their_own_states);
    tcase_add_test(tests, torchrun_jobs_without_a_name_are_told_apart);
    tcase_add_test(tests, requeued_slurm_jobs_continue);
    tcase_add_test(tests, damaged_states_are_skipped);
    tcase_add_test(tests, damaged_states_of_other_runs_are_not_skipped);
    return run_suite("train/state_jobs", tests);
}
