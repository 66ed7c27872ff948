/* launch.c: the launcher: checks the request, binds the port, starts the supervisor (launch_supervisor.c), and passes
 * on output (launch_output.c) and signals until the job ends. See launch.h. */
#define _GNU_SOURCE
#include "dist/launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dist/launch/launch_supervisor.h"
#include "dist/launch/process.h"
#include "dist/launch/remote.h"
#include "dist/store/rendezvous.h"
#include "dist/store/store.h"
#include "memory/clock.h"
#include "memory/host.h"
#include "memory/processors.h"

#define MOST_CHILDREN 256

const int rm_launch_signals[RM_LAUNCH_SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1};

enum { LONGEST_SECRET = 240, SSH_FAILED = 255 };

typedef struct {
    rm_launch_config config; /* all fields are set */
    char run_id[64], job_id[64], secret[LONGEST_SECRET + 1];
    rm_launch_output *output;
    struct pollfd *slots;
    int listen_fd, control, supervisor_control, self;
    int input; /* standard input, for the signals of the job's launcher; -1: this is the job's launcher */
    pid_t supervisor, before[MOST_CHILDREN]; /* children that this process already had */
    int n_before;
    int32_t signals;      /* number of signals received */
    int64_t signalled_ms; /* when the last one was received */
    int code;
    bool over; /* the supervisor has sent its last note */
    rm_launch_signal_state signal_state;
    struct sigaction actions[RM_LAUNCH_SIGNALS];
    int was_subreaper;
} launcher;

/* ---- Checking the request ---------------------------------------------------------------------------------------- */

static remat_status check_numbers(const rm_launch_config *c) {
    REQUIRE(c->nproc >= 1 && c->nproc <= 4096, INVALID, "cannot start %d ranks on this host; use 1 to 4096", c->nproc);
    REQUIRE(c->nnodes >= 1 && (int64_t)c->nnodes * c->nproc <= RM_MOST_RANKS, INVALID,
            "%d nodes with %d ranks each are not possible; use 1 to %d ranks in total", c->nnodes, c->nproc,
            RM_MOST_RANKS);
    REQUIRE(c->least_nodes >= 0 && c->least_nodes <= c->nnodes, INVALID,
            "at least %d nodes of at most %d are not possible", c->least_nodes, c->nnodes);
    REQUIRE(c->node_rank >= 0 && c->node_rank < c->nnodes, INVALID, "there is no node %d of %d; use 0 to %d",
            c->node_rank, c->nnodes, c->nnodes - 1);
    REQUIRE(c->master_port >= 0 && c->master_port <= 65535, INVALID, "port %d is not possible; use 1 to 65535",
            c->master_port);
    REQUIRE(c->max_restarts >= 0 && c->grace_ms >= 0, INVALID,
            "%d restarts and %lld ms of grace are not possible; neither may be negative", c->max_restarts,
            (long long)c->grace_ms);
    REQUIRE(c->argv && c->argv[0], INVALID, "there is no command to start");
    const char *secret = getenv("REMAT_JOB_SECRET");
    REQUIRE(!secret || strlen(secret) <= LONGEST_SECRET, INVALID,
            "REMAT_JOB_SECRET has %zu characters; the maximum is %d", strlen(secret), LONGEST_SECRET);
    return REMAT_OK;
}

static remat_status check_nodes(const rm_launch_config *c) {
    REQUIRE(c->nnodes == 1 || !c->standalone, INVALID, "--standalone is for one node, but there are %d", c->nnodes);
    REQUIRE(!c->run_id || strlen(c->run_id) <= 200, INVALID, "the job's name has %zu characters; the maximum is 200",
            strlen(c->run_id));
    REQUIRE(!c->master_addr || strlen(c->master_addr) < 256, INVALID,
            "the name of node 0 has %zu characters, which is too long", strlen(c->master_addr));
    if (c->nnodes == 1) return REMAT_OK;
    REQUIRE(c->master_addr, INVALID, "%d nodes must meet at node 0; give its name or address with --master-addr=HOST",
            c->nnodes);
    bool elastic = c->least_nodes && c->least_nodes < c->nnodes; /* its launchers may all be on this host */
    REQUIRE(elastic || !rm_host_is_itself(c->master_addr), INVALID,
            "node 0 is given as %s, which on each of the %d nodes means that node itself; give node 0's host name",
            c->master_addr, c->nnodes);
    REQUIRE(c->run_id, INVALID, "a job on %d nodes needs a common name; give the same --run-id=NAME on all nodes",
            c->nnodes);
    return REMAT_OK;
}

