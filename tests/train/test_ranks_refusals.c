/* test_ranks_refusals.c: `remat train` on several ranks refuses wrong flags and ranks that differ, with one message. */
#include "tests/train/rank_jobs.h"
#include "tests/tries.h"

/* ---- Messages --------------------------------------------------------------------------------------------------- */

/* One rank prints the refusal, and all end with the same status. */
static const struct {
    const char *line, *odd; /* additional flags of rank 1 */
    int status, speaker;
    const char *part, *other;
} refusals[] = {
    {"--batch=4", "--hidden=13", 2, 0, "--hidden=13", "rank 1"},
    {"--batch=4", "--lr=0.02", 2, 0, "--lr=", "rank 1"},
    {"--batch=4", "--seed=3", 2, 0, "--seed=3", "rank 1"},
    {"--batch=4", "--batch=8", 2, 0, "--batch=8", "rank 1"},
    {"--batch=4", "--data=%s/longer", 2, 0, "samples", "rank 1"},
    {"--batch=4", "--data=%s/other", 2, 0, "checksum|data", "rank 1"},
    {"--batch=4 --eval-data=%s/text", "--eval-data=%s/longer", 2, 0, "evaluation|samples", "rank 1"},
    {"--batch=4 --eval-data=%s/text", "--eval-data=%s/other", 2, 0, "evaluation|checksum", "rank 1"},
    {"--batch=4", "--zero=1", 2, 0, "--zero=1", "rank 1"},
    {"--batch=4", "--dist-backend=local", 2, 0, "rank 0|--dist-backend=auto", "rank 1|--dist-backend=local"},
    {"--batch=4 --save=%s/st", "--checkpoint=sqrt", 2, 0, "rank 0|--checkpoint=none", "rank 1|--checkpoint=sqrt"},
    {"--batch=4", "--save=%s/st", 2, 0, "--save", "rank 1"},
    {"--batch=4", "--data=%s/nothing", 1, 1, "nothing|exist", "rank 1 of 2"},
    {"--batch=4 --data=%s/nothing", "", 1, 0, "nothing|exist", "rank 0 of 2"},
    {"--batch=4000", "", 2, 0, "--batch=4000", "2 ranks"},
    {"--batch=4 --metrics=/nowhere/m", "", 1, 0, "--metrics", "rank 0 of 2"},
    {"--batch=4 --save=/proc/nowhere", "", 1, 0, "--save", "rank 0 of 2"},
    {"--batch=3 --deterministic-world=4", "", 2, 0, "multiple of 2", "rank 0"},
    {"--batch=4 --deterministic-world=1", "", 2, 0, "--deterministic-world=2", "rank 0"},
    {"--batch=4 --device=null", "", 2, 0, "remat plan|--world-size=2", "rank 0"},
    {"--batch=4 --zero=1 --dump-grads=%s/g", "", 2, 0, "--dump-grads", "rank 0"},
    {"--task=adding --batch=4 --optimizer=sgd --lr=1e6", "", 1, 0, "reduce --lr", "step"},
    {"--batch=4 --memory-budget=1KiB", "", 2, 0, "--memory-budget=1KiB", "least that fits"},
    {"--batch=4 --pipeline=2 --memory-budget=1MiB", "", 2, 0, "--memory-budget=1MiB", "least that fits"},
    {"--batch=4", "--memory-budget=1GiB", 2, 0, "rank 0|--memory-budget", "--memory-budget=1073741824"},
};

enum { REFUSALS = sizeof refusals / sizeof *refusals };

/* A text as long as the first, with other content. */
static void make_other_text(void) {
    struct stat about;
    ck_assert_int_eq(stat(text_file(), &about), 0);
    char *zeros = calloc(1, (size_t)about.st_size);
    make_file("other", zeros, (size_t)about.st_size);
    free(zeros);
}

/* Whether one rank says it alone: the other also reports an error if this one fails more than a second later. */
static bool refuses(job *j, const char *line, const char *odd, int i) {
    int speaker = refusals[i].speaker;
    start_ranks(j, 2, line, 1, odd);
    finish_ranks(j);
    ck_all_end(j, refusals[i].status);
    ck_says(j, speaker, refusals[i].part);
    ck_says(j, speaker, refusals[i].other);
    return is_quiet(j, 1 - speaker);
}

