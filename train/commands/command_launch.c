/* command_launch.c: `remat launch`, which starts ranks with torchrun's flags, through dist/launch/launch.h. It has its own parser,
 * because a command follows its flags: remat launch [--flag=value ...] [--] COMMAND [argument ...].
 * Main entry: rm_command_launch. `remat train --devices` starts its ranks in command_devices.c. */
#define _GNU_SOURCE
#include "train/commands/commands.h"
#include "train/commands/launch_hosts.h"
#include "train/file.h"
#include "train/flags/other_names.h"
#include "train/report/terminal.h"
#include "train/text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dist/launch/launch.h"
#include "dist/launch/remote.h"
#include "dist/store/rendezvous.h"
#include "memory/host.h"
#include "memory/processors.h"

/* ---- The table of flags ------------------------------------------------------------------------------------------ */

typedef enum {
    NPROC,
    NNODES,
    NODE_RANK,
    MASTER_ADDR,
    MASTER_PORT,
    ENDPOINT,
    STANDALONE,
    MAX_RESTARTS,
    LOG_DIR,
    REDIRECTS,
    TEE,
    SHOWN,
    RUN_ID,
    TOTAL,
    HOSTS,
    HOSTFILE,
    ON_HOST,
    FIRST_RANK,
    WORLD_SIZE,
    NO_PREFIX,
    NO_EFFECT,
    OF_SSH,
    OF_ENVIRONMENT,
    HELP,
} meaning;

/* Each flag may also be set in the environment, under torchrun's names: PET_NPROC_PER_NODE and so on. */
static const struct {
    const char *name, *value; /* value NULL: a switch */
    meaning meaning;
    const char *help; /* NULL: not listed */
} flags[] = {
    {"nproc-per-node", "N|cpu|auto", NPROC, "ranks on this host; cpu, auto: one for each processor [1]"},
    {"nnodes", "M|MIN:MAX", NNODES,
     "number of hosts, on each of which `remat launch` is started; MIN:MAX: an elastic job [1]"},
    {"node-rank", "R", NODE_RANK, "number of this host, from 0 [under srun: SLURM_NODEID]"},
    {"master-addr", "HOST", MASTER_ADDR, "address of host 0; required if there are several hosts"},
    {"master-port", "PORT", MASTER_PORT, "port on which rank 0 listens [29500; on one host: any free port]"},
    {"standalone", NULL, STANDALONE, "one host and a free port (the default with one host)"},
    {"max-restarts", "N", MAX_RESTARTS,
     "restart all ranks at most N times when one fails, except with exit status 2 [0]"},
    {"np", "N", TOTAL,
     "ranks of the job on all hosts of --hosts or --hostfile [all slots]; without these, on this host"},
    {"hosts", "HOST:N,..", HOSTS,
     "hosts of the job, and slots for ranks on each, started by ssh; -H is the same, as for mpirun and horovodrun"},
    {"hostfile", "FILE", HOSTFILE, "file with a host a line, as HOST slots=N or HOST:N"},
    {"log-dir", "DIR", LOG_DIR, "also write the output of rank R to DIR/TIME/attempt-N/rank-R.log"},
    {"redirects", "N|R:N,..", REDIRECTS,
     "streams of the ranks that go to rank-R.stdout.log and rank-R.stderr.log in --log-dir instead of the terminal: "
     "1: stdout, 2: stderr, 3: both; R:N is of rank R of this host. Other streams are in no file; 0: all are in "
     "rank-R.log "
     "[0]"},
    {"tee", "N|R:N,..", TEE,
     "streams that go to rank-R.stdout.log and rank-R.stderr.log and to the terminal, also if --redirects names them; "
     "values as for --redirects [0]"},
    {"local-ranks-filter", "R,..", SHOWN, "ranks of this host, from 0, whose lines the terminal shows [all]"},
    {"run-id", "NAME", RUN_ID,
     "name of the job, the same on all hosts and different for each job [HOST:PORT of host 0]"},
    {"no-prefix", NULL, NO_PREFIX, "print the ranks' lines without [RANK] in front"},
    {"rdzv-endpoint", "HOST[:PORT]", ENDPOINT,
     "--master-addr and --master-port in one; PORT is 29400 if not given, as for torchrun"},
    {"rdzv-id", "NAME", RUN_ID, "the same as --run-id"},
    {"help", NULL, HELP, "this text"},
    {"nproc", "N|cpu|auto", NPROC, NULL},
    {"n", "N", TOTAL, NULL},
    {"H", "HOST:N,..", HOSTS, NULL},
    {"host", "HOST:N,..", HOSTS, NULL},
    {"on-host", NULL, ON_HOST, NULL}, /* these three by launch_on_hosts */
    {"first-rank", "N", FIRST_RANK, NULL},
    {"world-size", "N", WORLD_SIZE, NULL},
    {"r", "N", REDIRECTS, NULL},
    {"t", "N", TEE, NULL},
    {"rdzv-backend", "BACKEND", NO_EFFECT, NULL}, /* of torchrun */
    {"no-python", NULL, NO_EFFECT, NULL},
    {"monitor-interval", "SECONDS", NO_EFFECT, NULL},
    {"start-method", "METHOD", NO_EFFECT, NULL},
    {"rdzv-conf", "NAME=VALUE", NO_EFFECT, NULL},
    {"role", "NAME", NO_EFFECT, NULL},
    {"allow-run-as-root", NULL, NO_EFFECT, NULL}, /* of mpirun */
    {"oversubscribe", NULL, NO_EFFECT, NULL},
    {"tag-output", NULL, NO_EFFECT, NULL},
    {"bind-to", "WHAT", NO_EFFECT, NULL},
    {"map-by", "WHAT", NO_EFFECT, NULL},
    {"mca", "NAME VALUE", NO_EFFECT, NULL},
    {"x", "NAME", OF_ENVIRONMENT, NULL},
    {"ssh-port", "PORT", OF_SSH, NULL}, /* of horovodrun */
    {"p", "PORT", OF_SSH, NULL},
    {"ssh-identity-file", "FILE", OF_SSH, NULL},
    {"i", "FILE", OF_SSH, NULL},
};
enum { FLAGS = sizeof flags / sizeof flags[0], MOST_LOCAL_RANKS = 4096 };

