/* address_space.c: where a limit on address space (ulimit -v) leaves no room for the threads that OpenBLAS starts when it is
 * loaded, that is, before main, the program would crash, or wait for ever for a thread that never came to life. It ends with
 * a sentence here instead: before any library is set up (.preinit_array), so nothing is called that needs one to be. Part of
 * the program, not of the library. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dist/launch.h"

/* Measured with OpenBLAS 0.3.21 and two threads: 170 MiB, with CUDA linked in less than 224; with one thread 60. A thread has
 * a stack and a buffer. */
enum { EACH_MIB = 64, PROGRAM_MIB = 128, MOST_THREADS = 64 /* of Debian's build */ };

static const char *value_of(char **environment, const char *name) {
    size_t length = strlen(name);
    for (; *environment; environment++)
        if (!strncmp(*environment, name, length) && (*environment)[length] == '=') return *environment + length + 1;
    return NULL;
}

/* As many as OpenBLAS will start, itself included. */
static unsigned long threads(char **environment) {
    static const char *const names[] = {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"};
    cpu_set_t set;
    CPU_ZERO(&set);
    unsigned long most = sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned long)CPU_COUNT(&set);
    if (most > MOST_THREADS) most = MOST_THREADS;
    for (int i = 0; i < 3; i++) {
        const char *value = value_of(environment, names[i]);
        unsigned long said = value ? strtoul(value, NULL, 10) : 0;
        if (said) return said < most ? said : most;
    }
    return most;
}

static void check(int argc, char **argv, char **environment) {
    (void)argc, (void)argv;
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return;
    unsigned long n = threads(environment), needed = n > 1 ? PROGRAM_MIB + EACH_MIB * n : 0;
    if (limit.rlim_cur >> 20 >= needed) return;
    char text[400];
    int length =
        snprintf(text, sizeof text,
                 "remat: the address space is limited to %lu MiB (ulimit -v), and %lu threads of the matrix library "
                 "need %lu MiB to start: raise the limit, or set OMP_NUM_THREADS=1. It is --memory-budget that "
                 "limits memory\n",
                 (unsigned long)(limit.rlim_cur >> 20), n, needed);
    (void)!write(STDERR_FILENO, text, (size_t)length);
    _exit(RM_EXIT_USE);
}

__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(int, char **, char **) = check;
