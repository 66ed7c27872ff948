/* test_restarts.c: ranks of a job are killed at random moments, and the launcher restarts the job, which continues from
 * its last saved state. In the end parameters and optimizer state have the same bits as those of an undisturbed job.
 * Also jobs resumed on other ranks. REMAT_LONG_TESTS=1 kills 20 times per case instead of twice. */
#include "tests/cases.h"
#include "tests/sanitized.h"
#include "tests/train/jobs.h"
#include "tests/tries.h"

#define REMAT RM_BINARY_DIR "/remat"
#define FLAGS "--hidden=24 --layers=2 --seq-len=64 --batch=4 --dropout=0.2 --threads=1 --lr=0.01 "
enum { STEPS = 200 };

static int kills_wanted(void) { return rm_cases(20, 2); }

/* ---- A disturbed job ---- */

/* Kills a random rank, a random time after all ranks of an attempt run, or after a state was saved. False: the job
 * ended before. */
static bool kill_one(pid_t launcher, int size, bool soon, int *status) {
    pid_t rank[16];
    int there = 0;
    for (int waited = 0; there < size; waited++) {
        if (waitpid(launcher, status, WNOHANG) == launcher) return false;
        ck_assert_msg(waited < 30000, "%d of %d ranks are there", there, size);
        there = ranks_of(launcher, rank, 16);
        wait_ms(1);
    }
    if (!soon) wait_for_progress("killed");
    wait_ms(rand() % (soon ? 150 : 50));
    kill(rank[rand() % size], SIGKILL);
    for (int waited = 0; waited < 30000; waited++) { /* until all have ended, or new ones run */
        pid_t now[16];
        if (waitpid(launcher, status, WNOHANG) == launcher) return false;
        int n = ranks_of(launcher, now, 16), same = 0;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < size; k++) same += now[i] == rank[k];
        if (same == 0) return true;
        wait_ms(1);
    }
    ck_abort_msg("ranks that lost another one did not stop");
    return false;
}

/* Runs the job to its end, and kills this many ranks on the way. Returns how many were killed. */
static int run_disturbed(const char *line, int size, int kills) {
    int out = temporary(), err = temporary(), status = 0, killed = 0;
    pid_t launcher = start_program(line, out, err);
    bool ended = false;
    while (!ended && killed < kills) {
        ended = !kill_one(launcher, size, killed % 2, &status);
        if (!ended) killed++;
    }
    if (!ended) ck_assert_int_eq(waitpid(launcher, &status, 0), launcher);
    read_back(out, program_output, sizeof program_output);
    read_back(err, program_errors, sizeof program_errors);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x: %s", (unsigned)status, program_errors);
    return killed;
}

/* ---- Tests ---- */

static const struct {
    int size;
    const char *flags;
} cases[] = {
    {1, ""}, {2, ""}, {3, "--zero=1"}, {2, "--deterministic-world=4 --clip-grad-norm=0.5"}, {2, "--pipeline=2"}};

START_TEST(restarted_job_has_the_same_bits) {
    if (rm_release_only(_i, 2)) return;
    char line[2048];
    const char *text = make_text("text", 8192);
    int size = cases[_i].size, kills = kills_wanted();
    ck_runs("launch --nproc-per-node=%d " REMAT " train --data=%s " FLAGS "%s --steps=%d --save=%s", size, text,
            cases[_i].flags, STEPS, in_scratch("alone"));
    snprintf(line, sizeof line,
             "launch --nproc-per-node=%d --max-restarts=%d " REMAT " train --data=%s " FLAGS
             "%s --steps=%d --save=%s --save-every=3",
             size, kills + 1, text, cases[_i].flags, STEPS, in_scratch("killed"));
    srand((unsigned)_i + 5);
    int killed = run_disturbed(line, size, kills);
    for (int again = 0; again < 5 && killed < 2;
         again++) { /* on a busy machine the job may end before this process kills */
        char command[300];
        snprintf(command, sizeof command, "rm -rf %s", in_scratch("killed"));
        ck_assert_int_eq(system(command), 0);
        *last_progress = 0;
        killed = run_disturbed(line, size, kills);
    }
    ck_assert_int_ge(killed, 2);
    ck_says_all(program_output, "resumed from");
    same_files(in_scratch("alone/step-00000200"), in_scratch("killed/step-00000200"));
}
END_TEST

/* The state of another run in the directory is refused, also after restarts. */
START_TEST(restarted_job_refuses_the_state_of_another_run) {
    const char *text = make_text("text", 8192);
    ck_runs("launch --nproc-per-node=2 " REMAT " train --data=%s " FLAGS "--steps=4 --save=%s", text, in_scratch("st"));
    int status =
        run_program("launch --nproc-per-node=2 --max-restarts=2 " REMAT " train --data=%s " FLAGS "--steps=8 --save=%s",
                    text, in_scratch("st"));
    ck_assert_int_eq(status, 2);
    ck_says_all(program_errors, "training state|step 4");
}
END_TEST

