/* remote.c: see remote.h. */
#define _GNU_SOURCE
#include "dist/launch/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dist/launch/launch_supervisor.h"
#include "memory/host.h"

extern char **environ;

enum { MOST_BYTES = 1 << 20 }; /* of one variable */

/* ---- The agent ----------------------------------------------------------------------------------------------------- */

/* Variables that decide how ranks run. Others, such as HOME, belong to a host. */
static bool is_sent(const char *variable) {
    static const char *const begin[] = {
        "REMAT_", "TORCH", "OMP_", "GOMP_", "NCCL_", "GLOO_", "CUDA_", "PATH=", "LD_LIBRARY_PATH=", "PYTHONPATH="};
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        if (!strncmp(variable, begin[i], strlen(begin[i]))) return true;
    return false;
}

static void send_bytes(int pipe, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t sent = write(pipe, bytes, n);
        if (sent < 0 && errno != EINTR) return; /* the other end is gone: its exit status tells why */
        if (sent > 0) bytes += sent, n -= (size_t)sent;
    }
}

/* "NAME=VALUE" with a 0 at its end each; an empty one ends them. */
static void send_environment(int pipe) {
    for (char **v = environ; *v; v++)
        if (is_sent(*v)) send_bytes(pipe, *v, strlen(*v) + 1);
    send_bytes(pipe, "", 1);
}

/* 'It'\''s': one word for a shell. */
static void write_word(FILE *out, const char *word) {
    fputc('\'', out);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", out);
        else
            fputc(*word, out);
    fputc('\'', out);
}

/* The host's shell gets one line, which starts in the same directory. */
static char *line_of(const rm_launch_host *host) {
    char *line = NULL, here[4096];
    size_t bytes;
    FILE *out = open_memstream(&line, &bytes);
    if (!out || !getcwd(here, sizeof here)) return NULL;
    fputs("cd ", out);
    write_word(out, here);
    fputs(" && exec", out);
    for (char **word = host->argv; *word; word++) {
        fputc(' ', out);
        write_word(out, *word);
    }
    return fclose(out) ? NULL : line;
}

/* A group of its own, because the supervisor signals the agent's. Whatever the user's configuration of ssh says: it never asks for
 * a password, the bytes of the pipe pass no terminal, and it does not become the master of other connections, which would end with
 * the job. */
_Noreturn static void become_launcher(const rm_launch_host *host, int input, const sigset_t *mask) {
    char *line = host->name ? line_of(host) : NULL;
    char *ssh[] = {"ssh", "-T", "-oBatchMode=yes", "-oControlMaster=no", (char *)host->name, line, NULL};
    char **argv = host->name ? ssh : host->argv;
    setpgid(0, 0);
    dup2(input, STDIN_FILENO);
    sigprocmask(SIG_SETMASK, mask, NULL);
    if (!host->name || line) execvp(argv[0], argv);
    fprintf(stderr, "remat launch: cannot run '%s': %s\n", argv[0], strerror(errno));
    fflush(stderr);
    _exit(127);
}

_Noreturn void rm_remote_run(const rm_launch_host *host) {
    sigset_t signals, before;
    int ends[2], status;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    for (int i = 0; i < RM_LAUNCH_SIGNALS; i++) sigaddset(&signals, rm_launch_signals[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    int arrived = signalfd(-1, &signals, SFD_CLOEXEC);
    if (arrived < 0 || pipe2(ends, O_CLOEXEC)) _exit(1);
    pid_t pid = fork();
    if (pid == 0) become_launcher(host, ends[0], &before);
    if (pid < 0) _exit(1);
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    send_environment(ends[1]);
    for (;;) {
        struct signalfd_siginfo info;
        if (read(arrived, &info, sizeof info) != sizeof info) continue;
        char number = (char)info.ssi_signo;
        if (info.ssi_signo != SIGCHLD)
            send_bytes(ends[1], &number, 1);
        else if (waitpid(pid, &status, WNOHANG) == pid)
            _exit(rm_launch_code(status));
    }
}

/* ---- The launcher that it starts ------------------------------------------------------------------------------------- */

static bool receive(char *byte) {
    ssize_t n;
    do n = read(STDIN_FILENO, byte, 1);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

remat_status rm_remote_enter(void) {
    char *variable = rm_malloc(MOST_BYTES);
    REQUIRE(variable, MEMORY, "no memory for the environment of the job");
    for (size_t n = 0; n < MOST_BYTES && receive(variable + n);) {
        if (variable[n++]) continue;
        char *equals = strchr(variable, '=');
        bool last = n == 1;
        if (equals) *equals = 0, setenv(variable, equals + 1, 1);
        n = 0;
        if (!last) continue;
        rm_free(variable);
        return REMAT_OK;
    }
    rm_free(variable);
    FAIL(IO,
         "--on-host is for launchers that `remat launch -H` starts, and standard input is not a launcher's: remove it");
}

int rm_remote_signal(void) {
    char number;
    return receive(&number) ? number : 0;
}