/* *code: what a shell exits with if it cannot run the program; 0: it can. */
static remat_status check_program(const char *path, int *code) {
    struct stat info;
    *code = RM_EXIT_NOT_FOUND;
    if (stat(path, &info)) return rm_fail(REMAT_IO, "cannot run '%.200s': %s", path, strerror(errno));
    *code = RM_EXIT_NOT_RUN;
    REQUIRE(!S_ISDIR(info.st_mode), IO, "cannot run '%.200s': it is a directory", path);
    REQUIRE(!access(path, X_OK), IO, "cannot run '%.200s': it is not executable", path);
    *code = 0;
    return REMAT_OK;
}

/* As execvp does: a name without a slash is searched in PATH. */
static remat_status check_command(const char *name, int *code) {
    const char *path = getenv("PATH");
    char full[4096];
    if (strchr(name, '/')) return check_program(name, code);
    for (const char *at = path ? path : "/bin:/usr/bin"; at && *name;
         at = strchr(at, ':') ? strchr(at, ':') + 1 : NULL) {
        int length = (int)strcspn(at, ":");
        snprintf(full, sizeof full, "%.*s%s%s", length, at, length ? "/" : "", name);
        if (!check_program(full, code)) return REMAT_OK;
    }
    *code = RM_EXIT_NOT_FOUND;
    FAIL(IO, "cannot run '%.200s': there is no such program in PATH", name);
}

/* ---- Defaults ---------------------------------------------------------------------------------------------------- */

static void draw(char *text, size_t bytes) {
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != sizeof random) {
        snprintf(text, bytes, "%d-%llu", (int)getpid(), (unsigned long long)rm_now_ns());
        return;
    }
    for (size_t i = 0; i < sizeof random && 2 * i + 3 <= bytes; i++) snprintf(text + 2 * i, 3, "%02x", random[i]);
}

/* On one node the secret is random. On several it is what all nodes know: the variable, or the job's name. */
static void fill_in(launcher *l, const rm_launch_config *config) {
    rm_launch_config *c = &l->config;
    const char *secret = getenv("REMAT_JOB_SECRET");
    *c = *config;
    if (!c->master_addr || c->standalone) c->master_addr = "127.0.0.1";
    if (!c->master_port && !c->standalone) c->master_port = 29500;
    if (c->standalone) c->master_port = 0;
    if (!c->grace_ms) c->grace_ms = 5000;
    if (!c->least_nodes) c->least_nodes = c->nnodes;
    if (!c->world_size) c->first_rank = c->node_rank * c->nproc, c->world_size = c->nnodes * c->nproc;
    draw(l->run_id, sizeof l->run_id);
    draw(l->job_id, sizeof l->job_id);
    if (secret && *secret)
        snprintf(l->secret, sizeof l->secret, "%s", secret);
    else
        snprintf(l->secret, sizeof l->secret, "%.200s", c->nnodes > 1 ? c->run_id : l->run_id);
    if (!c->run_id) c->run_id = l->run_id;
}

/* ---- Signals: written into a pipe, read in the loop -------------------------------------------------------------- */

static int signal_pipe[2] = {-1, -1};

static void on_signal(int number) {
    int kept = errno;
    unsigned char byte = (unsigned char)number;
    if (write(signal_pipe[1], &byte, 1) < 0) {} /* the pipe is full: it holds enough signals */
    errno = kept;
}

static void catch_signals(launcher *l) {
    struct sigaction ours = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    for (int i = 0; i < RM_LAUNCH_SIGNALS; i++) {
        sigaction(rm_launch_signals[i], NULL, &l->actions[i]);
        bool ignored = l->actions[i].sa_handler == SIG_IGN;
        l->signal_state.ignored |= ignored << i;
        if (!ignored) sigaction(rm_launch_signals[i], &ours, NULL);
    }
    sigaction(SIGPIPE, &ignore, &l->signal_state.pipe);
}

/* Restores the original state of this process. */
static void restore_process(const launcher *l) {
    for (int i = 0; i < RM_LAUNCH_SIGNALS; i++) sigaction(rm_launch_signals[i], &l->actions[i], NULL);
    sigaction(SIGPIPE, &l->signal_state.pipe, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, l->was_subreaper, 0, 0, 0);
}