START_TEST(refusals_come_from_one_rank) {
    job j;
    char line[1024], flags[256], odd[256];
    text_file();
    make_text("longer", 30000);
    make_other_text();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(flags, sizeof flags, refusals[_i].line, scratch());
    snprintf(odd, sizeof odd, refusals[_i].odd, scratch());
#pragma GCC diagnostic pop
    snprintf(line, sizeof line, "train %s%s%s " FLAGS "--steps=40 %s",
             strstr(flags, "--task") ? "" : "--data=", strstr(flags, "--task") ? "" : scratch(),
             strstr(flags, "--task") ? "" : "/text", flags);
    if (!once_of_five(refuses(&j, line, odd, _i))) ck_quiet(&j, 1 - refusals[_i].speaker);
}
END_TEST

/* Patches another version number into the program. */
static void make_other_version(const char *path) {
    char command[600];
    snprintf(command, sizeof command,
             "sed 's/" REMAT_VERSION "\\x00/9.8.7\\x00/g' " RM_BINARY_DIR "/remat >%s && chmod +x %s", path, path);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(another_version_is_refused) {
    const char *other = in_scratch("remat-9.8.7");
    char flags[600], command[1500];
    make_other_version(other);
    snprintf(flags, sizeof flags,
             "train --data=%s " FLAGS "--batch=4 --steps=2 --world-size=2 --init-method=file://%s --rank=", text_file(),
             in_scratch("versions"));
    snprintf(command, sizeof command, "%s %s1 2>%s &", other, flags, in_scratch("errors"));
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(run_program("%s0", flags), 2); /* it may also report that it waits for rank 1 */
    ck_says_all(program_errors, "rank 0 on |Remat " REMAT_VERSION "|rank 1");
    ck_says_all(program_errors, "Remat 9.8.7");
}
END_TEST

/* All ranks have the same command line: one reports the error, and nothing is restarted. */
START_TEST(wrong_flags_are_reported_once) {
    int status = run_program("launch --nproc-per-node=3 --max-restarts=2 " RM_BINARY_DIR "/remat train --hiden=4");
    ck_assert_int_eq(status, 2);
    const char *said = strstr(program_errors, "--hiden is not a flag");
    ck_assert_msg(said && !strstr(strchr(said, '\n'), "is not a flag"), "%s", program_errors);
    ck_says_all(program_errors, "[0] remat train: ");
    ck_says_all(program_errors, "no restart: exit status");
}
END_TEST

/* A feature that this machine lacks will also be missing at the next attempt. */
START_TEST(missing_features_are_not_restarted) {
    int status = run_program("launch --nproc-per-node=2 --max-restarts=2 " RM_BINARY_DIR "/remat train --data=%s " FLAGS
                             "--batch=4 --steps=2 --precision=tf32",
                             text_file());
    ck_assert_int_eq(status, 2);
    ck_says_all(program_errors, "precision|tf32");
    ck_says_all(program_errors, "no restart: exit status");
}
END_TEST

/* How many ranks report it. */
static int ask_for_engine(const char *name) {
    int lines = 0,
        status = run_program("train --devices=cpu:3 --dist-backend=%s --data=%s " FLAGS "--batch=4 --steps=9", name,
                             text_file());
    ck_assert_msg(status == 2, "exit %d: %s", status, program_errors);
    /* On a busy machine rank 0 may report that it waits. */
    for (const char *at = program_errors; (at = strstr(at, "remat train: ")); at++)
        lines += strncmp(at, "remat train: rank 0 of 3: waiting for ", 38) != 0;
    ck_assert_msg(strstr(program_errors, "remat train: rank 0 of 3 on "), "%s", program_errors);
    return lines;
}

/* Errors are reported once even before the group exists, unless a busy machine lets rank 0 fail more than a second after the
 * others. The message for mpi depends on the build. */
START_TEST(wrong_engines_are_reported_once) {
    static const char *const names[] = {"nccl", "mpi"};
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* MPI itself leaks; leaks are the other tests' business */
    ck_assert_msg(once_of_five(ask_for_engine(names[_i]) == 1), "%s", program_errors);
#ifdef REMAT_HAVE_MPI
    const char *remedy = "rank 0 of 3|no launcher of MPI|mpirun|--dist-backend=mpi";
    ck_assert_msg(!_i || says_all(program_errors, remedy), "%s", program_errors);
#endif
}
END_TEST

#ifdef REMAT_HAVE_MPI
/* Flags that contradict mpirun: each rank has the other's number. */
START_TEST(ranks_have_the_numbers_of_mpi) {
    char command[1024], said[4096];
    int out = temporary();
    if (system("command -v mpirun >/dev/null")) return;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* MPI itself leaks; leaks are the other tests' business */
    snprintf(command, sizeof command,
             "mpirun -np 2 $(mpirun --version | grep -q 'Open MPI' && echo --oversubscribe --bind-to none) "
             "sh -c 'exec " RM_BINARY_DIR "/remat train --data=%s " FLAGS "--batch=4 --steps=9 --dist-backend=mpi "
             "--init-method=file://%s --world-size=2 --rank=$((1-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}))' >&%d 2>&%d",
             text_file(), in_scratch("swapped"), out, out);
    int status = system(command);
    read_back(out, said, sizeof said);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 2, "%d: %s", status, said);
    ck_says_all(said, "of 2, but MPI says |mpirun|--dist-backend=mpi");
}
END_TEST
#endif