/* A flag about ranks of this host. `value` NULL: not given, or as if not. */
typedef struct {
    const char *value;
    char where[32];
    int64_t last; /* the last rank that it names; -1: none */
} rank_flag;

/* The values given; -1 or NULL: not given. */
typedef struct {
    int64_t nproc, nnodes, least_nodes, node_rank, port, max_restarts, total, first_rank, world_size;
    const char *hosts, *hostfile;
    char hosts_where[32];
    const char *addr, *endpoint, *log_dir, *run_id;
    rank_flag redirected, teed, filter;
    uint8_t redirects[MOST_LOCAL_RANKS], tee[MOST_LOCAL_RANKS]; /* by rank of this host, if given */
    bool shown[MOST_LOCAL_RANKS];
    bool standalone, no_prefix, help, on_host;
    char host[RM_HOST_BYTES], job[RM_HOST_BYTES + 16];
} request;

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static remat_status read_nproc(const char *where, const char *value, int64_t *out) {
    bool gpu = !strcmp(value, "gpu");
    REQUIRE(!gpu, INVALID,
            "%s=gpu: remat launch does not count GPUs; give their number, or `cpu` for one rank per processor", where);
    if (strcmp(value, "cpu") && strcmp(value, "auto")) return rm_text_whole(where, value, 1, MOST_LOCAL_RANKS, out);
    *out = rm_processors_get()->usable;
    return REMAT_OK;
}

