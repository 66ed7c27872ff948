/* launch_supervisor.c: the supervisor: starts the ranks, finds the first that fails, gives the others time to report
 * the failure, and leaves nothing running. See launch_supervisor.h; the launcher's side is launch.c.
 *
 *     running ── a rank fails ──► grace ── time is up ──► SIGTERM ── time is up ──► SIGKILL
 *        │                          │                        │                         │
 *        └──────── all have ended ──┴────────────────────────┴─────────────────────────┴──► sweep ──► the next attempt
 *
 * Sweeping: the supervisor is a subreaper. A process that a rank started becomes the supervisor's child once its parent
 * is gone, whatever session or group it is in. Killing all children until none are left therefore ends the whole
 * tree. */
#define _GNU_SOURCE
#include "dist/launch/launch_supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dist/launch/process.h"
#include "dist/launch/remote.h"
#include "dist/launch/world.h"
#include "memory/clock.h"
#include "memory/host.h"

#define AFTER_TERM_MS 2000

typedef enum { RUNNING, GRACE, TERMINATED, KILLED } phase;
typedef enum { ALIVE, UNREAPED, GONE } life; /* UNREAPED: a zombie, from which the other ranks can read how it ended */

typedef struct {
    pid_t pid;
    life life;
    pid_t zombie; /* elastic: the one before, not reaped yet */
} rank;

typedef struct {
    const rm_supervisor_job *job;
    rank *ranks;
    pid_t *groups; /* capacity for the process groups of live ranks */
    int32_t n, alive;
    phase phase;
    int64_t deadline_ms;   /* of GRACE and TERMINATED */
    int32_t attempt, code; /* code: of the first failure of this attempt; 0: none */
    int32_t first;         /* the rank of this host that failed first; -1: none */
    int first_status;      /* as returned by waitpid */
    bool first_told;       /* the launcher has been told */
    int told;              /* the signal that the launcher has passed on; 0: none */
    int children;          /* signalfd for SIGCHLD */
    /* Of an elastic job */
    int32_t restarts;
    bool done;      /* a rank has ended with 0: the job has */
    pid_t world;    /* the process that hosts the world; 0: none */
    int world_pipe; /* its end is closed when the ranks of this host have ended */
} supervisor;

int rm_launch_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/* Whether the process received a signal that asks it to stop, and stopped by itself: it then exits with 128 +
 * signal. */
static bool was_asked(int status) {
    for (int i = 0; i < RM_LAUNCH_STOPS; i++)
        if (WIFEXITED(status) && WEXITSTATUS(status) == 128 + rm_launch_signals[i]) return true;
    return false;
}