START_TEST(unsupported_backend_is_refused_for_one_rank) {
    int status = run_program("train --dist-backend=nccl --data=%s " FLAGS "--batch=4 --steps=1", text_file());
    ck_assert_int_eq(status, 2);
    ck_says_all(program_errors, "--dist-backend=nccl|GPU");
}
END_TEST

/* A rank whose disk is full in the middle of the run reports it; the others report which rank stopped them. */
START_TEST(full_disk_of_one_rank_stops_all) {
    job j;
    char line[1024];
    snprintf(line, sizeof line, "train --data=%s " FLAGS "--batch=4 --steps=100000 --metrics-per-rank --metrics=%s/m",
             text_file(), scratch());
    ck_assert_int_eq(symlink("/dev/full", in_scratch("m.rank1")), 0);
    start_ranks(&j, 3, line, -1, "");
    finish_ranks(&j);
    ck_assert_int_eq(j.status[1], 1);
    ck_says(&j, 1, "m.rank1|space");
    for (int r = 0; r < 3; r += 2) {
        ck_assert_msg(j.status[r] == 1 || j.status[r] == 3, "exit %d", j.status[r]);
        if (j.status[r] == 3) ck_says(&j, r, "rank 1");
    }
}
END_TEST

/* ---- Ranks that die, hang and are stopped ----------------------------------------------------------------------- */

/* For three ranks no number of shards works, and the message does not ask for one. */
START_TEST(three_ranks_have_no_deterministic_world) {
    job j;
    run_ranks(&j, 3, "train --data=%s " FLAGS "--batch=4 --steps=2 --deterministic-world=%d", text_file(), _i ? 4 : 8);
    ck_all_end(&j, 2);
    ck_says(&j, 0, "3 ranks|power of two");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("ranks_refusals");
    tcase_add_loop_test(tests, refusals_come_from_one_rank, 0, REFUSALS);
    tcase_add_test(tests, another_version_is_refused);
    tcase_add_test(tests, wrong_flags_are_reported_once);
    tcase_add_test(tests, missing_features_are_not_restarted);
    tcase_add_loop_test(tests, wrong_engines_are_reported_once, 0, 2);
#ifdef REMAT_HAVE_MPI
    tcase_add_test(tests, ranks_have_the_numbers_of_mpi);
#endif
    tcase_add_test(tests, unsupported_backend_is_refused_for_one_rank);
    tcase_add_test(tests, full_disk_of_one_rank_stops_all);
    tcase_add_loop_test(tests, three_ranks_have_no_deterministic_world, 0, 2);
    return run_suite("train/ranks_refusals", tests);
}