/* "4", or torchrun's "2:4": at least and at most. */
static remat_status read_nnodes(const char *where, const char *value, request *r) {
    const char *colon = strchr(value, ':');
    char least[24];
    if (!colon) {
        r->least_nodes = 0;
        return rm_text_whole(where, value, 1, RM_MOST_RANKS, &r->nnodes);
    }
    REQUIRE(colon > value && colon[1], INVALID, "%s=%.60s lacks a number: give MIN:MAX, such as 2:4", where, value);
    snprintf(least, sizeof least, "%.*s", (int)(colon - value), value);
    TRY(rm_text_whole(where, least, 1, RM_MOST_RANKS, &r->least_nodes));
    TRY(rm_text_whole(where, colon + 1, 1, RM_MOST_RANKS, &r->nnodes));
    REQUIRE(r->least_nodes <= r->nnodes, INVALID, "%s=%.60s: MIN is larger than MAX; give the smaller number first",
            where, value);
    return REMAT_OK;
}

/* The number at `at` in `value`, before the first of `ends` or the end of the text. */
static remat_status read_number(const char *where, const char *value, const char *at, const char *ends, int64_t most,
                                int64_t *out) {
    char number[24];
    snprintf(number, sizeof number, "%.*s", (int)strcspn(at, ends), at);
    if (rm_text_whole(where, number, 0, most, out))
        FAIL(INVALID, "%s=%.60s: '%s' is not a whole number from 0 to %lld", where, value, number, (long long)most);
    return REMAT_OK;
}

static const char *after_comma(const char *at) { return strchr(at, ',') ? strchr(at, ',') + 1 : NULL; }

static void begin_ranks(rank_flag *flag, const char *where, const char *value) {
    *flag = (rank_flag){.value = value, .last = -1};
    snprintf(flag->where, sizeof flag->where, "%s", where);
}

/* "0,2,5": ranks of this host. */
static remat_status read_filter(request *r, const char *where, const char *value) {
    int64_t rank;
    begin_ranks(&r->filter, where, value);
    memset(r->shown, 0, sizeof r->shown);
    for (const char *at = value; at; at = after_comma(at)) {
        TRY(read_number(where, value, at, ",", MOST_LOCAL_RANKS - 1, &rank));
        r->shown[rank] = true;
        if (rank > r->filter.last) r->filter.last = rank;
    }
    return REMAT_OK;
}

/* "3", or torchrun's "0:1,2:3" for ranks of this host; the others are 0. */
static remat_status read_streams(const char *where, const char *value, rank_flag *flag,
                                 uint8_t by_rank[MOST_LOCAL_RANKS]) {
    int64_t rank, streams, all = 0;
    begin_ranks(flag, where, value);
    if (!strchr(value, ':')) {
        TRY(rm_text_whole(where, value, 0, 3, &all));
        memset(by_rank, (int)all, MOST_LOCAL_RANKS);
        if (!all) flag->value = NULL;
        return REMAT_OK;
    }
    memset(by_rank, 0, MOST_LOCAL_RANKS);
    for (const char *at = value; at; at = after_comma(at)) {
        const char *colon = strchr(at, ':');
        REQUIRE(colon, INVALID, "%s=%.60s: use RANK:N,RANK:N,... with N from 0 to 3", where, value);
        TRY(read_number(where, value, at, ":", MOST_LOCAL_RANKS - 1, &rank));
        TRY(read_number(where, value, colon + 1, ",", 3, &streams));
        by_rank[rank] = (uint8_t)streams;
        all |= streams;
        if (rank > flag->last) flag->last = rank;
    }
    if (!all) flag->value = NULL;
    return REMAT_OK;
}

