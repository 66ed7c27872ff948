/* test_launch_flags.c: `remat launch` accepts torchrun's flags and refuses others with a message; `remat train
 * --devices` starts its own ranks. */
#define _GNU_SOURCE
#include "engine/abi.h"
#include "tests/dist/launchers.h"

#include "memory/host.h"
#include "tests/says.h"
#include "train/commands/commands.h"

/* ---- Flags ------------------------------------------------------------------------------------------------------- */

/* Runs `remat launch` with these words, split at spaces, in another process. */
static int launch_words(const char *words) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return end_of(pid);
    char copy[600], *argv[40];
    int argc = 0, code = 0;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word && argc < 30; word = strtok(NULL, " ")) argv[argc++] = word;
    argv[argc] = NULL;
    alarm(280);
    to_file("job.out", 1);
    to_file("job.err", 2);
    remat_status status = rm_command_launch(argc, argv, &code);
    if (status) fprintf(stderr, "%s\n", remat_last_error());
    fflush(NULL);
    _exit(status ? 100 + (int)status : code);
}

static const struct {
    const char *environment, *words, *line;
} understood[] = {
    {"", "--nproc-per-node=2 --no-prefix --", "0/2 0/1 127.0.0.1 "},
    {"", "--nproc_per_node 2 --no-prefix", "1/2 0/1 127.0.0.1 "},
    {"", "--standalone --nproc_per_node=1 --nnodes=1:1", "[0] 0/1 0/1 127.0.0.1 "},
    {"", "--nnodes=2 --node_rank=1 --master_addr=h --master_port=77 --nproc=2", "[3] 3/4 1/2 h 77 h:77"},
    {"", "--nnodes=2 --node-rank 1 --master-addr h --run-id=night", "[1] 1/2 1/2 h 29500 night"},
    {"", "--nnodes=4:4 --node-rank=3 --rdzv-endpoint=h:5 --rdzv-id=x", "[3] 3/4 3/4 h 5 x"},
    {"", "--nnodes=2 --node-rank=1 --rdzv_endpoint=h", "[1] 1/2 1/2 h 29400 h:29400"},
    {"", "--nnodes=2 --node-rank=1 --rdzv-endpoint=[fe80::1]:9", "[1] 1/2 1/2 fe80::1 9 "},
    {"", "--nnodes=2 --node-rank=1 --master-addr=[fe80::1] --master-port=9", "[1] 1/2 1/2 fe80::1 9 "},
    {"", "--rdzv-endpoint=localhost:0 --rdzv-id=7", "[0] 0/1 0/1 127.0.0.1 "},
    {"PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=h PET_NPROC_PER_NODE=2", "--master-port=6", "[2] 2/4 1/2 h 6 h:6"},
    {"PET_NPROC_PER_NODE=3", "--nproc-per-node=1", "[0] 0/1 0/1"},
    {"", "-np 2 --no-prefix", "1/2 0/1 127.0.0.1 "},
    {"", "-H localhost:3 -n 2", "[1] 1/2 0/1 127.0.0.1 "},
    {"", "--local-ranks-filter=0,2 --nproc-per-node=3", "[2] 2/3 "},
    {"", "--redirects=0 --tee=0:0", "[0] 0/1 "},
    {"SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2", "--nnodes=2 --master-addr=h", "[1] 1/2 1/2 h 29500 h:29500"},
};

static void set_variables(const char *variables, bool set) {
    char copy[300];
    snprintf(copy, sizeof copy, "%s", variables);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        char *equals = strchr(word, '=');
        *equals = 0;
        if (set)
            setenv(word, equals + 1, 1);
        else
            unsetenv(word);
    }
}

START_TEST(torchruns_flags_are_accepted) {
    char words[600];
    snprintf(words, sizeof words, "%s %s", understood[_i].words, in_folder("show"));
    FILE *show = fopen(in_folder("show"), "w");
    fputs("#!/bin/sh\necho $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $MASTER_PORT "
          "$TORCHELASTIC_RUN_ID\n",
          show);
    fclose(show);
    chmod(in_folder("show"), 0755);
    set_variables(understood[_i].environment, true);
    int code = launch_words(words);
    set_variables(understood[_i].environment, false);
    char *out = output_of("job", "out"), *err = output_of("job", "err");
    ck_assert_msg(!code && contains(out, understood[_i].line), "%s: %d, %s%s", words, code, out, err);
    free(out);
    free(err);
}
END_TEST