bool rm_supervisor_send(int control, const rm_supervisor_note *note) {
    ssize_t n;
    do n = send(control, note, sizeof *note, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *note;
}

int rm_supervisor_receive(int control, rm_supervisor_note *note) {
    ssize_t n = recv(control, note, sizeof *note, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
    return n == (ssize_t)sizeof *note;
}

static void tell(const supervisor *k, rm_supervisor_word word, int32_t number, pid_t pid, int status) {
    rm_supervisor_note note = {
        .word = word, .attempt = k->attempt, .rank = number, .pid = (int32_t)pid, .status = status};
    (void)rm_supervisor_send(k->job->control, &note); /* if the launcher is gone, the next poll reports it */
}

/* ---- Start of a rank (in the child) ------------------------------------------------------------------------------ */

static void set_number(const char *name, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 1);
}

static void set_world(const supervisor *k, int32_t local) {
    const rm_launch_config *c = k->job->config;
    char text[400];
    snprintf(text, sizeof text, "%d %d %d %s", c->first_rank + local, c->world_size, c->master_port, c->master_addr);
    setenv(RM_WORLD_VARIABLE, text, 1);
    set_number("TORCHELASTIC_RESTART_COUNT", k->restarts);
}

/* What all hosts have in common; the launcher of a host has got it from the job's. */
static void set_job(const supervisor *k) {
    const rm_launch_config *c = k->job->config;
    set_number("TORCHELASTIC_RESTART_COUNT", k->attempt);
    set_number("TORCHELASTIC_MAX_RESTARTS", c->max_restarts);
    setenv("TORCHELASTIC_RUN_ID", c->run_id, 1);
    setenv("REMAT_JOB_SECRET", k->job->secret, 1);
    setenv("REMAT_JOB_ID", k->job->job_id, 1);
}

static void set_environment(const supervisor *k, int32_t local) {
    const rm_launch_config *c = k->job->config;
    set_number("RANK", c->first_rank + local);
    set_number("WORLD_SIZE", c->world_size);
    set_number("LOCAL_RANK", local);
    set_number("LOCAL_WORLD_SIZE", c->nproc);
    set_number("GROUP_RANK", c->node_rank);
    set_number("GROUP_WORLD_SIZE", c->nnodes);
    set_number("ROLE_RANK", c->first_rank + local);
    set_number("ROLE_WORLD_SIZE", c->world_size);
    setenv("MASTER_ADDR", c->master_addr, 1);
    set_number("MASTER_PORT", c->master_port);
    if (!c->on_host) set_job(k);
    if (!getenv("OMP_NUM_THREADS") && !c->hosts) {
        set_number("OMP_NUM_THREADS", k->job->threads);
        set_number(RM_LAUNCH_THREADS, k->job->threads);
    }
    unsetenv("TORCHELASTIC_USE_AGENT_STORE"); /* set by an outer torchrun */
    unsetenv("REMAT_LISTEN_FD");
    unsetenv(RM_WORLD_CONNECTION);
    unsetenv(RM_WORLD_VARIABLE);
    if (rm_launch_is_elastic(c))
        set_world(k, local);
    else if (k->job->listen_fd >= 0 && local == 0)
        set_number("REMAT_LISTEN_FD", k->job->listen_fd);
}

/* The first rank gets the launcher's input, unless that is a terminal, which stays with the launcher, for Ctrl-C. */
static void set_files(const supervisor *k, int32_t local) {
    if (local > 0 || k->job->config->on_host || isatty(STDIN_FILENO)) {
        int nothing = open("/dev/null", O_RDONLY);
        if (nothing > 0) {
            dup2(nothing, STDIN_FILENO);
            close(nothing);
        }
    }
    for (int which = 1; which <= 2; which++) {
        int end = rm_launch_output_pipe(k->job->output, local, which);
        if (end >= 0) dup2(end, which);
    }
    if (local == 0 && k->job->listen_fd >= 0) fcntl(k->job->listen_fd, F_SETFD, 0);
}

static void restore_signals(const rm_launch_signal_state *before) {
    for (int i = 0; i < RM_LAUNCH_SIGNALS; i++)
        signal(rm_launch_signals[i], before->ignored >> i & 1 ? SIG_IGN : SIG_DFL);
    sigaction(SIGPIPE, &before->pipe, NULL);
    sigprocmask(SIG_SETMASK, &before->mask, NULL);
}

_Noreturn static void become_rank(const supervisor *k, int32_t local, pid_t supervisor_pid) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor_pid)
        _exit(128 + SIGKILL); /* the supervisor ended before the parent-death signal was set */
    set_environment(k, local);
    set_files(k, local);
    restore_signals(&k->job->signals);
    const rm_launch_host *hosts = k->job->config->hosts;
    if (hosts) rm_remote_run(&hosts[local]);
    char **argv = k->job->config->argv;
    execvp(argv[0], argv);
    fprintf(stderr, "remat launch: cannot run '%s': %s\n", argv[0], strerror(errno));
    fflush(stderr);
    _exit(errno == ENOENT ? RM_EXIT_NOT_FOUND : RM_EXIT_NOT_RUN);
}

static bool start_rank(supervisor *k, int32_t local) {
    pid_t me = getpid(), pid = fork();
    if (pid == 0) become_rank(k, local, me);
    if (pid < 0) {
        tell(k, RM_SUPERVISOR_NO_FORK, local, 0, errno);
        k->code = 1;
        return false;
    }
    setpgid(pid, pid); /* the rank does the same: whichever comes first */
    k->ranks[local] = (rank){.pid = pid, .life = ALIVE};
    k->alive++;
    return true;
}

static bool start_ranks(supervisor *k) {
    for (int32_t r = 0; r < k->n; r++)
        if (!start_rank(k, r)) return false;
    return true;
}

/* ---- Ended ranks ------------------------------------------------------------------------------------------------- */