static remat_status take(request *r, meaning what, const char *where, const char *value) {
    REQUIRE(*value, INVALID, "%s is empty: give a value", where);
    switch (what) {
    case NPROC:
        return read_nproc(where, value, &r->nproc);
    case NNODES:
        return read_nnodes(where, value, r);
    case NODE_RANK:
        return rm_text_whole(where, value, 0, RM_MOST_RANKS - 1, &r->node_rank);
    case MASTER_PORT:
        return rm_text_whole(where, value, 0, 65535, &r->port);
    case MAX_RESTARTS:
        return rm_text_whole(where, value, 0, 1000000, &r->max_restarts);
    case MASTER_ADDR:
        r->addr = value;
        break;
    case ENDPOINT:
        r->endpoint = value;
        break;
    case LOG_DIR:
        r->log_dir = value;
        break;
    case REDIRECTS:
        return read_streams(where, value, &r->redirected, r->redirects);
    case TEE:
        return read_streams(where, value, &r->teed, r->tee);
    case SHOWN:
        return read_filter(r, where, value);
    case TOTAL:
        return rm_text_whole(where, value, 1, RM_MOST_RANKS, &r->total);
    case FIRST_RANK:
        return rm_text_whole(where, value, 0, RM_MOST_RANKS - 1, &r->first_rank);
    case WORLD_SIZE:
        return rm_text_whole(where, value, 1, RM_MOST_RANKS, &r->world_size);
    case HOSTS:
        r->hosts = value;
        snprintf(r->hosts_where, sizeof r->hosts_where, "%s", where);
        break;
    case HOSTFILE:
        r->hostfile = value;
        break;
    case ON_HOST:
        r->on_host = true;
        break;
    case RUN_ID:
        r->run_id = value;
        break;
    case STANDALONE:
        r->standalone = true;
        break;
    case NO_PREFIX:
        r->no_prefix = true;
        break;
    case HELP:
        r->help = true;
        break;
    case NO_EFFECT:
        FAIL(INVALID, "%s is another launcher's flag that has no effect in remat launch; remove it", where);
    case OF_SSH:
        FAIL(INVALID, "%s is not a flag: write the port, user and key of a host to ~/.ssh/config, which ssh reads",
             where);
    case OF_ENVIRONMENT:
        FAIL(INVALID,
             "%s is not a flag: REMAT_*, OMP_*, NCCL_*, GLOO_*, CUDA_*, TORCH* and PATH are passed on; for other "
             "variables "
             "put `env NAME=VALUE` in front of the command",
             where);
    }
    return REMAT_OK;
}

/* ---- The command line -------------------------------------------------------------------------------------------- */

/* Suggests our name for a flag of another launcher. */
static remat_status unknown(const char *given) {
    const char *name = given + strspn(given, "-");
    size_t length = strcspn(name, "=");
    const char *near = rm_other_name(name, length, true);
    int shown = (int)(name - given) + (int)(length < 60 ? length : 60);
    if (near) FAIL(INVALID, "%.*s is not a flag; did you mean --%s?", shown, given, near);
    FAIL(INVALID, "%.*s is not a flag; --help lists them", shown, given);
}

/* Parses the flag at argv[*i] and skips its value if that is the next argument. Like torchrun, accepts underscores for dashes. Names of
 * one or two letters may have one dash. */
static remat_status parse_flag(request *r, int argc, char **argv, int *i) {
    const size_t dashes = argv[*i][1] == '-' ? 2 : 1;
    const char *given = argv[*i] + dashes, *equals = strchr(given, '=');
    size_t length = equals ? (size_t)(equals - given) : strlen(given);
    char where[32];
    for (int f = 0; f < FLAGS; f++) {
        bool is_short = strlen(flags[f].name) <= 2;
        if ((dashes == 1 && !is_short) || !rm_same_name(flags[f].name, given, length)) continue;
        const char *value = equals ? equals + 1 : NULL;
        snprintf(where, sizeof where, "%s%s", is_short ? "-" : "--", flags[f].name);
        if (!flags[f].value) {
            REQUIRE(!value, INVALID, "%s=%.60s: is a switch; remove the value", where, value);
            return take(r, flags[f].meaning, where, "yes");
        }
        if (!value && *i + 1 < argc && strncmp(argv[*i + 1], "--", 2)) value = argv[++*i];
        REQUIRE(value, INVALID, "%s needs a value: %s=%s", where, where, flags[f].value);
        return take(r, flags[f].meaning, where, value);
    }
    return unknown(argv[*i]);
}

