/* rendezvous.c: from flags and environment to a rank, a size and a place to meet. */
#include "dist/rendezvous.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/hash.h"

#define MOST_RANKS 32767
#define STALE_MS 30000 /* what is left of the attempt before may still be ending, on another host */

typedef struct {
    const rm_rendezvous_flags *flags;
    rm_environment *get;
    void *context;
    int64_t nodes; /* machines of the job; -1: not known */
} source;

const char *rm_environment_of_process(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

const char *rm_launcher_text(rm_launcher launcher) {
    static const char *const names[] = {"nobody", "the flags", "torchrun's variables", "Slurm", "Open MPI",
                                        "PMIx",   "PMI"};
    return names[launcher];
}

/* ---- The environment ----------------------------------------------------------------------------------------------- */

static const char *text(const source *s, const char *name) {
    const char *value = s->get(s->context, name);
    return value && value[0] ? value : NULL;
}

/* -1 when unset; INVALID when it is no whole number from 0. */
static remat_status number(const source *s, const char *name, int64_t *out) {
    const char *value = text(s, name);
    char *end;
    *out = -1;
    if (!value) return REMAT_OK;
    errno = 0;
    long long n = strtoll(value, &end, 10);
    REQUIRE(!errno && end != value && !*end && n >= 0 && n <= INT32_MAX, INVALID,
            "the environment has %s='%.60s', which is no whole number from 0", name, value);
    *out = n;
    return REMAT_OK;
}

/* ---- What each launcher says --------------------------------------------------------------------------------------- */

typedef struct {
    rm_launcher launcher;                              /* RM_BY_NOBODY: it is not there */
    int64_t size, rank, local_rank, local_size, nodes; /* -1: it does not say */
} answer;

static const answer nothing_said = {.size = -1, .rank = -1, .local_rank = -1, .local_size = -1, .nodes = -1};

static remat_status ask_torchrun(const source *s, answer *out) {
    out->launcher = RM_BY_TORCHRUN;
    TRY(number(s, "WORLD_SIZE", &out->size));
    TRY(number(s, "RANK", &out->rank));
    TRY(number(s, "LOCAL_RANK", &out->local_rank));
    TRY(number(s, "LOCAL_WORLD_SIZE", &out->local_size));
    TRY(number(s, "GROUP_WORLD_SIZE", &out->nodes));
    if (out->rank < 0) out->launcher = RM_BY_NOBODY; /* WORLD_SIZE alone is checked against the others below */
    return REMAT_OK;
}

/* Tasks of this node, where Slurm says so; else not known. */
static remat_status slurm_local_size(const source *s, answer *out) {
    int64_t node;
    const char *tasks = text(s, "SLURM_STEP_TASKS_PER_NODE");
    TRY(number(s, "SLURM_NODEID", &node));
    return tasks && node >= 0 ? rm_tasks_on_node(tasks, node, &out->local_size) : REMAT_OK;
}

/* Slurm's variables exist in the batch script and in an salloc shell too, where they describe the allocation and not this
 * process. Only a step, which srun starts, has a step's node list. */
static remat_status ask_slurm(const source *s, answer *out) {
    int64_t tasks;
    out->launcher = RM_BY_SLURM;
    TRY(number(s, "SLURM_NTASKS", &out->size));
    TRY(number(s, "SLURM_PROCID", &out->rank));
    TRY(number(s, "SLURM_LOCALID", &out->local_rank));
    TRY(number(s, "SLURM_STEP_NUM_TASKS", &tasks)); /* srun -n inside a larger allocation */
    if (tasks > 0) out->size = tasks;
    TRY(number(s, "SLURM_STEP_NUM_NODES", &out->nodes));
    if (out->nodes < 0) TRY(number(s, "SLURM_NNODES", &out->nodes));
    if (!text(s, "SLURM_STEP_NODELIST") || out->rank < 0) out->launcher = RM_BY_NOBODY;
    return out->launcher ? slurm_local_size(s, out) : REMAT_OK;
}

static remat_status ask_open_mpi(const source *s, answer *out) {
    out->launcher = RM_BY_OPEN_MPI;
    TRY(number(s, "OMPI_COMM_WORLD_SIZE", &out->size));
    TRY(number(s, "OMPI_COMM_WORLD_RANK", &out->rank));
    TRY(number(s, "OMPI_COMM_WORLD_LOCAL_RANK", &out->local_rank));
    TRY(number(s, "OMPI_COMM_WORLD_LOCAL_SIZE", &out->local_size));
    if (out->rank < 0 && out->size < 0) out->launcher = RM_BY_NOBODY;
    if (out->launcher && out->local_size == out->size) out->nodes = 1;
    return REMAT_OK;
}

static bool is_same(const answer *a, const answer *b) {
    return a->rank == b->rank && (a->size == b->size || a->size < 0 || b->size < 0);
}

/* srun's plugins for MPI say again, in less, what Slurm says. */
static remat_status is_said_by_slurm(const source *s, const answer *a, bool *out) {
    answer slurm = nothing_said;
    TRY(ask_slurm(s, &slurm));
    *out = slurm.launcher && is_same(a, &slurm);
    return REMAT_OK;
}

/* What the mpiexec of MPICH and of Intel MPI leave. */
static remat_status ask_pmi(const source *s, answer *out) {
    bool again;
    TRY(number(s, "PMI_SIZE", &out->size));
    TRY(number(s, "PMI_RANK", &out->rank));
    TRY(number(s, "MPI_LOCALRANKID", &out->local_rank));
    TRY(number(s, "MPI_LOCALNRANKS", &out->local_size));
    TRY(is_said_by_slurm(s, out, &again));
    if (!again && (out->rank >= 0 || out->size >= 0)) out->launcher = RM_BY_PMI;
    return REMAT_OK;
}

static remat_status ask_pmix(const source *s, answer *out) {
    bool again;
    TRY(number(s, "PMIX_RANK", &out->rank));
    TRY(is_said_by_slurm(s, out, &again));
    again = again || text(s, "OMPI_COMM_WORLD_RANK"); /* which is built on it */
    if (!again && out->rank >= 0) out->launcher = RM_BY_PMIX;
    return REMAT_OK;
}

/* ---- Several launchers at once ------------------------------------------------------------------------------------ */

/* "rank 1 of 4 (Slurm)" */
static const char *answer_text(const answer *a, char *out, size_t bytes) {
    char of[32] = "";
    if (a->size >= 0) snprintf(of, sizeof of, " of %" PRId64, a->size);
    snprintf(out, bytes, "rank %" PRId64 "%s (%s)", a->rank, of, rm_launcher_text(a->launcher));
    return out;
}

/* Where each of the outer launcher's tasks has started as many ranks of `inner` as any other, in order. */
static bool is_nested(const answer *inner, const answer *outer) {
    if (inner->size <= outer->size || outer->size < 1 || inner->size % outer->size) return false;
    return inner->rank / (inner->size / outer->size) == outer->rank;
}

/* Does `chosen` stand, beside what another launcher says? torchrun and `remat launch` are themselves started by others, once a
 * host, or once for each of many jobs; mpirun starts its daemons by srun. Variables set by hand, or left behind by something
 * that ended long ago, must give the same answer, or divide each task into ranks. */
static bool goes_with(const source *s, const answer *chosen, const answer *other) {
    if (is_same(chosen, other)) return true;
    if (chosen->launcher == RM_BY_TORCHRUN) return text(s, "TORCHELASTIC_RUN_ID") || is_nested(chosen, other);
    return other->launcher == RM_BY_SLURM && chosen->size >= other->size;
}

static remat_status check_together(const source *s, const answer *chosen, const answer *other) {
    char mine[80], theirs[80];
    REQUIRE(
        goes_with(s, chosen, other), INVALID,
        "the environment says two things: this is %s, and %s. Unset what is left of the launcher that did not start "
        "this process, or give both --world-size and --rank",
        answer_text(chosen, mine, sizeof mine), answer_text(other, theirs, sizeof theirs));
    return REMAT_OK;
}

/* Who is nearest to this process comes first. */
static remat_status ask_all(const source *s, answer *out) {
    remat_status (*const ask[])(const source *, answer *) = {ask_torchrun, ask_open_mpi, ask_pmi, ask_slurm, ask_pmix};
    *out = nothing_said;
    for (size_t i = 0; i < sizeof ask / sizeof *ask; i++) {
        answer one = nothing_said;
        TRY(ask[i](s, &one));
        if (!one.launcher) continue;
        if (out->launcher) TRY(check_together(s, out, &one));
        if (!out->launcher) *out = one;
    }
    return REMAT_OK;
}

/* ---- Putting them together ------------------------------------------------------------------------------------------ */

/* WORLD_SIZE without RANK is common in Slurm scripts, which export it for the other framework: it must agree. */
static remat_status check_lone_world_size(const source *s, const answer *a) {
    int64_t size;
    TRY(number(s, "WORLD_SIZE", &size));
    if (size < 0 || a->launcher == RM_BY_TORCHRUN || a->launcher == RM_BY_FLAGS) return REMAT_OK;
    REQUIRE(a->launcher || size == 1, INVALID,
            "WORLD_SIZE is %" PRId64
            ", but RANK is not set: start the ranks with a launcher (remat launch, torchrun, srun, "
            "mpirun), or set RANK for each",
            size);
    REQUIRE(a->size < 0 || !a->launcher || a->size == size, INVALID,
            "WORLD_SIZE is %" PRId64 ", but %s started %" PRId64 " tasks: unset WORLD_SIZE, or make them equal", size,
            rm_launcher_text(a->launcher), a->size);
    return REMAT_OK;
}

/* In a batch script or an salloc shell, which are one process whatever has been allocated. */
static remat_status check_allocation(const source *s) {
    int64_t tasks;
    TRY(number(s, "SLURM_STEP_NUM_TASKS", &tasks));
    if (tasks <= 0) TRY(number(s, "SLURM_NTASKS", &tasks));
    REQUIRE(tasks <= 1, INVALID,
            "Slurm has allocated %" PRId64
            " tasks, but this process was not started by srun: put srun in front of remat. "
            "(For one rank on purpose: --world-size=1 --rank=0)",
            tasks);
    return REMAT_OK;
}

/* With both numbers the launcher is not even looked at: it may have started something else, or half of it. */
static remat_status by_flags_alone(const rm_rendezvous_flags *flags, answer *out) {
    *out = (answer){.launcher = RM_BY_FLAGS,
                    .size = flags->world_size,
                    .rank = flags->rank,
                    .local_rank = flags->local_rank,
                    .local_size = -1,
                    .nodes = -1};
    return REMAT_OK;
}

/* By torchrun's variables without a name of the job somebody may have started each rank by hand, and mpirun takes several
 * command lines at a time. So does srun, with --multi-prog, but does not tell. */
static bool has_one_command(const source *s, rm_launcher launcher) {
    const char *lines = text(s, "OMPI_NUM_APP_CTX");
    if (launcher == RM_BY_TORCHRUN) return text(s, "TORCHELASTIC_RUN_ID") != NULL;
    if (launcher == RM_BY_OPEN_MPI) return lines && !strcmp(lines, "1");
    return launcher == RM_BY_SLURM;
}

bool rm_rendezvous_repeats(rm_environment *get, void *context, bool same_host) {
    static const rm_rendezvous_flags none = {.world_size = -1, .rank = -1, .local_rank = -1};
    source s = {.flags = &none, .get = get, .context = context};
    answer a;
    if (ask_all(&s, &a) || a.rank < 1) return false;
    return has_one_command(&s, a.launcher) && (!same_host || a.local_rank > 0);
}

remat_status rm_rendezvous_is_rank(rm_environment *get, void *context, char *who, size_t bytes) {
    source s = {.get = get, .context = context};
    answer a;
    *who = 0;
    TRY(ask_all(&s, &a));
    if (a.launcher && a.size != 1) answer_text(&a, who, bytes);
    return REMAT_OK;
}

static remat_status find_rank(const source *s, answer *out) {
    const rm_rendezvous_flags *flags = s->flags;
    if (flags->world_size >= 0 && flags->rank >= 0) return by_flags_alone(flags, out);
    TRY(ask_all(s, out));
    if (!out->launcher) TRY(check_allocation(s));
    if (flags->world_size >= 0) out->size = flags->world_size;
    if (flags->rank >= 0) out->rank = flags->rank;
    if (flags->local_rank >= 0) out->local_rank = flags->local_rank;
    TRY(check_lone_world_size(s, out));
    if (!out->launcher && out->size < 0 && out->rank < 0) { /* no flags, no launcher: one rank, as anywhere */
        *out = (answer){.size = 1, .local_size = 1, .nodes = -1};
        return REMAT_OK;
    }
    if (!out->launcher && out->size == 1 && out->rank < 0) out->rank = 0;
    REQUIRE(out->rank >= 0, INVALID, "--world-size is %" PRId64 ", but nothing says which rank this is: add --rank",
            out->size);
    REQUIRE(out->size >= 0, INVALID, "this is rank %" PRId64 " (%s), but nothing says of how many: add --world-size",
            out->rank, out->launcher ? rm_launcher_text(out->launcher) : "--rank");
    return REMAT_OK;
}

static remat_status check_rank(const answer *a, rm_rendezvous *out) {
    const char *who = rm_launcher_text(a->launcher);
    REQUIRE(a->size >= 1 && a->size <= MOST_RANKS, INVALID, "%" PRId64 " ranks (%s): 1 to %d are possible", a->size,
            who, MOST_RANKS);
    REQUIRE(a->rank < a->size, INVALID, "rank %" PRId64 " of %" PRId64 " (%s): ranks are 0 to %" PRId64, a->rank,
            a->size, who, a->size - 1);
    REQUIRE(a->local_size < 0 || a->local_rank < a->local_size, INVALID,
            "local rank %" PRId64 " of %" PRId64 " on this host (%s)", a->local_rank, a->local_size, who);
    REQUIRE(a->local_size <= a->size, INVALID, "%" PRId64 " ranks on this host, of %" PRId64 " in all (%s)",
            a->local_size, a->size, who);
    *out = (rm_rendezvous){.launcher = a->launcher,
                           .rank = (int32_t)a->rank,
                           .size = (int32_t)a->size,
                           .local_rank = (int32_t)a->local_rank,
                           .local_size = (int32_t)a->local_size};
    return REMAT_OK;
}

/* ---- Where ---------------------------------------------------------------------------------------------------------- */

static bool is_loopback(const char *host) {
    return !strcmp(host, "localhost") || !strncmp(host, "127.", 4) || !strcmp(host, "::1");
}

/* Good to listen at; who connects there reaches itself. */
static bool is_any(const char *host) { return !strcmp(host, "0.0.0.0") || !strcmp(host, "::") || !strcmp(host, "0"); }

/* "HOST:PORT", or "[v6 address]:PORT". */
static remat_status read_host_port(const char *given, rm_rendezvous *out) {
    const char *colon = strrchr(given, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    REQUIRE(colon && colon > given && end != colon + 1 && !*end && port >= 1 && port <= 65535, INVALID,
            "--init-method=tcp://%.200s: that should be tcp://HOST:PORT, with a port from 1 to 65535", given);
    size_t length = (size_t)(colon - given);
    bool bracketed = given[0] == '[' && colon[-1] == ']';
    if (bracketed) given++, length -= 2;
    REQUIRE(length > 0 && length < sizeof out->host && !memchr(given, '/', length), INVALID,
            "--init-method=tcp://%.200s: '%.*s' is no host", given, (int)length, given);
    memcpy(out->host, given, length);
    out->host[length] = 0;
    out->port = (int32_t)port;
    out->meeting = RM_MEET_TCP;
    return REMAT_OK;
}

static remat_status read_path(const char *path, rm_rendezvous *out) {
    REQUIRE(path[0] == '/' && path[1], INVALID,
            "--init-method=file://%.200s: that should be file:///PATH, with a path from the root", path);
    REQUIRE(strlen(path) < sizeof out->path, INVALID, "the path of --init-method has %zu characters", strlen(path));
    strcpy(out->path, path);
    out->meeting = RM_MEET_FILE;
    return REMAT_OK;
}

/* Without MASTER_PORT, one that the job's own number gives: two jobs on a host seldom meet, and the port is the same on all
 * ranks. Below the ports that systems hand out by themselves. */
static int32_t port_of_job(const char *job) { return 15000 + (int32_t)(rm_hash(job, strlen(job), 0) % 15000); }

static void slurm_job(const source *s, char *out, size_t bytes) {
    const char *job = text(s, "SLURM_JOB_ID"), *step = text(s, "SLURM_STEP_ID");
    snprintf(out, bytes, "slurm %.60s.%.60s", job ? job : "", step ? step : "");
}

/* torchrun serves a store of its own at MASTER_PORT, for ranks that speak its language. */
static bool has_agent(const source *s, const rm_rendezvous *out) {
    const char *agent = text(s, "TORCHELASTIC_USE_AGENT_STORE");
    return out->launcher == RM_BY_TORCHRUN && agent && (!strcasecmp(agent, "true") || !strcmp(agent, "1"));
}

/* What torchrun's ranks have in common: by default the name is "none", and then the port tells jobs apart. */
static void torchrun_job(const source *s, const rm_rendezvous *out, char *job, size_t bytes) {
    const char *run = text(s, "TORCHELASTIC_RUN_ID"), *port = text(s, "MASTER_PORT");
    snprintf(job, bytes, "torchrun %.160s %.20s %d", run ? run : "", port ? port : "", out->attempt);
}

static remat_status find_host(const source *s, rm_rendezvous *out) {
    const char *master = text(s, "MASTER_ADDR"), *nodes = text(s, "SLURM_STEP_NODELIST");
    bool one_host = s->nodes == 1 || out->local_size == out->size;
    if (has_agent(s, out) && one_host) master = NULL; /* this host's name for itself, which may lead nowhere */
    if (master) {
        REQUIRE(strlen(master) < sizeof out->host, INVALID, "MASTER_ADDR has %zu characters", strlen(master));
        REQUIRE(
            !strchr(master, '['), INVALID,
            "MASTER_ADDR is '%.100s', a list of hosts and not one: take the first (scontrol show hostnames), or unset "
            "it, and Remat will",
            master);
        strcpy(out->host, master);
        return REMAT_OK;
    }
    if (out->launcher == RM_BY_SLURM && nodes) return rm_hostlist_at(nodes, 0, out->host);
    if (one_host) {
        strcpy(out->host, "127.0.0.1"); /* known: all ranks are on this host */
        return REMAT_OK;
    }
    FAIL(INVALID,
         "%d ranks (%s), and nothing says where rank 0 is: set MASTER_ADDR and MASTER_PORT, or use "
         "--init-method=tcp://HOST:PORT or file:///PATH",
         out->size, rm_launcher_text(out->launcher));
}

static remat_status find_port(const source *s, rm_rendezvous *out) {
    int64_t port;
    char job[256];
    TRY(number(s, "MASTER_PORT", &port));
    REQUIRE(port != 0 && port <= 65535, INVALID, "MASTER_PORT is %" PRId64 ": ports are 1 to 65535", port);
    if (has_agent(s, out)) {
        torchrun_job(s, out, job, sizeof job);
        port = port_of_job(job);
    }
    const char *space = text(s, "PMIX_NAMESPACE");
    slurm_job(s, job, sizeof job);
    if (port < 0 && out->launcher == RM_BY_SLURM) port = port_of_job(job);
    if (port < 0 && out->launcher >= RM_BY_OPEN_MPI && space) port = port_of_job(space);
    REQUIRE(port > 0, INVALID,
            "rank 0 is on %s, but MASTER_PORT is not set: set it, or use --init-method=tcp://%s:PORT", out->host,
            out->host);
    out->port = (int32_t)port;
    out->meeting = RM_MEET_TCP;
    return REMAT_OK;
}

static remat_status find_listener(const source *s, rm_rendezvous *out) {
    int64_t fd;
    TRY(number(s, "REMAT_LISTEN_FD", &fd));
    if (out->launcher == RM_BY_TORCHRUN && out->rank == 0 && fd > 0) out->listen_fd = (int32_t)fd;
    return REMAT_OK;
}

/* mpirun tells nobody's address to ranks on several hosts, and MPICH's not even a job's name, which a port could follow
 * from: MPI itself will have to bring them together. */
static bool only_mpi_knows(const source *s, const rm_rendezvous *out) {
    bool name = out->launcher != RM_BY_PMI || text(s, "MASTER_PORT");
    return out->launcher >= RM_BY_OPEN_MPI && (s->nodes != 1 || !name) && !text(s, "MASTER_ADDR");
}

static remat_status find_place(const source *s, rm_rendezvous *out) {
    const char *method = s->flags->init_method ? s->flags->init_method : "env://";
    if (!strncmp(method, "tcp://", 6)) {
        TRY(read_host_port(method + 6, out));
    } else if (!strncmp(method, "file://", 7)) {
        return read_path(method + 7, out);
    } else {
        REQUIRE(!strcmp(method, "env://"), INVALID,
                "--init-method=%.200s: there are env://, tcp://HOST:PORT and file:///PATH", method);
        if (out->size == 1 || (!s->flags->init_method && only_mpi_knows(s, out))) return REMAT_OK;
        TRY(find_host(s, out));
        TRY(find_port(s, out));
        TRY(find_listener(s, out));
    }
    bool many = s->nodes > 1 || (out->local_size > 0 && out->local_size < out->size);
    REQUIRE(
        !many || (!is_loopback(out->host) && !is_any(out->host)), INVALID,
        "rank 0 is said to be at %s, but the %d ranks are on several hosts (%s), and each of them has its own %s: name "
        "rank 0's host",
        out->host, out->size, rm_launcher_text(out->launcher), out->host);
    return REMAT_OK;
}

/* The best there is; with flags alone jobs are told apart by port only, and by refusing a rank that is there already. */
static remat_status find_secret(const source *s, rm_rendezvous *out) {
    const char *own = text(s, "REMAT_JOB_SECRET"), *run = text(s, "TORCHELASTIC_RUN_ID"),
               *space = text(s, "PMIX_NAMESPACE");
    int64_t attempt;
    TRY(number(s, "TORCHELASTIC_RESTART_COUNT", &attempt));
    if (out->launcher == RM_BY_TORCHRUN && attempt > 0) out->attempt = (int32_t)attempt;
    REQUIRE(!own || strlen(own) < sizeof out->secret, INVALID, "REMAT_JOB_SECRET has %zu characters; 255 are possible",
            own ? strlen(own) : 0);
    if (own)
        strcpy(out->secret, own);
    else if (out->launcher == RM_BY_TORCHRUN && run)
        torchrun_job(s, out, out->secret, sizeof out->secret);
    else if (out->launcher == RM_BY_SLURM)
        slurm_job(s, out->secret, sizeof out->secret);
    else if (out->launcher >= RM_BY_OPEN_MPI && space)
        snprintf(out->secret, sizeof out->secret, "pmix %.200s", space);
    return REMAT_OK;
}

remat_status rm_rendezvous_resolve(const rm_rendezvous_flags *flags, rm_environment *get, void *context,
                                   rm_rendezvous *out) {
    source s = {.flags = flags, .get = get, .context = context, .nodes = -1};
    answer a;
    TRY(find_rank(&s, &a));
    s.nodes = a.nodes;
    TRY(check_rank(&a, out));
    TRY(find_secret(&s, out));
    return find_place(&s, out);
}

remat_status rm_rendezvous_store(const rm_rendezvous *where, int64_t timeout_ms, rm_kv **out) {
    rm_kv_config config = {.rank = where->rank,
                           .size = where->size,
                           .secret = where->secret,
                           .stale_ms = where->attempt > 0 ? STALE_MS : 0,
                           .timeout_ms = timeout_ms};
    *out = NULL;
    if (where->meeting == RM_MEET_NOWHERE) return REMAT_OK;
    if (where->meeting == RM_MEET_FILE)
        config.path = where->path;
    else
        config.host = where->host, config.port = where->port, config.listen_fd = where->listen_fd;
    return rm_kv_open(&config, out);
}
