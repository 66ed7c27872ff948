/* test_launch_hosts.c: `remat launch -H`: one launcher for several hosts. Other hosts are reached by an `ssh` in PATH that runs
 * the command on this one. This program takes the place of `remat`. */
#define _GNU_SOURCE
#include "tests/dist/launchers.h"

#include "tests/ports.h"
#include "tests/says.h"
#include "train/commands/commands.h"

/* Scripts write to the files "pids" and "ids" of the current directory. */
static void make_script(const char *name, const char *text) {
    FILE *file = fopen(in_folder(name), "w");
    fprintf(file, "#!/bin/sh\n%s\n", text);
    fclose(file);
    chmod(in_folder(name), 0755);
}

/* As ssh, the script joins its words for a shell, and ends the command's input when it is killed. */
static void put_ssh_in_path(void) {
    char path[2000], text[600];
    snprintf(text, sizeof text,
             "[ \"$1 $2\" = '-T -oBatchMode=yes' ] || exit 99\nwhile [ $# -gt 2 ]; do shift; done\n"
             "echo $1 >>%s\nhost=$1 exec sh -c \"$2\"",
             in_folder("called"));
    make_script("ssh", text);
    snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
    setenv("PATH", path, 1);
}

/* Starts this program as `remat launch`, with flags that are split at spaces, and "sh -c SCRIPT". The name of this host may
 * not resolve, and "localhost" would be refused, because it names another host on each. */
static pid_t start_hosts(const char *flags, const char *script) {
    char copy[600], port[40], *argv[40] = {self, "launch", "--master-addr=localhost.", port};
    int argc = 4;
    snprintf(port, sizeof port, "--master-port=%d", reserved_port());
    snprintf(copy, sizeof copy, "%s", flags);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    argv[argc++] = "sh";
    argv[argc++] = "-c";
    argv[argc++] = (char *)script;
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    alarm(280);
    if (chdir(folder)) _exit(126);
    to_file("job.out", 1);
    to_file("job.err", 2);
    execv(self, argv);
    _exit(127);
}

static void ck_printed(const char *line) {
    char *text = output_of("job", "out");
    ck_assert_msg(contains(text, line), "'%s' lacks '%s'", text, line);
    free(text);
}

static const char *const lists[] = {"-np 3 -H localhost:2,far:2", "-n 3 --hosts localhost,far:2,localhost:1",
                                    "-np 3 --hostfile %s"};

/* Hosts are filled in order. Only the second one needs ssh. All ranks belong to one job, get the launcher's variables, and
 * start in its directory. */
START_TEST(ranks_are_numbered_across_hosts) {
    char flags[400], called[20], first[300];
    put_ssh_in_path();
    make_script("hosts", "\n  # two hosts\nlocalhost slots=2 max_slots=4\n\nfar:2 # by MPICH's notation");
    snprintf(flags, sizeof flags, lists[_i], in_folder("hosts"));
    setenv("NCCL_CHECK", "sent to all", 1);
    ck_assert_int_eq(
        end_of(start_hosts(flags, "echo \"$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK it's $host, "
                                  "$NCCL_CHECK\"; pwd; echo $REMAT_JOB_ID >>$PWD/ids; echo err $RANK >&2")),
        0);
    ck_printed("[0] 0/3 0/2 0 it's , sent to all\n");
    ck_printed("[1] 1/3 1/2 0 it's , sent to all\n");
    ck_printed("[2] 2/3 0/1 1 it's far, sent to all\n");
    snprintf(first, sizeof first, "[2] %s\n", folder);
    ck_printed(first);
    ck_said("[0] err 0\n", "[2] err 2\n");
    char *text = read_all(in_folder("called")), *ids = read_all(in_folder("ids"));
    snprintf(called, sizeof called, "far\n");
    ck_assert_str_eq(text, called);
    ck_assert_int_eq(strncmp(ids, ids + 33, 33) || strncmp(ids, ids + 66, 33) || strlen(ids) != 99, 0);
    free(text);
    free(ids);
}
END_TEST

/* The exit code is that of the rank that failed, on any host, although others end before it, as after a peer's failure. A
 * restart is one of all hosts. */