static void signal_ranks(const supervisor *k, int number) {
    for (int32_t r = 0; r < k->n; r++)
        if (k->ranks[r].life == ALIVE && kill(-k->ranks[r].pid, number)) kill(k->ranks[r].pid, number);
}

/* A stopped rank (SIGSTOP, or Ctrl-Z in a shell in between) receives no other signal and cannot report another rank's
 * failure: continues it. */
static void wake_ranks(const supervisor *k) {
    int n = 0;
    for (int32_t r = 0; r < k->n; r++)
        if (k->ranks[r].life == ALIVE) k->groups[n++] = k->ranks[r].pid;
    rm_process_wake(k->groups, n);
}

/* Ending by the signal that the launcher passed on is not a failure for which the others must be stopped: they got the
 * signal, too, and may be busy saving. */
static bool as_told(const supervisor *k, int code) { return k->told && code == 128 + k->told; }

/* How likely this rank is the cause, rather than one that noticed another's end. */
static int likelihood(int status) { return WIFSIGNALED(status) ? 2 : WEXITSTATUS(status) != RM_EXIT_PEER; }

static void tell_first(supervisor *k) {
    if (k->first < 0 || k->first_told) return;
    k->first_told = true;
    tell(k, RM_SUPERVISOR_FIRST, k->job->config->first_rank + k->first, k->ranks[k->first].pid, k->first_status);
}

/* The first failure counts. If it only reports that another rank failed, a later one may replace it, as long as no rank
 * has been asked to stop. */
static void fail(supervisor *k, int32_t local, int status) {
    bool told = as_told(k, rm_launch_code(status)),
         better = k->first >= 0 && !k->first_told && k->phase <= GRACE && likelihood(status) > 0;
    if ((k->first < 0 && !k->code) || better) {
        k->code = rm_launch_code(status);
        k->first = local;
        k->first_status = status;
        k->first_told = told; /* nothing to report */
    }
    if (likelihood(k->first_status)) tell_first(k);
    if (k->phase != RUNNING || told) return;
    k->phase = GRACE;
    k->deadline_ms = rm_now_ms() + k->job->config->grace_ms;
    wake_ranks(k);
}

/* ---- An elastic job (world.h) ------------------------------------------------------------------------------------- */

/* The process ends by itself: after the pipe's end, when no rank of any host is connected. */
_Noreturn static void host_world(const supervisor *k, int closing, pid_t supervisor_pid) {
    const rm_launch_config *c = k->job->config;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor_pid) _exit(1);
    prctl(PR_SET_NAME, "remat-world");
    close(k->job->control);
    rm_world_serve(&(rm_world_config){.listen_fd = k->job->listen_fd,
                                      .closing = closing,
                                      .least = c->least_nodes * c->nproc,
                                      .most = c->world_size,
                                      .secret = k->job->secret,
                                      .job_id = k->job->job_id});
    _exit(0);
}

static bool start_world(supervisor *k) {
    int ends[2];
    pid_t me = getpid();
    if (!rm_launch_is_elastic(k->job->config) || k->job->listen_fd < 0) return true;
    if (pipe2(ends, O_CLOEXEC)) return false;
    k->world_pipe = ends[1];
    k->world = fork();
    if (k->world == 0) close(ends[1]);
    if (k->world == 0) host_world(k, ends[0], me);
    close(ends[0]);
    return k->world > 0;
}

/* Restarts a failed rank, or continues without it. */
static void replace(supervisor *k, int32_t local, int status) {
    int code = rm_launch_code(status);
    bool vain = code == RM_EXIT_USE || code == RM_EXIT_NO_WORLD || was_asked(status);
    bool again = !vain && !k->told && k->restarts < k->job->config->max_restarts;
    if (again) k->restarts++;
    rm_supervisor_note note = {.word = RM_SUPERVISOR_LOST,
                               .attempt = again ? k->restarts : 0,
                               .rank = k->job->config->first_rank + local,
                               .pid = (int32_t)k->ranks[local].pid,
                               .status = status};
    bool explained = as_told(k, code) || code == RM_EXIT_NO_WORLD;
    if (!explained) (void)rm_supervisor_send(k->job->control, &note);
    if (!again && !k->code) k->code = code;
    if (again) (void)start_rank(k, local);
}