/* glibc has this as sigabbrev_np from 2.32 on; wheels of the Python package are built with 2.28. */
static const char *signal_name(int number) {
    static const struct {
        int number;
        const char *name;
    } known[] = {{SIGHUP, "HUP"},   {SIGINT, "INT"},   {SIGQUIT, "QUIT"}, {SIGILL, "ILL"},   {SIGTRAP, "TRAP"},
                 {SIGABRT, "ABRT"}, {SIGBUS, "BUS"},   {SIGFPE, "FPE"},   {SIGKILL, "KILL"}, {SIGUSR1, "USR1"},
                 {SIGSEGV, "SEGV"}, {SIGUSR2, "USR2"}, {SIGPIPE, "PIPE"}, {SIGALRM, "ALRM"}, {SIGTERM, "TERM"},
                 {SIGXCPU, "XCPU"}, {SIGXFSZ, "XFSZ"}, {SIGSYS, "SYS"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].number == number) return known[i].name;
    return "?";
}

/* Signals within a second of the first count as the same one: timeout(1) signals a process and then its group, and a
 * closing terminal sends several. */
static void take_signal(launcher *l, int number) {
    if (number == SIGUSR1) {
        rm_launch_output_say(l->output, "SIGUSR1 is passed on to all ranks");
        (void)rm_supervisor_send(l->control, &(rm_supervisor_note){.word = RM_SUPERVISOR_PASS, .status = SIGUSR1});
        return;
    }
    if (l->signals && rm_now_ms() < l->signalled_ms + 1000) return;
    bool first = !l->signals++;
    rm_supervisor_note note = {.word = first ? RM_SUPERVISOR_PASS : RM_SUPERVISOR_KILL, .status = number};
    l->signalled_ms = rm_now_ms();
    if (first && !l->config.on_host)
        rm_launch_output_say(l->output, "SIG%s is passed on to all ranks; another signal ends them at once",
                             signal_name(number));
    (void)rm_supervisor_send(l->control, &note);
}

/* From the agent of the job's launcher. */
static void take_remote_signal(launcher *l) {
    int number = rm_remote_signal();
    if (number) {
        take_signal(l, number);
        return;
    }
    rm_launch_output_say(l->output, "the connection to the launcher of the job has ended: all ranks of this host end");
    l->input = -1;
    l->signals = 2; /* nobody reads the output */
    (void)rm_supervisor_send(l->control, &(rm_supervisor_note){.word = RM_SUPERVISOR_KILL, .status = SIGHUP});
}

/* ---- Notes from the supervisor ---------------------------------------------------------------------------------- */

static void say_end(launcher *l, const rm_supervisor_note *note, const char *consequence) {
    char end[100];
    if (WIFSIGNALED(note->status))
        snprintf(end, sizeof end, "was killed by signal %d (%s)", WTERMSIG(note->status),
                 strsignal(WTERMSIG(note->status)));
    else
        snprintf(end, sizeof end, "exited with status %d", WEXITSTATUS(note->status));
    const rm_launch_host *host = l->config.hosts ? &l->config.hosts[note->rank] : NULL;
    const char *others = l->config.nproc > 1 ? "; the other hosts are being stopped" : "";
    if (host && host->name && rm_launch_code(note->status) == SSH_FAILED)
        rm_launch_output_say(l->output, "ssh %s %s: its message, or that of a rank there, says why%s", host->name, end,
                             others);
    else if (host)
        rm_launch_output_say(l->output, "the launcher of %s (process %d) %s%s", host->name ? host->name : "this host",
                             note->pid, end, others);
    else
        rm_launch_output_say(l->output, "rank %d (process %d) %s%s", note->rank, note->pid, end, consequence);
}

static void say_lost(launcher *l, const rm_supervisor_note *note) {
    char restart[100];
    snprintf(restart, sizeof restart, "; it is started again: restart %d of %d", note->attempt, l->config.max_restarts);
    bool asked = WIFEXITED(note->status) && WEXITSTATUS(note->status) > 128; /* then all stop */
    say_end(l, note, note->attempt ? restart : asked ? "" : "; the others continue without it");
}

/* Only for exit codes: ranks killed by a signal are restarted. */
static void say_why_not_again(launcher *l) {
    if (l->code == RM_EXIT_USE)
        rm_launch_output_say(l->output,
                             "no restart: exit status %d means that the command line cannot work and would fail each "
                             "time; the command's own message says what to change",
                             RM_EXIT_USE);
    else if (l->code > 128)
        rm_launch_output_say(l->output,
                             "no restart: exit status %d means that the rank was asked to stop by SIG%s and did",
                             l->code, signal_name(l->code - 128));
}