static const struct {
    const char *words, *said;
} refused[] = {
    {"", "there is no command to start"},
    {"--nproc-per-node=2", "there is no command to start"},
    {"--nproc-per-node=2 --", "there is no command to start"},
    {"--nproc-per-node=0 true", "must be from 1 to 4096"},
    {"--nproc-per-node=two true", "--nproc-per-node=two: is not a whole number"},
    {"--nproc-per-node=+2 true", "is not a whole number"},
    {"--nproc-per-node= true", "is empty"},
    {"--nproc-per-node=gpu true", "does not count GPUs"},
    {"--nproc-per-node --standalone true", "--nproc-per-node needs a value"},
    {"--nproc-per-nod=2 true", "--nproc-per-nod is not a flag"},
    {"-m train", "-m is not a flag"},
    {"-np 2 --nnodes=2 true", "give --nproc-per-node=N"},
    {"-np 5 -H a:2,b:2 true", "4 slots"},
    {"-H a:0 true", "-H|a:0|from 1 to 4096"},
    {"--hosts=b,a:x true", "--hosts|a:x|from 1 to 4096"},
    {"-H a:1,b:2 --local-ranks-filter=2 true", "--local-ranks-filter=2|rank 2|2 ranks"},
    {"--local-ranks-filter=0,7 --nproc-per-node=2 true", "--local-ranks-filter=0,7|rank 7|2 ranks"},
    {"--redirects=5:1 --log-dir=x true", "--redirects=5:1|rank 5"},
    {"-t 0:1,1:2 --log-dir=x true", "-t=0:1,1:2|rank 1"},
    {"--redirects=0:4 --log-dir=x true", "--redirects=0:4|'4'|from 0 to 3"},
    {"-H a,,b true", "'' is not a host"},
    {"-H a --nnodes=2 true", "remove --nproc-per-node, --nnodes"},
    {"--hosts=a --hostfile=b true", "give one of them"},
    {"--num_processes=2 true", "did you mean --nproc-per-node?"},
    {"--standalone=yes true", "is a switch"},
    {"--nnodes=4:1 true", "MIN is larger than MAX"},
    {"--nnodes=:2 true", "--nnodes=:2 lacks a number|MIN:MAX"},
    {"--nnodes=2: true", "--nnodes=2: lacks a number|MIN:MAX"},
    {"--nnodes=1:4 --node-rank=0 true", "--master-addr=HOST"},
    {"--nnodes=1:4 --master-addr=h true", "4 is missing: give --node-rank=R"},
    {"--nnodes=2 true", "2 is missing: give --node-rank=R"},
    {"--nnodes=2 --node-rank=0 true", "--master-addr=HOST"},
    {"--nnodes=2 --node-rank=2 --master-addr=h true", "node 2 of 2"},
    {"--nnodes=2 --node-rank=0 --master-addr=localhost true", "that node itself"},
    {"--nnodes=2 --node-rank=0 --master-addr=h --master-port=0 true", "--master-port"},
    {"--master-port=65536 true", "must be from 0 to 65535"},
    {"--standalone --nnodes=1:2 true", "--standalone is for one host|--nnodes"},
    {"--standalone --master-port=5 true", "--standalone chooses a port"},
    {"--rdzv-endpoint=h:5 --master-addr=h true", "give one or the other"},
    {"--rdzv-endpoint=:5 true", "HOST:PORT"},
    {"--rdzv-endpoint=h:x true", "whole number"},
    {"--rdzv-backend=c10d true", "no effect"},
    {"--no_python true", "no effect"},
    {"--monitor-interval 5 true", "no effect"},
    {"-np 2 --bind-to none true", "--bind-to|no effect"},
    {"--mca btl tcp,self true", "--mca|no effect"},
    {"--allow-run-as-root -np 2 true", "--allow-run-as-root|no effect"},
    {"-H a -p 2222 true", "-p|~/.ssh/config"},
    {"-H a --ssh_identity_file=k true", "--ssh-identity-file|~/.ssh/config"},
    {"-np 2 -x LANG true", "-x|env NAME=VALUE"},
    {"--min-np 2 true", "did you mean --nnodes=MIN:MAX?"},
    {"--max-restarts=-1 true", "--max-restarts=-1: must be from 0 to 1000000"},
    {"--max-restarts=-x true", "--max-restarts=-x: is not a whole number"},
    {"--redirects=3 true", "give --log-dir=DIR"},
    {"-t 4 --log-dir=x true", "-t=4: must be from 0 to 3"},
    {"--tee=1:2,3 --log-dir=x true", "--tee=1:2,3: use RANK:N"},
    {"--tee=1:2,0:x --log-dir=x true", "--tee=1:2,0:x|'x'|whole number"},
    {"--local-ranks-filter=0,5000 true", "0,5000|from 0 to 4095"},
    {"--standalone no-such-script.py", "put python in front"},
    {"--standalone train --data=x", "put remat in front"},
};