/* A rank that ended stays a zombie until the next one ends, so that the others can read how it ended. A rank that ended
 * with 0 ends the job; a stopped one wakes, to learn it. */
static void tend_ranks(supervisor *k) {
    for (int32_t r = 0; r < k->n; r++)
        if (k->ranks[r].zombie > 0 && waitpid(k->ranks[r].zombie, NULL, WNOHANG)) k->ranks[r].zombie = 0;
    for (int32_t r = 0; r < k->n; r++) {
        siginfo_t info = {.si_pid = 0};
        rank *ended = &k->ranks[r];
        if (ended->life != ALIVE) continue;
        if (waitid(P_PID, (id_t)ended->pid, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid) continue;
        int status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status;
        pid_t zombie = ended->pid;
        k->alive--;
        ended->life = GONE;
        k->done = k->done || !rm_launch_code(status);
        if (rm_launch_code(status)) replace(k, r, status);
        ended->zombie = zombie;
    }
    if (k->done) wake_ranks(k);
    if (k->world > 0 && waitpid(k->world, NULL, WNOHANG) == k->world) k->world = 0;
}

static bool turn(supervisor *k);

/* The other hosts' ranks may need the world longer than those of this host. */
static void end_world(supervisor *k) {
    if (k->world_pipe > 0) close(k->world_pipe);
    while (k->world > 0 && k->phase != KILLED) (void)turn(k);
    if (k->done) k->code = 0;
}

/* ---- Looking for ended ranks -------------------------------------------------------------------------------------- */

/* Of ranks found ended at the same time, takes the most likely cause. */
static void look_at_ranks(supervisor *k) {
    int32_t worst = -1;
    int worst_status = 0;
    for (int32_t r = 0; r < k->n; r++) {
        siginfo_t info = {.si_pid = 0};
        if (k->ranks[r].life != ALIVE) continue;
        if (waitid(P_PID, (id_t)k->ranks[r].pid, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid) continue;
        int status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status;
        k->alive--;
        k->ranks[r].life = UNREAPED;
        if (rm_launch_code(status) && (worst < 0 || likelihood(status) > likelihood(worst_status)))
            worst = r, worst_status = status;
    }
    if (worst >= 0) fail(k, worst, worst_status);
}

/* A failed rank stays a zombie until its attempt ends, so that the others can read how it ended. Before the first
 * failure all ranks are reaped; a rank may end between look_at_ranks and this. */
static void reap(supervisor *k) {
    int status;
    if (rm_launch_is_elastic(k->job->config)) {
        tend_ranks(k);
        return;
    }
    look_at_ranks(k);
    if (k->phase != RUNNING) return;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int32_t r = 0; r < k->n; r++) {
            if (k->ranks[r].life == GONE || k->ranks[r].pid != pid) continue;
            bool unseen = k->ranks[r].life == ALIVE;
            k->ranks[r].life = GONE;
            k->alive -= unseen;
            if (unseen && rm_launch_code(status)) fail(k, r, status);
        }
}

/* ---- Ending all processes ---------------------------------------------------------------------------------------- */

/* Kills all children until there are none; the children of a dead child become ours. SIGCHLD is blocked and wakes the
 * wait. */
static void sweep(void) {
    pid_t children[256];
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        int n = rm_process_children(children, 256);
        for (int i = 0; i < n; i++) kill(children[i], SIGKILL);
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {}
        if (pid < 0 && errno == ECHILD) return;
        sigtimedwait(&child, NULL, &(struct timespec){.tv_nsec = 2000000});
    }
}

/* No process is left to report to. */
_Noreturn static void end_with_launcher(const supervisor *k) {
    if (k->job->listen_fd >= 0) close(k->job->listen_fd);
    sweep();
    _exit(1);
}

static void escalate(supervisor *k) {
    tell_first(k);
    k->phase++;
    k->deadline_ms =
        rm_now_ms() + (k->job->config->grace_ms < AFTER_TERM_MS ? k->job->config->grace_ms : AFTER_TERM_MS);
    tell(k, k->phase == TERMINATED ? RM_SUPERVISOR_TERMS : RM_SUPERVISOR_KILLS, k->alive, 0, 0);
    signal_ranks(k, k->phase == TERMINATED ? SIGTERM : SIGKILL);
    if (k->phase == TERMINATED) wake_ranks(k);
}

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