START_TEST(failure_on_another_host_ends_or_restarts_the_job) {
    put_ssh_in_path();
    const char *script =
        "if test $RANK = 0; then touch noticed; exit 3; fi; until test -e noticed; do sleep 0.02; done; "
        "sleep 0.3; exit 7";
    ck_assert_int_eq(end_of(start_hosts("-H localhost:1,far:1", script)), 7);
    char *text = output_of("job", "err");
    ck_says_all(text, "launcher of far|status 7|rank 1");
    free(text);
    script = "echo $RANK $TORCHELASTIC_RESTART_COUNT; test $TORCHELASTIC_RESTART_COUNT = 1 || exit 4";
    ck_assert_int_eq(end_of(start_hosts("-H localhost:1,far:1 --max-restarts=1", script)), 0);
    ck_printed("[1] 1 1\n");
    ck_printed("[0] 0 1\n");
}
END_TEST

/* As ssh does if it cannot connect, or is cut off. */
START_TEST(failure_of_ssh_is_not_taken_for_that_of_a_rank) {
    put_ssh_in_path();
    make_script("ssh", "exit 255");
    ck_assert_int_eq(end_of(start_hosts("-H localhost:1,far:1", "exec sleep 0.1")), 255);
    ck_said("ssh far exited with status 255: its message", "the other hosts are being stopped");
}
END_TEST

/* A signal to the launcher reaches all ranks, once. */
START_TEST(signals_reach_other_hosts) {
    pid_t pid[2];
    put_ssh_in_path();
    pid_t launcher = start_hosts(
        "-H near:1,far:1", "trap 'echo asked $RANK; exit 143' TERM; echo $$ >>pids; while :; do sleep 0.02; done");
    wait_for_pids(pid, 2);
    kill(launcher, SIGTERM);
    ck_assert_int_eq(end_of(launcher), 143);
    ck_printed("[0] asked 0\n");
    ck_printed("[1] asked 1\n");
    ck_assert(gone(pid[0]) && gone(pid[1]));
}
END_TEST

/* Nothing is left on any host when the launcher is killed. */
START_TEST(killed_launcher_leaves_no_ranks) {
    pid_t pid[3];
    put_ssh_in_path();
    pid_t launcher = start_hosts("-H localhost:1,far:2", "echo $$ >>pids; exec sleep 100");
    wait_for_pids(pid, 3);
    kill(launcher, SIGKILL);
    ck_assert_int_eq(end_of(launcher), 128 + SIGKILL);
    ck_assert_msg(until_gone(pid, 3) < 10, "ranks are left");
}
END_TEST

/* As the launcher of a host sees it when the connection of ssh is cut: its input ends. */
START_TEST(cut_connection_ends_the_ranks_of_a_host) {
    int ends[2];
    pid_t pid[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert_int_eq(write(ends[1], "SENT=a b\0", 10), 10);
    int before = dup(STDIN_FILENO);
    dup2(ends[0], STDIN_FILENO);
    pid_t launcher = start_hosts("--on-host --nproc-per-node=2", "echo got $SENT; echo $$ >>pids; exec sleep 100");
    dup2(before, STDIN_FILENO);
    wait_for_pids(pid, 2);
    close(ends[0]);
    close(ends[1]);
    ck_assert_int_eq(end_of(launcher), 128 + SIGHUP);
    ck_assert(gone(pid[0]) && gone(pid[1]));
    ck_printed("[1] got a b\n");
}
END_TEST

static int launch(int argc, char **argv) {
    int code = 0;
    remat_status status = rm_command_launch(argc - 2, argv + 2, &code);
    if (status) fprintf(stderr, "%s\n", remat_last_error());
    return status ? 100 + (int)status : code;
}

int main(int argc, char **argv) {
    find_self();
    if (argc > 1 && !strcmp(argv[1], "launch")) return launch(argc, argv);
    TCase *cases = tcase_create("launch_hosts");
    tcase_add_loop_test(cases, ranks_are_numbered_across_hosts, 0, COUNT(lists));
    tcase_add_test(cases, failure_on_another_host_ends_or_restarts_the_job);
    tcase_add_test(cases, failure_of_ssh_is_not_taken_for_that_of_a_rank);
    tcase_add_test(cases, signals_reach_other_hosts);
    tcase_add_test(cases, killed_launcher_leaves_no_ranks);
    tcase_add_test(cases, cut_connection_ends_the_ranks_of_a_host);
    return run_in_directories("dist/launch_hosts", cases);
}