/* A restart would find the disk full again. */
START_TEST(full_disk_is_not_restarted) {
    char line[2048];
    snprintf(line, sizeof line,
             "launch --max-restarts=2 " REMAT " train --data=%s " FLAGS "--steps=9 --save=%s "
             "--save-every=3",
             make_text("text", 8192), in_scratch("st"));
    largest_file = 8192;
    int status = run_program("%s", line);
    largest_file = 0;
    ck_assert_msg(status == 2, "%d: %s", status, program_errors);
    ck_says_all(program_errors, "step 3|not saved|make room|exit status 2");
    ck_assert_msg(!strstr(program_errors, "restart 1 of 2"), "%s", program_errors);
}
END_TEST

/* Is the rank that received SIGTERM named, though all end with its status? */
static bool terminate_rank_1(void) {
    static int jobs;
    char line[2048], words[100], state[16];
    snprintf(state, sizeof state, "killed%d", jobs++);
    pid_t rank[16];
    int out = temporary(), err = temporary(), status = 0;
    snprintf(line, sizeof line,
             "launch --nproc-per-node=3 --max-restarts=2 " REMAT " train --data=%s " FLAGS
             "--steps=1000000 --save=%s --save-every=3",
             make_text("text", 8192), in_scratch(state));
    pid_t launcher = start_program(line, out, err);
    wait_for_progress(state);
    ck_assert_int_eq(ranks_of(launcher, rank, 16), 3);
    kill(rank[1], SIGTERM);
    ck_assert_int_eq(waitpid(launcher, &status, 0), launcher);
    read_back(err, program_errors, sizeof program_errors);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 143, "status %x: %s", (unsigned)status, program_errors);
    ck_assert_msg(!strstr(program_errors, "restarting all ranks"), "%s", program_errors);
    snprintf(words, sizeof words, "(process %d) exited with status 143", (int)rank[1]);
    return strstr(program_errors, words);
}

/* One rank receives SIGTERM: all stop after the same step, that rank is named, and nothing is restarted. The others let it
 * end first, which on a busy machine may take it longer than they wait. */
START_TEST(sigterm_of_a_rank_is_not_restarted) {
    ck_assert_msg(once_of_five(terminate_rank_1()), "rank 1 is not named: %s", program_errors);
}
END_TEST

/* The commands of each attempt of each rank; A is the command that they share. */
static const char *script(const char *text) {
    char whole[4096];
    int n = snprintf(whole, sizeof whole, "A='" REMAT " train --data=%s " FLAGS "--save=%s'\nS=%s\n%s\n",
                     in_scratch("text"), in_scratch("st"), in_scratch("st"), text);
    return make_file("job.sh", whole, (size_t)n);
}

/* Two jobs with the same name in one directory: the second, restarted before it saved anything, does not continue from
 * the first one's state. */
START_TEST(jobs_with_the_same_name_are_told_apart) {
    make_text("text", 8192);
    ck_runs("launch --nproc-per-node=2 --run-id=none sh %s", script("$A --steps=4"));
    int status = run_program("launch --nproc-per-node=2 --run-id=none --max-restarts=2 sh %s",
                             script("test $TORCHELASTIC_RESTART_COUNT = 0 && exit 5\nexec $A --steps=8"));
    ck_assert_int_eq(status, 2);
    ck_says_all(program_errors, "training state|step 4");
    ck_says_all(program_errors, "no restart: exit status");
    ck_assert_msg(!strstr(program_errors, "restart 2 of 2"), "%s", program_errors);
}
END_TEST

/* An agent that starts its rank through scripts, as torchrun may: first one attempt, then another. */
START_TEST(attempts_of_an_agent_are_recognised) {
    char command[1024];
    make_text("text", 8192);
    const char *rank = script("sh -c \"$A --steps=$1\"; exit $?"); /* no exec: an additional process between the two */
    snprintf(command, sizeof command,
             "v='TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True RANK=0 WORLD_SIZE=1';"
             "env $v TORCHELASTIC_RESTART_COUNT=0 sh %1$s 4 && env $v TORCHELASTIC_RESTART_COUNT=1 sh %1$s 6 || exit 1;"
             "sh -c \"env $v TORCHELASTIC_RESTART_COUNT=1 sh %1$s 8; exit \\$?\" 2>%2$s; test $? = 2 || exit 3; "
             "grep -q 'already holds a training state of step 6' %2$s || exit 4",
             rank, in_scratch("err"));
    int status = system(command);
    ck_assert_msg(status == 0, "exit %d", WEXITSTATUS(status));
}
END_TEST