static void obey(supervisor *k, const rm_supervisor_note *note) {
    if (note->word == RM_SUPERVISOR_PASS && note->status == SIGUSR1) {
        signal_ranks(k, SIGUSR1);
    } else if (note->word == RM_SUPERVISOR_PASS) {
        k->told = note->status;
        signal_ranks(k, note->status);
        wake_ranks(k);
    } else if (note->word == RM_SUPERVISOR_KILL) {
        if (!k->told) k->told = note->status;
        if (!k->code) k->code = 128 + note->status;
        k->phase = KILLED;
        signal_ranks(k, SIGKILL);
    }
}

/* Waits for an event. Returns true if the launcher has sent CONTINUE. */
static bool turn(supervisor *k) {
    struct pollfd slots[] = {{.fd = k->children, .events = POLLIN},
                             {.fd = k->job->control, .events = POLLIN},
                             {.fd = k->job->launcher, .events = POLLIN}};
    bool timed = k->phase == GRACE || k->phase == TERMINATED;
    int64_t left = timed ? k->deadline_ms - rm_now_ms() : -1;
    if (timed && left < 0) left = 0;
    if (poll(slots, 3, left > 1 << 30 ? 1 << 30 : (int)left) < 0) return false;
    if (slots[2].revents) end_with_launcher(k);
    rm_supervisor_note note;
    int got = slots[1].revents ? rm_supervisor_receive(k->job->control, &note) : -1;
    if (got == 0) end_with_launcher(k);
    if (got > 0) obey(k, &note);
    struct signalfd_siginfo info;
    if (slots[0].revents) {
        while (read(k->children, &info, sizeof info) > 0) {}
        reap(k);
    }
    if (timed && k->phase != RUNNING && k->phase != KILLED && rm_now_ms() >= k->deadline_ms && k->alive > 0)
        escalate(k);
    return got > 0 && note.word == RM_SUPERVISOR_CONTINUE;
}

static void run_attempt(supervisor *k) {
    k->phase = RUNNING;
    k->code = 0;
    k->first = -1;
    k->first_status = 0;
    k->first_told = false;
    k->alive = 0;
    for (int32_t r = 0; r < k->n; r++) k->ranks[r].life = GONE;
    if (start_world(k) && start_ranks(k)) {
        if (k->told) signal_ranks(k, k->told);
        while (k->alive > 0) (void)turn(k);
        end_world(k);
    }
    tell_first(k);
    sweep();
}

_Noreturn void rm_supervisor_run(const rm_supervisor_job *job) {
    supervisor k = {.job = job, .n = job->config->nproc};
    sigset_t block;
    setsid(); /* Ctrl-C is for the launcher, which passes it on */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    prctl(PR_SET_NAME, "remat-supervisor");
    for (int i = 0; i < RM_LAUNCH_SIGNALS; i++) signal(rm_launch_signals[i], SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&block);
    sigaddset(&block, SIGCHLD);
    sigprocmask(SIG_SETMASK, &block, NULL);
    k.children = signalfd(-1, &block, SFD_CLOEXEC | SFD_NONBLOCK);
    k.ranks = rm_calloc((size_t)k.n, sizeof *k.ranks);
    k.groups = rm_calloc((size_t)k.n, sizeof *k.groups);
    bool room = k.ranks && k.groups;
    if (k.children < 0 || !room) {
        tell(&k, RM_SUPERVISOR_NO_FORK, 0, 0, room ? errno : ENOMEM);
        tell(&k, RM_SUPERVISOR_OVER, 0, 0, 1);
        _exit(1);
    }
    for (;; k.attempt++) {
        run_attempt(&k);
        bool vain = k.code == RM_EXIT_USE || was_asked(k.first_status);
        bool fixed = !rm_launch_is_elastic(job->config);
        bool again = fixed && k.code && !vain && !k.told && k.attempt < job->config->max_restarts;
        tell(&k, RM_SUPERVISOR_OVER, again, 0, k.code);
        if (!again) _exit(0);
        k.phase = RUNNING;
        while (!turn(&k)) {}
        if (k.told) break; /* a signal arrived between two attempts, when there were no ranks to pass it to */
    }
    tell(&k, RM_SUPERVISOR_OVER, 0, 0, 128 + k.told);
    _exit(0);
}
