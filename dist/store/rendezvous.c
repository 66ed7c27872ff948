/* rendezvous.c: from flags and environment to a rank, a size and a meeting place. launchers.c reads the launchers'
 * variables; this file applies the flags and decides where ranks meet. */
#include "dist/launch/launchers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/hash.h"

#define STALE_MS 30000 /* the last attempt may still be ending, on another host */

typedef struct {
    const rm_rendezvous_flags *flags;
    rm_variables env;
    int64_t nodes; /* number of hosts of the job; -1: unknown */
} source;

const char *rm_environment_of_process(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

/* ---- Which rank -------------------------------------------------------------------------------------------------- */

/* WORLD_SIZE without RANK is common in Slurm scripts, which export it for other frameworks: it must agree. */
static remat_status check_lone_world_size(const source *s, const rm_answer *a) {
    int64_t size;
    TRY(rm_variable_number(&s->env, "WORLD_SIZE", &size));
    if (size < 0 || a->launcher == RM_BY_TORCHRUN || a->launcher == RM_BY_FLAGS) return REMAT_OK;
    REQUIRE(a->launcher || size == 1, INVALID,
            "WORLD_SIZE is %" PRId64 ", but RANK is not set; start the ranks with a launcher (remat launch, torchrun, "
            "srun, mpirun), or set RANK for each",
            size);
    REQUIRE(a->size < 0 || !a->launcher || a->size == size, INVALID,
            "WORLD_SIZE is %" PRId64 ", but %s started %" PRId64 " tasks; unset WORLD_SIZE, or make them equal", size,
            rm_launcher_text(a->launcher), a->size);
    return REMAT_OK;
}

/* A batch script or an salloc shell is a single process, whatever has been allocated. */
static remat_status check_allocation(const source *s) {
    int64_t tasks;
    TRY(rm_variable_number(&s->env, "SLURM_STEP_NUM_TASKS", &tasks));
    if (tasks <= 0) TRY(rm_variable_number(&s->env, "SLURM_NTASKS", &tasks));
    REQUIRE(tasks <= 1, INVALID,
            "Slurm has allocated %" PRId64
            " tasks, but this process was not started by srun: put srun in front of remat. "
            "(For one rank on purpose: {world_size}=1 {rank}=0)",
            tasks);
    return REMAT_OK;
}

/* With both flags, the launcher's variables are ignored: it may have started something else, or only a part of the
 * job. */
static remat_status by_flags_alone(const rm_rendezvous_flags *flags, rm_answer *out) {
    *out = (rm_answer){.launcher = RM_BY_FLAGS,
                       .size = flags->world_size,
                       .rank = flags->rank,
                       .local_rank = flags->local_rank,
                       .local_size = -1,
                       .nodes = -1};
    return REMAT_OK;
}

static remat_status find_rank(const source *s, rm_answer *out) {
    const rm_rendezvous_flags *flags = s->flags;
    if (flags->world_size >= 0 && flags->rank >= 0) return by_flags_alone(flags, out);
    TRY(rm_launchers_ask(&s->env, out));
    if (!out->launcher) TRY(check_allocation(s));
    if (flags->world_size >= 0) out->size = flags->world_size;
    if (flags->rank >= 0) out->rank = flags->rank;
    if (flags->local_rank >= 0) out->local_rank = flags->local_rank;
    TRY(check_lone_world_size(s, out));
    if (!out->launcher && out->size < 0 && out->rank < 0) TRY(rm_launchers_check_alone(&s->env));
    if (!out->launcher && out->size < 0 && out->rank < 0) { /* no flags, no launcher: a single rank */
        *out = (rm_answer){.size = 1, .local_size = 1, .nodes = -1};
        return REMAT_OK;
    }
    if (!out->launcher && out->size == 1 && out->rank < 0) out->rank = 0;
    REQUIRE(out->rank >= 0, INVALID, "{world_size} is %" PRId64 ", but nothing gives this process's rank; add {rank}",
            out->size);
    REQUIRE(out->size >= 0, INVALID,
            "this is rank %" PRId64 " (%s), but nothing gives the number of ranks; add {world_size}", out->rank,
            out->launcher ? rm_launcher_text(out->launcher) : rm_member_name("rank"));
    return REMAT_OK;
}

static remat_status check_rank(const rm_answer *a, rm_rendezvous *out) {
    const char *who = rm_launcher_text(a->launcher);
    REQUIRE(a->size >= 1 && a->size <= RM_MOST_RANKS, INVALID, "%" PRId64 " ranks (%s) are not possible; use 1 to %d",
            a->size, who, RM_MOST_RANKS);
    REQUIRE(a->rank < a->size, INVALID, "rank %" PRId64 " of %" PRId64 " (%s): ranks are 0 to %" PRId64, a->rank,
            a->size, who, a->size - 1);
    REQUIRE(a->local_size < 0 || a->local_rank < a->local_size, INVALID,
            "there is no local rank %" PRId64 " of %" PRId64 " on this host (%s)", a->local_rank, a->local_size, who);
    REQUIRE(a->local_size <= a->size, INVALID,
            "%" PRId64 " ranks on this host are more than the %" PRId64 " in total (%s)", a->local_size, a->size, who);
    *out = (rm_rendezvous){.launcher = a->launcher,
                           .rank = (int32_t)a->rank,
                           .size = (int32_t)a->size,
                           .local_rank = (int32_t)a->local_rank,
                           .local_size = (int32_t)a->local_size};
    return REMAT_OK;
}

/* ---- Where ranks meet -------------------------------------------------------------------------------------------- */

bool rm_host_is_itself(const char *host) {
    bool loopback = !strcmp(host, "localhost") || !strncmp(host, "127.", 4) || !strcmp(host, "::1");
    bool any = !strcmp(host, "0.0.0.0") || !strcmp(host, "::") || !strcmp(host, "0"); /* valid for listening only */
    return loopback || any;
}

/* "HOST:PORT", or "[v6 address]:PORT". */
static remat_status read_host_port(const char *given, rm_rendezvous *out) {
    const char *colon = strrchr(given, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    REQUIRE(colon && colon > given && end != colon + 1 && !*end && port >= 1 && port <= 65535, INVALID,
            "{init_method}=tcp://%.200s is not an address; use tcp://HOST:PORT, with a port from 1 to 65535", given);
    size_t length = (size_t)(colon - given);
    bool bracketed = given[0] == '[' && colon[-1] == ']';
    if (bracketed) given++, length -= 2;
    REQUIRE(length > 0 && length < sizeof out->host && !memchr(given, '/', length), INVALID,
            "{init_method}=tcp://%.200s: '%.*s' is not a host", given, (int)length, given);
    memcpy(out->host, given, length);
    out->host[length] = 0;
    out->port = (int32_t)port;
    out->meeting = RM_MEET_TCP;
    return REMAT_OK;
}

static remat_status read_path(const char *path, rm_rendezvous *out) {
    REQUIRE(path[0] == '/' && path[1], INVALID,
            "{init_method}=file://%.200s is not a path; use file:///PATH, with a path from the root", path);
    REQUIRE(strlen(path) < sizeof out->path, INVALID, "the path of {init_method} has %zu characters, which is too long",
            strlen(path));
    strcpy(out->path, path);
    out->meeting = RM_MEET_FILE;
    return REMAT_OK;
}

/* Without MASTER_PORT, derives a port from the job's own number: two jobs on a host rarely collide, and the port is the
 * same on all ranks. It is below the ports that systems assign by themselves. */
static int32_t port_of_job(const char *job) { return 15000 + (int32_t)(rm_hash(job, strlen(job), 0) % 15000); }

static void slurm_job(const source *s, char *out, size_t bytes) {
    const char *job = rm_variable(&s->env, "SLURM_JOB_ID"), *step = rm_variable(&s->env, "SLURM_STEP_ID");
    snprintf(out, bytes, "slurm %.60s.%.60s", job ? job : "", step ? step : "");
}

/* torchrun serves a store of its own at MASTER_PORT, for ranks that use its protocol. */
static bool has_agent(const source *s, const rm_rendezvous *out) {
    const char *agent = rm_variable(&s->env, "TORCHELASTIC_USE_AGENT_STORE");
    return out->launcher == RM_BY_TORCHRUN && agent &&
           (!strcmp(agent, "True") || !strcmp(agent, "true") || !strcmp(agent, "1"));
}

/* Something that all of torchrun's ranks share: the default name is "none", so the port has to distinguish jobs. */
static void torchrun_job(const source *s, char *job, size_t bytes) {
    const char *run = rm_variable(&s->env, "TORCHELASTIC_RUN_ID"), *port = rm_variable(&s->env, "MASTER_PORT");
    snprintf(job, bytes, "torchrun %.160s %.20s", run ? run : "", port ? port : "");
}

/* A port for each attempt, since the agent's store continues from one attempt to the next. */
static int32_t port_of_torchrun(const source *s, const rm_rendezvous *out) {
    char job[256], attempt[300];
    torchrun_job(s, job, sizeof job);
    snprintf(attempt, sizeof attempt, "%s %d", job, out->attempt);
    return port_of_job(attempt);
}

/* An IPv6 address may be in brackets, as in URLs. */
static bool take_brackets(const char *master, char host[RM_HOST_BYTES]) {
    size_t length = strlen(master);
    if (length < 4 || master[0] != '[' || strcspn(master, "]") + 1 != length || !strchr(master, ':')) return false;
    snprintf(host, RM_HOST_BYTES, "%.*s", (int)length - 2, master + 1);
    return true;
}

static remat_status find_host(const source *s, rm_rendezvous *out) {
    const char *master = rm_variable(&s->env, "MASTER_ADDR"), *nodes = rm_variable(&s->env, "SLURM_STEP_NODELIST");
    bool one_host = s->nodes == 1 || out->local_size == out->size;
    if (has_agent(s, out) && one_host) master = NULL; /* the host's own name may resolve to nothing useful */
    if (master) {
        REQUIRE(strlen(master) < sizeof out->host, INVALID, "MASTER_ADDR has %zu characters, which is too long",
                strlen(master));
        if (take_brackets(master, out->host)) return REMAT_OK;
        REQUIRE(!strchr(master, '['), INVALID,
                "MASTER_ADDR is '%.100s', a list of hosts; use the first one (scontrol show hostnames), or unset it "
                "and Remat will",
                master);
        strcpy(out->host, master);
        return REMAT_OK;
    }
    if (out->launcher == RM_BY_SLURM && nodes) return rm_hostlist_at(nodes, 0, out->host);
    if (one_host) {
        strcpy(out->host, "127.0.0.1"); /* safe: all ranks are on this host */
        return REMAT_OK;
    }
    FAIL(INVALID,
         "%d ranks (%s), but nothing gives the address of rank 0; set MASTER_ADDR and MASTER_PORT, or use "
         "{init_method}=tcp://HOST:PORT or file:///PATH",
         out->size, rm_launcher_text(out->launcher));
}

static remat_status find_port(const source *s, rm_rendezvous *out) {
    int64_t port;
    char job[256];
    TRY(rm_variable_number(&s->env, "MASTER_PORT", &port));
    REQUIRE(port != 0 && port <= 65535, INVALID, "MASTER_PORT is %" PRId64 ", which is not a port; use 1 to 65535",
            port);
    if (has_agent(s, out)) port = port_of_torchrun(s, out);
    const char *space = rm_variable(&s->env, "PMIX_NAMESPACE");
    slurm_job(s, job, sizeof job);
    if (port < 0 && out->launcher == RM_BY_SLURM) port = port_of_job(job);
    if (port < 0 && out->launcher >= RM_BY_OPEN_MPI && space) port = port_of_job(space);
    REQUIRE(port > 0, INVALID,
            "rank 0 is on %s, but MASTER_PORT is not set; set it, or use {init_method}=tcp://%s:PORT", out->host,
            out->host);
    out->port = (int32_t)port;
    out->meeting = RM_MEET_TCP;
    return REMAT_OK;
}

static remat_status find_listener(const source *s, rm_rendezvous *out) {
    int64_t fd;
    TRY(rm_variable_number(&s->env, "REMAT_LISTEN_FD", &fd));
    if (out->launcher == RM_BY_TORCHRUN && out->rank == 0 && fd > 0) out->listen_fd = (int32_t)fd;
    return REMAT_OK;
}

/* mpirun gives ranks on several hosts no address of rank 0, and MPICH's not even a job name from which a port could be
 * derived. MPI itself has to connect them. */
static bool only_mpi_knows(const source *s, const rm_rendezvous *out) {
    bool name = out->launcher != RM_BY_PMI || rm_variable(&s->env, "MASTER_PORT");
    return out->launcher >= RM_BY_OPEN_MPI && (s->nodes != 1 || !name) && !rm_variable(&s->env, "MASTER_ADDR");
}

static remat_status find_place(const source *s, rm_rendezvous *out) {
    const char *method = s->flags->init_method ? s->flags->init_method : "env://";
    if (!strncmp(method, "tcp://", 6)) {
        TRY(read_host_port(method + 6, out));
    } else if (!strncmp(method, "file://", 7)) {
        return read_path(method + 7, out);
    } else {
        REQUIRE(!strcmp(method, "env://"), INVALID,
                "{init_method}=%.200s is not supported; use env://, tcp://HOST:PORT or file:///PATH", method);
        if (out->size == 1 || (!s->flags->init_method && only_mpi_knows(s, out))) return REMAT_OK;
        TRY(find_host(s, out));
        TRY(find_port(s, out));
        TRY(find_listener(s, out));
    }
    bool many = s->nodes > 1 || (out->local_size > 0 && out->local_size < out->size);
    REQUIRE(!many || !rm_host_is_itself(out->host), INVALID,
            "rank 0 is given as %s, but the %d ranks are on several hosts (%s), each of which has its own %s; give "
            "rank 0's host",
            out->host, out->size, rm_launcher_text(out->launcher), out->host);
    return REMAT_OK;
}

/* The best available secret. With flags alone, jobs are distinguished only by their port, and by refusing a rank that
 * is already present. */
static remat_status find_secret(const source *s, rm_rendezvous *out) {
    const char *own = rm_variable(&s->env, "REMAT_JOB_SECRET"), *run = rm_variable(&s->env, "TORCHELASTIC_RUN_ID"),
               *space = rm_variable(&s->env, "PMIX_NAMESPACE");
    int64_t attempt;
    TRY(rm_variable_number(&s->env, "TORCHELASTIC_RESTART_COUNT", &attempt));
    bool counts = out->launcher == RM_BY_TORCHRUN || (out->launcher == RM_BY_FLAGS && own); /* `remat launch` set it */
    if (counts && attempt > 0) out->attempt = (int32_t)attempt;
    REQUIRE(!own || strlen(own) < sizeof out->secret, INVALID,
            "REMAT_JOB_SECRET has %zu characters; the maximum is 255", own ? strlen(own) : 0);
    if (own)
        strcpy(out->secret, own);
    else if (out->launcher == RM_BY_TORCHRUN && run)
        torchrun_job(s, out->secret, sizeof out->secret);
    else if (out->launcher == RM_BY_SLURM)
        slurm_job(s, out->secret, sizeof out->secret);
    else if (out->launcher >= RM_BY_OPEN_MPI && space)
        snprintf(out->secret, sizeof out->secret, "pmix %.200s", space);
    return REMAT_OK;
}

remat_status rm_rendezvous_resolve(const rm_rendezvous_flags *flags, rm_environment *get, void *context,
                                   rm_rendezvous *out) {
    source s = {.flags = flags, .env = {get, context}, .nodes = -1};
    rm_answer a;
    TRY(find_rank(&s, &a));
    s.nodes = a.nodes;
    TRY(check_rank(&a, out));
    TRY(find_secret(&s, out));
    return find_place(&s, out);
}

/* ---- Other queries ----------------------------------------------------------------------------------------------- */

bool rm_rendezvous_repeats(rm_environment *get, void *context, bool same_host) {
    rm_variables env = {get, context};
    rm_answer a;
    if (rm_launchers_ask(&env, &a) || a.rank < 1) return false;
    return rm_launcher_repeats(&env, a.launcher) && (!same_host || a.local_rank > 0);
}

remat_status rm_rendezvous_is_rank(rm_environment *get, void *context, char *who, size_t bytes) {
    rm_variables env = {get, context};
    rm_answer a;
    *who = 0;
    TRY(rm_launchers_ask(&env, &a));
    if (!a.launcher) TRY(rm_launchers_check_alone(&env));
    if (a.launcher && a.size != 1) rm_answer_text(&a, who, bytes);
    return REMAT_OK;
}

remat_status rm_rendezvous_store(const rm_rendezvous *where, int64_t timeout_ms,
                                 void (*say)(void *context, const char *sentence), void *context, rm_kv **out) {
    rm_kv_config config = {.rank = where->rank,
                           .size = where->size,
                           .secret = where->secret,
                           .stale_ms = where->attempt > 0 ? STALE_MS : 0,
                           .attempt = where->attempt,
                           .timeout_ms = timeout_ms,
                           .say = say,
                           .context = context};
    *out = NULL;
    if (where->meeting == RM_MEET_NOWHERE) return REMAT_OK;
    if (where->meeting == RM_MEET_FILE)
        config.path = where->path;
    else
        config.host = where->host, config.port = where->port, config.listen_fd = where->listen_fd;
    return rm_kv_open(&config, out);
}