/* A directory with a program's name in PATH is not a program. */
START_TEST(directories_are_not_taken_for_programs) {
    char path[400];
    ck_assert_int_eq(mkdir(in_folder("train"), 0777), 0);
    snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
    setenv("PATH", path, 1);
    int code = launch_words("--standalone train --data=x");
    char *err = output_of("job", "err");
    ck_assert_msg(code == 100 + REMAT_INVALID && contains(err, "put remat in front"), "%d, %s", code, err);
    free(err);
}
END_TEST

START_TEST(wrong_flags_are_refused) {
    int code = launch_words(refused[_i].words);
    char *err = output_of("job", "err");
    ck_assert_msg(code == 100 + REMAT_INVALID && says_all(err, refused[_i].said), "%s: %d, %s", refused[_i].words, code,
                  err);
    free(err);
}
END_TEST

/* A stream that no flag sends to a file of its own is in the rank's log. */
START_TEST(redirects_of_nothing_leave_the_logs_whole) {
    char words[900];
    snprintf(words, sizeof words, "--redirects=0 --log-dir=%s --no-prefix echo it", in_folder("logs"));
    ck_assert_int_eq(launch_words(words), 0);
    snprintf(words, sizeof words, "grep -qx it %s/*/attempt-0/rank-0.log", in_folder("logs"));
    ck_assert_int_eq(system(words), 0);
}
END_TEST