/* The newest state is damaged between attempts: the next attempt says so in one line, and continues from the state
 * before. */
START_TEST(damaged_state_is_skipped) {
    const char *text = make_text("text", 8192);
    ck_runs("train --data=%s " FLAGS "--steps=1 --save=%s/init", text, scratch());
    ck_runs("launch --nproc-per-node=2 --max-restarts=1 sh %s",
            script("A=\"$A --init=${S%st}init/step-00000001/model.safetensors\"\n"
                   "if test $TORCHELASTIC_RESTART_COUNT = 0; then $A --zero=1 --steps=6 --save-every=2 || exit 7\n"
                   "test $RANK = 0 && printf x >>$S/step-00000006/optimizer-1-of-2.safetensors\n"
                   "sleep 0.3; exit 1; fi\nexec $A --zero=1 --steps=8"));
    ck_assert_msg(strstr(program_output, "resumed from") && strstr(program_output, "step 4, epoch"), "%s",
                  program_output);
    const char *said = strstr(program_errors, "optimizer-1-of-2.safetensors");
    ck_assert_msg(said, "%s", program_errors);
    ck_assert_msg(!strstr(strchr(said, '\n'), "optimizer-1-of-2.safetensors"), "more than once: %s", program_errors);
    ck_assert(!access(in_scratch("st/damaged-step-00000006/state.json"), R_OK));
    ck_assert(!access(in_scratch("st/step-00000008/state.json"), R_OK));
    ck_refuses(1, "damaged-step-00000006", "train --resume=%s --steps=9", in_scratch("st/damaged-step-00000006"));
}
END_TEST

/* With a deterministic world, resuming on other ranks gives the same bits, at any point of an epoch. */
START_TEST(resume_on_other_world_size_is_bit_exact) {
    const char *text = make_text("text", 8192);
#define GLOBAL "--hidden=24 --layers=2 --seq-len=64 --dropout=0.2 --threads=1 --lr=0.01 --deterministic-world=4 "
    ck_runs("launch --nproc-per-node=1 " REMAT " train --data=%s " GLOBAL "--batch=8 --steps=40 --save=%s", text,
            in_scratch("one"));
    ck_runs("launch --nproc-per-node=4 " REMAT " train --data=%s " GLOBAL "--batch=2 --steps=11 --zero=1 --save=%s",
            text, in_scratch("st"));
    ck_runs("launch --nproc-per-node=2 " REMAT " train --resume=%s --steps=25", in_scratch("st"));
    ck_runs("launch --nproc-per-node=1 " REMAT " train --resume=%s --zero=0 --steps=40", in_scratch("st"));
    same_files(in_scratch("one/step-00000040"), in_scratch("st/step-00000040"));
}
END_TEST

/* Files of weights do not depend on the sharding of the optimizer's state. */
START_TEST(weights_of_sharded_states_are_used) {
    const char *text = make_text("text", 8192);
    static char shared[sizeof program_output];
    ck_runs("launch --nproc-per-node=3 " REMAT " train --data=%s " FLAGS "--steps=5 --zero=1 --save=%s", text,
            in_scratch("a"));
    ck_runs("launch --nproc-per-node=3 " REMAT " train --data=%s " FLAGS "--steps=5 --zero=0 --save=%s", text,
            in_scratch("b"));
    ck_runs("eval --resume=%s --data=%s", in_scratch("a"), text);
    strcpy(shared, program_output);
    ck_runs("eval --resume=%s --data=%s", in_scratch("b"), text);
    ck_assert_str_eq(program_output, shared);
    ck_runs("sample --resume=%s --length=30", in_scratch("a"));
    strcpy(shared, program_output);
    ck_runs("sample --resume=%s --length=30", in_scratch("b"));
    ck_assert_str_eq(program_output, shared);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("restarts");
    tcase_add_loop_test(tests, restarted_job_has_the_same_bits, 0, sizeof cases / sizeof *cases);
    tcase_add_test(tests, restarted_job_refuses_the_state_of_another_run);
    tcase_add_test(tests, full_disk_is_not_restarted);
    tcase_add_test(tests, sigterm_of_a_rank_is_not_restarted);
    tcase_add_test(tests, jobs_with_the_same_name_are_told_apart);
    tcase_add_test(tests, attempts_of_an_agent_are_recognised);
    tcase_add_test(tests, damaged_state_is_skipped);
    tcase_add_test(tests, resume_on_other_world_size_is_bit_exact);
    tcase_add_test(tests, weights_of_sharded_states_are_used);
    return run_suite("train/restarts", tests);
}