/* The last note of an attempt: all processes have ended, so the pipes hold all remaining output. */
static void finish_attempt(launcher *l, const rm_supervisor_note *note) {
    bool again = note->rank != 0;
    rm_launch_output_drain(l->output);
    l->code = note->status;
    l->over = !again;
    bool fixed = !rm_launch_is_elastic(&l->config);
    if (fixed && !again && note->attempt < l->config.max_restarts && !l->signals) say_why_not_again(l);
    if (!again) return;
    rm_launch_output_say(l->output, "restarting all ranks: restart %d of %d", note->attempt + 1,
                         l->config.max_restarts);
    if (rm_launch_output_begin(l->output, note->attempt + 1))
        rm_launch_output_say(l->output, "%s; continuing without", remat_last_error());
    (void)rm_supervisor_send(l->control, &(rm_supervisor_note){.word = RM_SUPERVISOR_CONTINUE});
}

static void listen_to_supervisor(launcher *l, const rm_supervisor_note *note) {
    switch (note->word) {
    case RM_SUPERVISOR_LOST:
        say_lost(l, note);
        break;
    case RM_SUPERVISOR_FIRST:
        say_end(l, note, l->config.nproc > 1 ? "; the other ranks of this host are being stopped" : "");
        break;
    case RM_SUPERVISOR_TERMS:
        rm_launch_output_say(l->output, "%d of them did not stop in %lld ms: SIGTERM", note->rank,
                             (long long)l->config.grace_ms);
        break;
    case RM_SUPERVISOR_KILLS:
        rm_launch_output_say(l->output, "%d of them did not stop after that: SIGKILL", note->rank);
        break;
    case RM_SUPERVISOR_NO_FORK:
        rm_launch_output_say(l->output, "cannot start the process of rank %d: %s", note->rank, strerror(note->status));
        break;
    case RM_SUPERVISOR_OVER:
        finish_attempt(l, note);
        break;
    default:
        break;
    }
}

/* ---- When the supervisor dies ------------------------------------------------------------------------------------ */

static bool was_there_before(const launcher *l, pid_t child) {
    for (int i = 0; i < l->n_before; i++)
        if (l->before[i] == child) return true;
    return false;
}

/* The kernel has sent SIGKILL to the ranks. Processes that they started are now children of this process, which is a
 * subreaper, too. */
static void sweep_after_supervisor(const launcher *l) {
    pid_t children[MOST_CHILDREN];
    for (int found = 1; found > 0; usleep(500)) {
        int n = rm_process_children(children, MOST_CHILDREN);
        found = 0;
        for (int i = 0; i < n; i++) {
            if (was_there_before(l, children[i])) continue;
            found++; /* whether reaped or not: its children are next */
            kill(children[i], SIGKILL);
            (void)waitpid(children[i], NULL, WNOHANG);
        }
    }
}

static void lose_supervisor(launcher *l) {
    int status = 0;
    while (waitpid(l->supervisor, &status, 0) < 0 && errno == EINTR) {}
    l->supervisor = -1;
    if (l->over) return;
    l->over = true;
    l->code = rm_launch_code(status);
    if (!l->code) l->code = 1;
    sweep_after_supervisor(l);
    rm_launch_output_drain(l->output);
    rm_launch_output_say(l->output, "the supervisor process was killed by signal %d (%s), and all ranks with it",
                         WTERMSIG(status), strsignal(WTERMSIG(status)));
}

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

static void turn(launcher *l) {
    rm_supervisor_note note;
    int n = 0;
    l->slots[n++] = (struct pollfd){.fd = l->supervisor > 0 ? l->control : -1, .events = POLLIN};
    l->slots[n++] = (struct pollfd){.fd = signal_pipe[0], .events = POLLIN};
    l->slots[n++] = (struct pollfd){.fd = l->supervisor > 0 ? l->input : -1, .events = POLLIN};
    n += rm_launch_output_watch(l->output, l->slots + n);
    if (poll(l->slots, (nfds_t)n, -1) < 0) return;
    unsigned char number;
    if (l->slots[1].revents && read(signal_pipe[0], &number, 1) == 1) take_signal(l, number);
    if (l->slots[2].revents) take_remote_signal(l);
    int got = l->slots[0].revents ? rm_supervisor_receive(l->control, &note) : -1;
    if (got > 0) listen_to_supervisor(l, &note);
    if (got == 0) lose_supervisor(l);
    rm_launch_output_tend(l->output);
}

/* Runs until the job has ended and all output is written. After a second signal it no longer waits for a slow
 * reader. */
