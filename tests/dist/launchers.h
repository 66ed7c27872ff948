/* launchers.h: helpers for tests of the launcher, which is forked from the test. Its output and that of its ranks go to
 * files in a directory of the test. Ranks are shell scripts, or the test program itself in another role (see its main).
 *
 *   ck_assert_int_eq(run(JOB(2, SCRIPT("exit $RANK"))), 1);   two ranks, the launcher's exit status
 *   ck_said("rank 1", NULL);                                  and what it printed
 */
#ifndef TEST_LAUNCHERS_H
#define TEST_LAUNCHERS_H

#include <fcntl.h>
#include <sys/stat.h>

#include "dist/launch/launch.h"
#include "tests/dist/ranks.h"
#include "tests/process_state.h"
#include "tests/suite.h"

#define COUNT(table) ((int)(sizeof table / sizeof *table))

static char folder[128], self[1024]; /* a directory of this process; this program */

static inline const char *in_folder(const char *name) {
    static char path[4][300];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

static inline char *read_all(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return strdup("");
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    char *text = malloc((size_t)bytes + 1);
    text[fread(text, 1, (size_t)bytes, file)] = 0;
    fclose(file);
    return text;
}

static inline void to_file(const char *name, int fd) {
    int file = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(file, fd);
    close(file);
}

/* Its output goes to the files NAME.out and NAME.err. A failure to start becomes status 100 + the
 * remat_status, unless it has an exit code of its own. */
static inline pid_t start(const rm_launch_config *config, const char *name) {
    char out[40], err[40];
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    alarm(280);
    snprintf(out, sizeof out, "%s.out", name);
    snprintf(err, sizeof err, "%s.err", name);
    to_file(out, 1);
    to_file(err, 2);
    int code = 0;
    remat_status status = rm_launch(config, &code);
    if (status) fprintf(stderr, "%s\n", remat_last_error());
    fflush(stderr);
    need(!__lsan_do_recoverable_leak_check || !__lsan_do_recoverable_leak_check(), "leaks");
    _exit(status && !code ? 100 + (int)status : code);
}

static inline char *output_of(const char *name, const char *ending) {
    char file[60];
    snprintf(file, sizeof file, "%s.%s", name, ending);
    return read_all(in_folder(file));
}

#define SCRIPT(text) ((char *[]){"sh", "-c", text, NULL})
#define JOB(n, ...) ((rm_launch_config){.nproc = n, .nnodes = 1, .standalone = true, .argv = __VA_ARGS__})

static inline int run(rm_launch_config config) { return end_of(start(&config, "job")); }

static inline bool contains(const char *text, const char *words) { return strstr(text, words) != NULL; }

/* The last job's stderr contains both texts. */
static inline void ck_said(const char *first, const char *second) {
    char *text = output_of("job", "err");
    ck_assert_msg(contains(text, first), "'%s' does not contain '%s'", text, first);
    ck_assert_msg(!second || contains(text, second), "'%s' does not contain '%s'", text, second);
    free(text);
}

static inline bool gone(pid_t pid) {
    char state = process_state(pid);
    return state == 'Z' || state == 'X'; /* its parent may never reap it */
}

/* Processes that have written their number to the file "pids", one per line; at most 64. */
static inline int read_pids(pid_t *pid) {
    char *text = read_all(in_folder("pids"));
    int n = 0;
    for (char *line = strtok(text, "\n"); line && n < 64; line = strtok(NULL, "\n")) pid[n++] = (pid_t)atoi(line);
    free(text);
    return n;
}

static inline void wait_for_pids(pid_t *pid, int n) {
    double start_s = seconds();
    while (read_pids(pid) < n && seconds() - start_s < 30) nap_ms(1);
    ck_assert_int_eq(read_pids(pid), n);
}

static inline double until_gone(const pid_t *pid, int n) {
    double start_s = seconds();
    for (int i = 0; i < n; i++)
        while (!gone(pid[i]) && seconds() - start_s < 20) usleep(200);
    return seconds() - start_s;
}

static inline pid_t child_of(pid_t parent) {
    char path[80];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &pid) != 1) pid = 0;
    if (file) fclose(file);
    return (pid_t)pid;
}

/* For scripts: "seen x" waits until a rank has run "mark x", "stopped x" until the rank that did so is stopped, "over x" until
 * it has ended, and "missed x" until the launcher has said so, however busy the machine is. */
static inline char *with_marks(const char *script) {
    static char text[2400];
    snprintf(
        text, sizeof text,
        "d=%s; mark() { echo ${2:-$$} > $d/$1.new; mv $d/$1.new $d/$1; }; "
        "seen() { until test -e $d/$1; do sleep 0.01; done; }; "
        "stopped() { seen $1; until grep -q '^State:.T' /proc/$(cat $d/$1)/status; do sleep 0.01; done; }; "
        "over() { seen $1; while grep -q '^State:.[^Z]' /proc/$(cat $d/$1)/status; do sleep 0.01; done 2>/dev/null; }; "
        "missed() { seen $1; until grep -q \"(process $(cat $d/$1))\" $d/job.err; do sleep 0.01; done; }; %s",
        folder, script);
    for (const char *mark = "abcd"; *mark; mark++) unlink(in_folder((char[]){*mark, 0}));
    return text;
}

static inline void set_up(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/remat-launch-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static inline void tear_down(void) {
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) perror("rm");
}

/* The path of this program, for ranks that run it. */
static inline void find_self(void) {
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
}

/* Runs the cases, each in its own directory, and returns main's exit status. */
static inline int run_in_directories(const char *name, TCase *cases) {
    tcase_add_checked_fixture(cases, set_up, tear_down);
    return run_cases(name, cases);
}

#endif