/* Parses the flags up to the command, which starts at argv[*command]. */
static remat_status parse(request *r, int argc, char **argv, int *command) {
    int i = 0;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--")) {
            i++;
            break;
        }
        if (!strcmp(argv[i], "-h")) {
            r->help = true;
            continue;
        }
        TRY(parse_flag(r, argc, argv, &i));
    }
    *command = i;
    return REMAT_OK;
}

static remat_status parse_environment(request *r) {
    for (int f = 0; f < FLAGS; f++) {
        char name[32] = "PET_";
        size_t at = 4;
        for (const char *c = flags[f].name; *c; c++)
            name[at++] = *c == '-' ? '_' : (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
        name[at] = 0;
        const char *value = getenv(name);
        if (!flags[f].help || !value || !*value) continue;
        if (flags[f].value || !strcmp(value, "1")) TRY(take(r, flags[f].meaning, name, value));
    }
    return REMAT_OK;
}

/* ---- What follows from it ------------------------------------------------------------------------------------------ */

/* "HOST:PORT", "[v6 address]:PORT" or HOST; torchrun's port for an endpoint without one is 29400. */
static remat_status split_endpoint(request *r) {
    const char *given = r->endpoint, *colon = strrchr(given, ':');
    bool bracketed = given[0] == '[' && strchr(given, ']');
    if (bracketed && colon && colon < strchr(given, ']')) colon = NULL;
    size_t length = colon ? (size_t)(colon - given) : strlen(given);
    if (bracketed) given++, length -= 2;
    REQUIRE(length > 0 && length < sizeof r->host, INVALID, "--rdzv-endpoint=%.60s: use HOST:PORT", r->endpoint);
    memcpy(r->host, given, length);
    r->host[length] = 0;
    r->addr = r->host;
    r->port = 29400;
    return colon ? rm_text_whole("the port of --rdzv-endpoint", colon + 1, 0, 65535, &r->port) : REMAT_OK;
}

/* IPv6 addresses may have brackets, as in URLs. */
static void drop_brackets(request *r) {
    size_t length = r->addr ? strlen(r->addr) : 0;
    if (length < 4 || length >= sizeof r->host || r->addr[0] != '[' || r->addr[length - 1] != ']') return;
    snprintf(r->host, sizeof r->host, "%.*s", (int)length - 2, r->addr + 1);
    r->addr = r->host;
}

/* In an srun step with one task per host, which is how launchers are usually started, Slurm knows the host's number. */
static remat_status find_node_rank(request *r) {
    const char *node = getenv("SLURM_NODEID"), *nodes = getenv("SLURM_STEP_NUM_NODES");
    if (r->node_rank >= 0) return REMAT_OK;
    r->node_rank = 0;
    if (r->nnodes == 1) return REMAT_OK;
    REQUIRE(node && nodes && atoll(nodes) == r->nnodes, INVALID,
            "the number of this host among %lld is missing: give --node-rank=R, from 0 on the host of --master-addr to "
            "%lld",
            (long long)r->nnodes, (long long)r->nnodes - 1);
    return rm_text_whole("SLURM_NODEID", node, 0, r->nnodes - 1, &r->node_rank);
}

/* `ranks`: of the host that has most. */
static remat_status check_output(const request *r, int64_t ranks) {
    const rank_flag *all[] = {&r->redirected, &r->teed, &r->filter};
    REQUIRE(r->log_dir || !(r->redirected.value || r->teed.value), INVALID,
            "--redirects and --tee write files, and there is no directory for them: give --log-dir=DIR");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        REQUIRE(!all[i]->value || all[i]->last < ranks, INVALID,
                "%s=%.60s: there is no rank %lld; the host has %lld rank%s, numbered from 0", all[i]->where,
                all[i]->value, (long long)all[i]->last, (long long)ranks, ranks == 1 ? "" : "s");
    return REMAT_OK;
}

static remat_status complete(request *r) {
    if (r->nproc < 0) r->nproc = 1;
    if (!r->on_host) TRY(check_output(r, r->nproc));
    if (r->nnodes < 0) r->nnodes = 1;
    if (r->endpoint) {
        REQUIRE(!r->addr && r->port < 0, INVALID,
                "--rdzv-endpoint cannot be combined with --master-addr and --master-port: give one or the other");
        TRY(split_endpoint(r));
    }
    drop_brackets(r);
    REQUIRE(!r->standalone || r->port <= 0, INVALID, "--standalone chooses a port itself; remove it to use port %lld",
            (long long)r->port);
    REQUIRE(r->port != 0 || r->nnodes == 1, INVALID,
            "%lld hosts need the same port, which cannot be 0: give --master-port=PORT on all of them",
            (long long)r->nnodes);
    if (r->nnodes == 1 && r->port <= 0) r->standalone = true;
    REQUIRE(!r->standalone || r->nnodes == 1, INVALID,
            "--standalone is for one host, but --nnodes gives %lld: remove one", (long long)r->nnodes);
    if (r->port < 0) r->port = 29500;
    TRY(find_node_rank(r));
    if (r->nnodes > 1 && !r->run_id && r->addr) {
        snprintf(r->job, sizeof r->job, "%s:%lld", r->addr, (long long)r->port);
        r->run_id = r->job;
    }
    return REMAT_OK;
}

/* `remat` means this program if PATH has no other. */
static remat_status check_command(char **command) {
    static char self[RM_PATH_BYTES];
    const char *name = command[0];
    size_t length = strlen(name);
    REQUIRE(length < 3 || strcmp(name + length - 3, ".py") || !access(name, X_OK), INVALID,
            "'%.200s' is not a program that can be started: put python in front", name);
    REQUIRE(strcmp(name, "train") || rm_path_has_program(name), INVALID,
            "'train' is not a program: put remat in front");
    if (!strcmp(name, "remat") && !rm_path_has_program(name) && rm_path_of_program(self, sizeof self))
        command[0] = self;
    return REMAT_OK;
}

/* ---- Several hosts, by ssh --------------------------------------------------------------------------------------- */

enum { HOST_WORDS = 7, HOST_FLAGS = 9 };

/* The command of one host's launcher. */
typedef struct {
    char word[HOST_WORDS][RM_HOST_BYTES + 24];
    char *argv[]; /* the user's command at its end */
} host_command;

static void add_flag(char **argv, int *n, const char *flag, const char *value) {
    if (!value) return;
    argv[(*n)++] = (char *)flag;
    if (*value) argv[(*n)++] = (char *)value;
}

/* `meeting`: the address of the first host. */
static host_command *command_of(const request *r, const rm_slots_list *list, int32_t host, const char *meeting,
                                char *program, char **command) {
    const rm_slots *h = &list->host[host];
    int words = 0, n = 0, w = 0;
    while (command[words]) words++;
    host_command *c = rm_calloc(1, sizeof *c + (size_t)(words + HOST_WORDS + HOST_FLAGS + 5) * sizeof *c->argv);
    if (!c) return NULL;
    const size_t bytes = sizeof c->word[0];
    snprintf(c->word[w++], bytes, "--nnodes=%d", list->n);
    snprintf(c->word[w++], bytes, "--node-rank=%d", host);
    snprintf(c->word[w++], bytes, "--nproc-per-node=%lld", (long long)h->ranks);
    snprintf(c->word[w++], bytes, "--first-rank=%lld", (long long)h->first);
    snprintf(c->word[w++], bytes, "--world-size=%lld", (long long)list->ranks);
    if (list->n > 1) {
        snprintf(c->word[w++], bytes, "--master-addr=%s", meeting);
        snprintf(c->word[w++], bytes, "--master-port=%lld", (long long)(r->port > 0 ? r->port : 29500));
    }
    c->argv[n++] = program;
    c->argv[n++] = "launch";
    c->argv[n++] = "--on-host";
    for (int i = 0; i < w; i++) c->argv[n++] = c->word[i];
    add_flag(c->argv, &n, "--log-dir", r->log_dir);
    add_flag(c->argv, &n, "--redirects", r->redirected.value);
    add_flag(c->argv, &n, "--tee", r->teed.value);
    add_flag(c->argv, &n, "--local-ranks-filter", r->filter.value);
    add_flag(c->argv, &n, "--no-prefix", r->no_prefix ? "" : NULL);
    c->argv[n++] = "--";
    memcpy(c->argv + n, command, (size_t)words * sizeof *command);
    return c;
}

/* The first host as the others reach it. */
static void find_meeting(const request *r, const char *first, char meeting[RM_HOST_BYTES]) {
    const char *at = strrchr(first, '@');
    snprintf(meeting, RM_HOST_BYTES, "%s", r->addr ? r->addr : at ? at + 1 : first);
    if (!r->addr && rm_slots_is_here(first) && gethostname(meeting, RM_HOST_BYTES - 1)) strcpy(meeting, "localhost");
}

static remat_status start_hosts(const request *r, const rm_slots_list *list, char **command, int *exit_status) {
    char program[RM_PATH_BYTES], meeting[RM_HOST_BYTES];
    REQUIRE(rm_path_of_program(program, sizeof program), IO, "cannot find the file of this program");
    find_meeting(r, list->host[0].name, meeting);
    host_command **all = rm_calloc((size_t)list->n, sizeof *all);
    rm_launch_host *hosts = rm_calloc((size_t)list->n, sizeof *hosts);
    bool room = all && hosts;
    for (int32_t i = 0; room && i < list->n; i++) {
        const char *name = list->host[i].name;
        all[i] = command_of(r, list, i, meeting, program, command);
        room = all[i] != NULL;
        if (room) hosts[i] = (rm_launch_host){.name = rm_slots_is_here(name) ? NULL : name, .argv = all[i]->argv};
    }
    remat_status status = room ? REMAT_OK : rm_fail(REMAT_MEMORY, "no memory for %d hosts", list->n);
    if (!status)
        status = rm_launch(&(rm_launch_config){.nproc = list->n,
                                               .nnodes = 1,
                                               .standalone = true,
                                               .max_restarts = (int32_t)(r->max_restarts > 0 ? r->max_restarts : 0),
                                               .run_id = r->run_id,
                                               .hosts = hosts,
                                               .argv = hosts[0].argv},
                           exit_status);
    for (int32_t i = 0; all && i < list->n; i++) rm_free(all[i]);
    rm_free(all);
    rm_free(hosts);
    return status;
}

/* *here: all ranks are on this host, which needs no ssh. */
static remat_status launch_on_hosts(request *r, char **command, bool *here, int *exit_status) {
    rm_slots_list list = {0};
    int64_t most = 0;
    REQUIRE(!(r->hosts && r->hostfile), INVALID, "--hosts and --hostfile both name the hosts: give one of them");
    REQUIRE(r->nproc < 0 && r->nnodes < 0 && r->node_rank < 0 && !r->endpoint && !r->standalone, INVALID,
            "--hosts and --hostfile say how many hosts and ranks there are: remove --nproc-per-node, --nnodes, "
            "--node-rank, --rdzv-endpoint and --standalone");
    remat_status status =
        r->hosts ? rm_slots_parse(r->hosts_where, r->hosts, &list) : rm_slots_read(r->hostfile, &list);
    if (!status) status = rm_slots_divide(&list, r->total);
    for (int32_t i = 0; !status && i < list.n; i++)
        if (list.host[i].ranks > most) most = list.host[i].ranks;
    if (!status) status = check_output(r, most);
    *here = !status && list.n == 1 && rm_slots_is_here(list.host[0].name);
    if (*here) r->nproc = list.ranks;
    if (!status && !*here) status = start_hosts(r, &list, command, exit_status);
    rm_slots_free(&list);
    return status;
}

/* ---- Main -------------------------------------------------------------------------------------------------------- */

bool rm_command_launch_flag(int i, const char **name, const char **value, const char **help) {
    if (i >= FLAGS) return false;
    *name = flags[i].name, *value = flags[i].value, *help = flags[i].help;
    return true;
}

static void print_help(FILE *out) {
    fputs("remat launch [--flag=value ...] [--] COMMAND [argument ...]\n\n"
          "Starts COMMAND as the ranks of one job on this host, or on the hosts of -H. Exits with the code of the\n"
          "first rank that fails (128 + n for signal n). Flags, and the variables that ranks get, are torchrun's. The\n"
          "first INT, TERM, HUP or QUIT is passed on to all ranks; a second one ends them at once. USR1 is always\n"
          "passed on.\n\n",
          out);
    for (int f = 0; f < FLAGS; f++) {
        char flag[64];
        if (!flags[f].help) continue;
        snprintf(flag, sizeof flag, "--%s%s%s", flags[f].name, flags[f].value ? "=" : "",
                 flags[f].value ? flags[f].value : "");
        rm_terminal_flag(out, flag, flags[f].help);
    }
    fputs("\n  remat launch --nproc-per-node=2 -- remat train --data=FILE\n"
          "  remat launch --nproc-per-node=2 --nnodes=2 --node-rank=0 --master-addr=hostA -- remat train --data=FILE\n"
          "  remat launch -np 4 -H hostA:2,hostB:2 -- remat train --data=FILE\n",
          out);
}

remat_status rm_command_launch(int argc, char **argv, int *exit_status) {
    request r = {.nproc = -1, .nnodes = -1, .node_rank = -1, .port = -1, .total = -1};
    int command = 0;
    bool here = true;
    TRY(parse_environment(&r));
    TRY(parse(&r, argc, argv, &command));
    if (r.help) {
        print_help(stdout);
        return rm_file_flush_output();
    }
    REQUIRE(command < argc, INVALID,
            "there is no command to start: remat launch --nproc-per-node=2 -- remat train --data=FILE");
    if (r.hosts || r.hostfile) TRY(launch_on_hosts(&r, argv + command, &here, exit_status));
    if (!here) return REMAT_OK;
    if (r.on_host) {
        TRY(rm_remote_enter());
        r.run_id = getenv("TORCHELASTIC_RUN_ID");
    } else if (r.total > 0 && r.nproc < 0) {
        REQUIRE(r.nnodes <= 1, INVALID, "-np counts the ranks of all hosts: give --nproc-per-node=N with --nnodes");
        r.nproc = r.total;
    }
    TRY(complete(&r));
    TRY(check_command(argv + command));
    return rm_launch(&(rm_launch_config){.nproc = (int32_t)r.nproc,
                                         .nnodes = (int32_t)r.nnodes,
                                         .least_nodes = (int32_t)r.least_nodes,
                                         .node_rank = (int32_t)r.node_rank,
                                         .first_rank = (int32_t)r.first_rank,
                                         .world_size = (int32_t)r.world_size,
                                         .on_host = r.on_host,
                                         .master_addr = r.addr,
                                         .master_port = (int32_t)r.port,
                                         .standalone = r.standalone,
                                         .max_restarts = (int32_t)(r.max_restarts > 0 ? r.max_restarts : 0),
                                         .log_dir = r.log_dir,
                                         .redirects = r.redirected.value ? r.redirects : NULL,
                                         .tee = r.teed.value ? r.tee : NULL,
                                         .shown = r.filter.value ? r.shown : NULL,
                                         .prefix = !r.no_prefix,
                                         .run_id = r.run_id,
                                         .argv = argv + command},
                     exit_status);
}