static void run(launcher *l) {
    while (l->supervisor > 0 || (rm_launch_output_pending(l->output) && l->signals < 2)) turn(l);
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static remat_status take_port(launcher *l) {
    rm_launch_config *c = &l->config;
    if (c->node_rank > 0 || c->hosts) return REMAT_OK;
    return rm_kv_listen(c->master_addr, &c->master_port,
                        c->nnodes > 1 ? "choose another with --master-port=N, the same on all nodes"
                                      : "choose another with --master-port=N, or let --standalone find a free one",
                        &l->listen_fd);
}

static remat_status open_descriptors(launcher *l) {
    int ends[2];
    rm_launch_output_config config = {.nproc = l->config.nproc,
                                      .first_rank = l->config.first_rank,
                                      .prefix = l->config.prefix,
                                      .direct_rank_0 = l->config.direct_rank_0,
                                      .log_dir = l->config.log_dir,
                                      .redirects = l->config.redirects,
                                      .tee = l->config.tee,
                                      .shown = l->config.shown};
    TRY(rm_launch_output_open(&config, &l->output));
    l->slots = rm_calloc((size_t)rm_launch_output_slots(l->output) + 3, sizeof *l->slots);
    REQUIRE(l->slots, MEMORY, "out of memory for a launcher");
    REQUIRE(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), IO,
            "cannot create a socket for the supervisor: %s", strerror(errno));
    l->control = ends[0];
    l->supervisor_control = ends[1];
    REQUIRE(!pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK), IO, "cannot create a pipe for signals: %s", strerror(errno));
    l->self = rm_process_watch(getpid());
    if (l->self >= 0) fcntl(l->self, F_SETFD, FD_CLOEXEC);
    return REMAT_OK;
}

_Noreturn static void become_supervisor(const launcher *l) {
    int32_t usable = rm_processors_get()->usable;
    close(l->control);
    close(signal_pipe[0]);
    close(signal_pipe[1]);
    rm_supervisor_run(&(rm_supervisor_job){.config = &l->config,
                                           .output = l->output,
                                           .secret = l->secret,
                                           .job_id = l->job_id,
                                           .threads = usable / l->config.nproc > 1 ? usable / l->config.nproc : 1,
                                           .control = l->supervisor_control,
                                           .launcher = l->self,
                                           .listen_fd = l->listen_fd,
                                           .signals = l->signal_state});
}

/* Signals are blocked until the supervisor no longer handles them and the launcher does. */
static remat_status start_supervisor(launcher *l) {
    sigset_t block;
    sigemptyset(&block);
    for (int i = 0; i < RM_LAUNCH_SIGNALS; i++) sigaddset(&block, rm_launch_signals[i]);
    fflush(NULL);
    l->n_before = rm_process_children(l->before, MOST_CHILDREN);
    sigprocmask(SIG_BLOCK, &block, &l->signal_state.mask);
    catch_signals(l);
    prctl(PR_GET_CHILD_SUBREAPER, &l->was_subreaper, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    l->supervisor = fork();
    if (l->supervisor == 0) become_supervisor(l);
    int why = errno;
    if (l->supervisor < 0) restore_process(l);
    sigprocmask(SIG_SETMASK, &l->signal_state.mask, NULL);
    REQUIRE(l->supervisor > 0, IO, "cannot start a process: %s", strerror(why));
    return REMAT_OK;
}

static void close_one(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void close_all(launcher *l) {
    close_one(&l->listen_fd);
    close_one(&l->control);
    close_one(&l->supervisor_control);
    close_one(&l->self);
    close_one(&signal_pipe[0]);
    close_one(&signal_pipe[1]);
    rm_launch_output_close(l->output);
    rm_free(l->slots);
}

remat_status rm_launch(const rm_launch_config *config, int *exit_code) {
    launcher l = {.listen_fd = -1, .control = -1, .supervisor_control = -1, .self = -1, .supervisor = -1};
    l.input = config->on_host ? STDIN_FILENO : -1;
    TRY(check_numbers(config));
    TRY(check_nodes(config));
    TRY(check_command(config->argv[0], exit_code));
    if (config->hosts) TRY(check_command("ssh", exit_code));
    fill_in(&l, config);
    remat_status status = take_port(&l);
    if (!status) status = open_descriptors(&l);
    if (!status) status = start_supervisor(&l);
    if (!status) {
        close_one(&l.supervisor_control);
        close_one(&l.listen_fd);
        close_one(&l.self);
        rm_launch_output_close_pipes(l.output);
        run(&l);
        restore_process(&l);
        *exit_code = l.code;
    }
    close_all(&l);
    return status;
}
