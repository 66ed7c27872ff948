/* train_test.h: shared by the tests of train/: a scratch directory, small files, running the program `remat`. */
#ifndef TRAIN_TEST_H
#define TRAIN_TEST_H

#include "engine/status.h"
#include "tests/says.h"
#include "tests/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ck_ok(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())
/* Fails with this status, and with a message that says all of `part` ("word|word"). */
#define ck_fails(call, expected, part)                                                                                 \
    do {                                                                                                               \
        remat_status fails_ = (call);                                                                                  \
        ck_assert_msg(fails_ == (expected), "%s: status %d, not %d: %s", #call, fails_, expected, remat_last_error()); \
        ck_says_all(remat_last_error(), part);                                                                         \
    } while (0)

static inline void wait_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* A directory for this test, removed when the test process ends normally. Tests run in forked processes, each with its
 * own directory. */
static char scratch_directory[64];
static inline void remove_scratch(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch_directory);
    if (system(command)) perror(command);
}
static inline const char *scratch(void) {
    if (!*scratch_directory) {
        strcpy(scratch_directory, "/tmp/remat_test_XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(scratch_directory));
        atexit(remove_scratch);
    }
    return scratch_directory;
}

/* A path in the scratch directory; valid until the 16th call after. */
static inline char *in_scratch(const char *name) {
    static char path[16][256];
    static int next;
    char *out = path[next++ % 16];
    snprintf(out, sizeof path[0], "%s/%s", scratch(), name);
    return out;
}

static inline const char *make_file(const char *name, const void *data, size_t size) {
    const char *path = in_scratch(name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

/* .npy in C order. */
static inline const char *make_npy(const char *name, const char *descr, const char *shape, const void *data,
                                   size_t bytes) {
    static uint8_t file[128 + 8192];
    char header[119];
    int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    ck_assert_uint_le(128 + bytes, sizeof file);
    ck_assert_int_lt(n, 118);
    memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
    memset(file + 10, ' ', 118);
    memcpy(file + 10, header, (size_t)n);
    memcpy(file + 128, data, bytes);
    return make_file(name, file, 128 + bytes);
}

/* `bytes` bytes of a text-like repeating pattern, which a model can start to learn. */
static inline const char *make_text(const char *name, size_t bytes) {
    char *text = malloc(bytes);
    ck_assert_ptr_nonnull(text);
    for (size_t i = 0; i < bytes; i++)
        text[i] = "the quick brown fox jumps over the lazy dog.\n"[(i * (1 + i / 997)) % 45];
    const char *path = make_file(name, text, bytes);
    free(text);
    return path;
}

/* The constant memory of a process besides its plan, as stated in `docs/promises.md`. Sanitizers add shadow memory, so
 * there the tests only check that the run works. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OVERHEAD_BYTES (UINT64_C(64) << 30)
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define OVERHEAD_BYTES (UINT64_C(64) << 30)
#endif
#endif
#ifndef OVERHEAD_BYTES
#define OVERHEAD_BYTES (UINT64_C(16) << 20)
#endif

/* ---- Running the program ---------------------------------------------------------------------------------------- */

enum { MOST_ARGUMENTS = 40 };
static char program_output[1 << 16], program_errors[1 << 14];

static inline void read_back(int fd, char *text, size_t bytes) {
    lseek(fd, 0, SEEK_SET);
    ssize_t got = read(fd, text, bytes - 1);
    text[got > 0 ? got : 0] = 0;
    close(fd);
}
static inline int temporary(void) {
    char path[256];
    snprintf(path, sizeof path, "%s/.captured_XXXXXX", scratch());
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    unlink(path);
    return fd;
}

/* Waits until the directory contains a complete state. */
static inline void wait_for_state(const char *directory) {
    char pattern[512];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/step-*/state.json", directory);
    for (int i = 0; i < 24000 && glob(pattern, 0, NULL, &found); i++) usleep(5000);
    ck_assert_msg(found.gl_pathc > 0, "%s never had a state", directory);
    globfree(&found);
}

/* How many lines of a file have these words; 0 if there is no file. */
static inline int lines_with(const char *path, const char *words) {
    char line[4096];
    int seen = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) seen += strstr(line, words) != NULL;
    if (file) fclose(file);
    return seen;
}

/* Waits until a metrics file has this many steps. */
static inline void wait_for_steps(const char *path, int steps) {
    for (int i = 0; i < 12000; i++) {
        if (lines_with(path, "\"event\":\"step\"") >= steps) return;
        wait_ms(10);
    }
    ck_abort_msg("%s never had %d steps", path, steps);
}

/* Waits until the program handles this signal, which would end it before, or has ended. */
static inline void wait_until_handled(pid_t program, int signal) {
    char path[40], line[256];
    bool done = false;
    snprintf(path, sizeof path, "/proc/%d/status", (int)program);
    for (int i = 0; i < 60000 && !done; i++) {
        unsigned long long handled = 0;
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            done |= !strncmp(line, "State:\tZ", 8) ||
                    (sscanf(line, "SigCgt: %llx", &handled) == 1 && handled >> (signal - 1) & 1);
        if (file) fclose(file);
        wait_ms(1);
    }
    ck_assert_msg(done, "process %d never handles signal %d", (int)program, signal);
}

/* The most bytes a file of the program may have, as on a full disk, and its address space; 0: no limit. They are set in the
 * program's process alone: Check, too, writes files and takes memory. */
static rlim_t largest_file, address_space;

/* Starts the program with a line of arguments, split at spaces; stdout and stderr go to the two files. Returns when the process
 * runs the program, and no longer this one with Check's handlers of signals. */
static inline pid_t start_program(const char *line, int out, int err) {
    static char copy[4096];
    char *argument[MOST_ARGUMENTS + 2] = {RM_BINARY_DIR "/remat"};
    int n = 1;
    ck_assert_uint_lt(strlen(line), sizeof copy);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word && n <= MOST_ARGUMENTS; word = strtok(NULL, " ")) argument[n++] = word;
    argument[n] = NULL;
    int started[2];
    char byte;
    ck_assert(!pipe(started));
    for (int i = 0; i < 2; i++) fcntl(started[i], F_SETFD, FD_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        if (largest_file) setrlimit(RLIMIT_FSIZE, &(struct rlimit){largest_file, largest_file});
        if (address_space) setrlimit(RLIMIT_AS, &(struct rlimit){address_space, address_space});
        dup2(out, 1);
        dup2(err, 2);
        execv(argument[0], argument);
        _exit(127);
    }
    ck_assert_int_gt(child, 0);
    close(started[1]);
    ck_assert_int_eq(read(started[0], &byte, 1), 0); /* the other end is closed by execv */
    close(started[0]);
    return child;
}

/* Runs the program to its end; its output is in program_output and program_errors. Returns 128 + n if signal n ended
 * it. */
static inline int run_program(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline int run_program(const char *format, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    int out = temporary(), err = temporary(), status;
    pid_t child = start_program(line, out, err);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    read_back(out, program_output, sizeof program_output);
    read_back(err, program_errors, sizeof program_errors);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#define ck_runs(...)                                                                                                   \
    do {                                                                                                               \
        int status_ = run_program(__VA_ARGS__);                                                                        \
        ck_assert_msg(status_ == 0, "exit %d: %s", status_, program_errors);                                           \
    } while (0)

/* Ends with this status, and with one line on stderr that says all of `part` ("word|word"). */
#define ck_refuses(status, part, ...)                                                                                  \
    do {                                                                                                               \
        int status_ = run_program(__VA_ARGS__);                                                                        \
        ck_assert_msg(status_ == (status), "exit %d, not %d: %s", status_, status, program_errors);                    \
        ck_says_all(program_errors, part);                                                                             \
        char *end_ = strchr(program_errors, '\n');                                                                     \
        ck_assert_msg(end_ && !end_[1], "more than one line: %s", program_errors);                                     \
    } while (0)

static inline int run_suite(const char *name, TCase *tests) {
    tcase_set_timeout(tests, 300);
    return run_cases(name, tests);
}

#endif