/* Random words give a result or an error; nothing is ever started, since there is no such command. */
START_TEST(random_words_never_crash) {
    static const char *const pieces[] = {"--",
                                         "nproc-per-node",
                                         "nnodes",
                                         "=",
                                         "2",
                                         ":",
                                         "_",
                                         "-",
                                         "node_rank",
                                         "rdzv-endpoint",
                                         "=[",
                                         "]",
                                         "127.0",
                                         "%s",
                                         " ",
                                         " ",
                                         "help",
                                         "log-dir",
                                         "99999999999999999999",
                                         "\x01",
                                         "h",
                                         "master-port"};
    uint64_t state = 7;
    char *argv[12], text[400];
    int null = open("/dev/null", O_WRONLY), kept = dup(1), code;
    dup2(null, 1);
    for (int trial = 0; trial < 20000; trial++) {
        size_t at = 0;
        int argc = 0, n = (int)(next_random(&state) % 14);
        text[0] = 0;
        for (int p = 0; p < n; p++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s", pieces[next_random(&state) % COUNT(pieces)]);
        for (char *word = strtok(text, " "); word && argc < 11; word = strtok(NULL, " ")) argv[argc++] = word;
        argv[argc] = NULL;
        bool help = false;
        for (int i = 0; i < argc; i++) help |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
        remat_status status = rm_command_launch(argc, argv, &code);
        ck_assert_msg(status == REMAT_INVALID || status == REMAT_IO || (help && !status), "status %d", (int)status);
        ck_assert(!status || *remat_last_error());
    }
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    close(null);
}
END_TEST

/* ---- --devices --------------------------------------------------------------------------------------------------- */

/* Like `remat train --devices=WORDS`, with all other flags at their defaults. */
static remat_status start_devices(const char *words, bool *ran, int *code) {
    rm_options options = {0};
    remat_status status = rm_options_defaults(&options);
    if (!status && words) options.devices = rm_strdup(words);
    if (!status) status = rm_command_devices(&options, ran, code);
    rm_options_free(&options);
    return status;
}

/* Missing GPUs are refused by the build, or by the list of visible ones. */
static void ck_gpus_are_refused(bool *ran, int *code) {
    bool cuda = strstr(rm_build_info_of_this().devices, "cuda") != NULL;
    setenv("CUDA_VISIBLE_DEVICES", "3,4", 1);
    ck_fails(start_devices("0,1,2", ran, code), INVALID,
             cuda ? "CUDA_VISIBLE_DEVICES=3,4 has no GPU 2" : "CUDA_VISIBLE_DEVICES=3,4), and this build has no CUDA");
    unsetenv("CUDA_VISIBLE_DEVICES");
    if (!cuda) ck_fails(start_devices("cuda:0,1", ran, code), INVALID, "--devices=cpu:2 starts 2 ranks");
    if (!cuda) ck_fails(start_devices("4", ran, code), INVALID, "the number of a GPU");
    if (!cuda) ck_fails(start_devices("4", ran, code), INVALID, "--devices=cpu:4 starts 4 ranks");
}

START_TEST(devices_start_ranks_of_this_program) {
    bool ran = true;
    int code = 9;
    ck_ok(start_devices(NULL, &ran, &code));
    ck_assert(!ran);
    ck_ok(start_devices("cpu", &ran, &code));
    ck_assert(!ran);
    ck_ok(start_devices("cpu:1", &ran, &code));
    ck_assert(!ran);
    ck_gpus_are_refused(&ran, &code);
    ck_fails(start_devices("cpu:0", &ran, &code), INVALID, "from 1 to 4096");
    ck_fails(start_devices("cpu:x", &ran, &code), INVALID, "whole number");
    ck_fails(start_devices("gpus", &ran, &code), INVALID, "cpu:N");
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "7", 1);
    ck_fails(start_devices("cpu:2", &ran, &code), INVALID, "rank 1 of 2 (torchrun's variables) already");
    /* An environment in which its ranks could not meet still makes it a rank */
    set_variables("MASTER_ADDR= MASTER_PORT=", false);
    ck_fails(start_devices("cpu:2", &ran, &code), INVALID, "rank 1 of 2 (torchrun's variables) already");
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    ck_fails(start_devices("cpu:2", &ran, &code), INVALID, "contradicts itself");
    set_variables("OMPI_COMM_WORLD_SIZE= OMPI_COMM_WORLD_RANK=", false);
    ck_assert(!ran);
    set_variables("RANK= WORLD_SIZE= MASTER_ADDR= MASTER_PORT=", false);
    char command[1200];
    snprintf(command, sizeof command, "%s --devices 'a b' '' > %s 2>&1", self, in_folder("job.out"));
    ck_assert_int_eq(system(command), 3 << 8);
    char *text = output_of("job", "out");
    for (int r = 0; r < 3; r++) {
        char line[60];
        snprintf(line, sizeof line, "%srank %d of 3, 4 words, 'a b', ''\n", r ? "] " : "", r);
        ck_assert_msg(contains(text, line), "'%s' lacks '%s'", text, line);
    }
    free(text);
}
END_TEST

static int show_devices(int argc, char **argv) {
    bool ran = true;
    int code = 9;
    remat_status status = start_devices("cpu:3", &ran, &code);
    if (status) fprintf(stderr, "%s\n", remat_last_error());
    if (status || ran) return status ? 9 : code;
    printf("rank %s of %s, %d words, '%s', '%s'\n", getenv("RANK"), getenv("WORLD_SIZE"), argc, argv[2], argv[3]);
    return 3; /* the other ranks are still printing, or have ended in the same way */
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    find_self();
    if (argc == 4 && !strcmp(argv[1], "--devices")) return show_devices(argc, argv);
    TCase *cases = tcase_create("launch_flags");
    tcase_add_loop_test(cases, torchruns_flags_are_accepted, 0, COUNT(understood));
    tcase_add_loop_test(cases, wrong_flags_are_refused, 0, COUNT(refused));
    tcase_add_test(cases, directories_are_not_taken_for_programs);
    tcase_add_test(cases, redirects_of_nothing_leave_the_logs_whole);
    tcase_add_test(cases, random_words_never_crash);
    tcase_add_test(cases, devices_start_ranks_of_this_program);
    return run_in_directories("dist/launch_flags", cases);
}
