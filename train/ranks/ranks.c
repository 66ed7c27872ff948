/* ranks.c: see ranks.h. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "train/ranks/ranks.h"

#include "dist/launch/launch.h"
#include "dist/launch/world.h"
#include "engine/device/device.h"
#include "engine/hash.h"
#include "memory/host.h"
#include "memory/processors.h"
#include "train/file.h"
#include "train/ranks/ranks_debug.h"
#include "train/ranks/ranks_wait.h"
#include "train/ranks/ranks_watch.h"
#include "train/flags/lr_schedule.h"
#include "train/run/setup.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Names of this file's collectives, for messages of the group. None of them is a bucket. */
enum { TAG_HOSTS = 0xFF00, TAG_READY, TAG_STOP, TAG_TELL, TAG_STRAGGLER, TAG_KEEP, TAGS_END };

#define STOPPED_MS                                                                                                     \
    200 /* in an elastic job, whose other ranks go on without a stopped one, and take it in when it wakes */

/* Of rm_ranks_heed: signals that stop, and the request to save. */
enum { SIGNALS = 3, SAVE = SIGNALS, AGAIN, HEEDED };

/* `context` is the rm_ranks, whose ddp comes later. */
static const char *tag_name(void *context, uint32_t tag) {
    static const char *const names[] = {"telling each other where they run",
                                        "agreeing that all are ready",
                                        "agreeing whether to stop",
                                        "hearing from rank 0 where to go on",
                                        "naming the rank that the others waited for",
                                        "copying states that ranks carry to the next batch"};
    rm_ranks *ranks = context;
    return tag >= TAG_HOSTS && tag < TAGS_END ? names[tag - TAG_HOSTS] : rm_ddp_tag_name(&ranks->ddp, tag);
}

/* ---- Meeting ---------------------------------------------------------------------------------------------------- */

static remat_status gather_into(rm_ranks *ranks, uint32_t tag, const void *mine, int64_t bytes, void *all) {
    rm_collective what = {.kind = RM_ALL_GATHER, .wire = RM_WIRE_U8, .tag = tag, .count = bytes};
    what.in = mine;
    what.out = all;
    return rm_group_run(ranks->group, &what);
}

/* Gathers `bytes` bytes from every rank, in the order of ranks; free *all with rm_free. */
static remat_status gather(rm_ranks *ranks, uint32_t tag, const void *mine, size_t bytes, void **all) {
    *all = rm_malloc((size_t)ranks->size * bytes);
    REQUIRE(*all, MEMORY, "no memory to hear %d ranks", ranks->size);
    return gather_into(ranks, tag, mine, (int64_t)bytes, *all);
}

typedef struct {
    uint64_t host, processors; /* hashes of the host's name and of the set of processors that this process may use */
    uint64_t quota;            /* and of the file that limits its share of their time */
    uint64_t pipeline;         /* and of --pipeline */
} place;

static remat_status check_pipelines(rm_ranks *ranks, const place *all) {
    int32_t other = 1;
    while (other < ranks->size && all[other].pipeline == all[0].pipeline) other++;
    if (other == ranks->size) return REMAT_OK;
    remat_status status =
        rm_fail(REMAT_INVALID, "ranks 0 and %d disagree about --pipeline: give all ranks the same", other);
    return rm_ranks_fail_alike(ranks, status);
}

/* Counts the ranks that share this one's processors: ranks of the same host that may use the same processors, or
 * whose quota is in the same file. It is one if the launcher binds each rank to its own processors. Also compares
 * --pipeline, on which the groups that are opened next depend. */
static remat_status count_sharing(rm_ranks *ranks, const char *pipeline) {
    cpu_set_t set;
    void *all;
    CPU_ZERO(&set);
    (void)sched_getaffinity(0, sizeof set, &set);
    const char *limit = rm_processors_get()->limit;
    place mine = {rm_hash(ranks->host, strlen(ranks->host), 0), rm_hash(&set, sizeof set, 0),
                  rm_hash(limit, strlen(limit), 0), rm_hash(pipeline, strlen(pipeline), 0)};
    remat_status status = gather(ranks, TAG_HOSTS, &mine, sizeof mine, &all);
    for (int32_t r = 0; !status && r < ranks->size; r++) {
        const place *other = (place *)all + r;
        ranks->sharing += other->host == mine.host && other->processors == mine.processors;
        ranks->sharing_quota += other->host == mine.host && other->quota == mine.quota;
    }
    if (!status) status = check_pipelines(ranks, all);
    rm_free(all);
    return status;
}

/* Whether the user has set the number of threads. A launcher only knows the ranks that it starts itself. */
static bool threads_are_said(void) {
    const char *said = getenv("OMP_NUM_THREADS"), *launcher = getenv(RM_LAUNCH_THREADS);
    return said && *said && (!launcher || strcmp(said, launcher));
}

static void share_processors(const rm_ranks *ranks, rm_options *o) {
    const rm_processors *p = rm_processors_get();
    if (o->session.threads || threads_are_said() || ranks->size < 2) return;
    int each = p->allowed / ranks->sharing;
    if (p->quota > 0 && p->quota / ranks->sharing_quota < each) each = (int)(p->quota / ranks->sharing_quota);
    o->session.threads = each > 1 ? each : 1;
}

/* Removes the message, because another rank prints it. */
static remat_status silently(remat_status status) { return rm_fail(status, "%s", ""); }

remat_status rm_ranks_fail_alike(rm_ranks *ranks, remat_status status) {
    ranks->over = ranks->alike = true;
    return ranks->rank ? silently(status) : status;
}

static remat_status check_engine(rm_ranks *ranks, const rm_options *o) {
    if (strcmp(o->dist_backend, "nccl") || !strcmp(o->session.device, "cuda")) return REMAT_OK;
    bool repeats = rm_rendezvous_repeats(rm_environment_of_process, NULL, false);
    if (repeats) rm_ranks_let_others_go_first();
    remat_status status = rm_fail(
        REMAT_INVALID,
        "--dist-backend=nccl is for GPUs, and --device=%s computes on the CPU: --dist-backend=auto chooses among "
        "local, mpi and gloo",
        o->session.device);
    return repeats ? rm_ranks_fail_alike(ranks, status) : status;
}

/* There is no group yet to compare failures. But an engine usually refuses all ranks for the same reason: if rank 0
 * has failed, too, it reports the reason. The others end after it, because some launchers end all ranks when the
 * first ends. */
static remat_status say_once(rm_ranks *ranks, remat_status status) {
    rm_reason why = rm_reason_kept();
    if (!ranks->meeting || (status != REMAT_INVALID && status != REMAT_MISSING)) return status;
    if (ranks->rank == 0 && !rm_kv_set(ranks->meeting, "train/no group", "", 0)) rm_ranks_let_others_go_first();
    bool said = ranks->rank && !rm_kv_wait(ranks->meeting, "train/no group", 1000);
    if (said) nanosleep(&(struct timespec){.tv_nsec = 600000000}, NULL);
    (void)rm_reason_again(status, &why);
    return said ? rm_ranks_fail_alike(ranks, status) : status;
}

static void say(void *context, const char *sentence) {
    const rm_ranks *ranks = context;
    if (!ranks->quiet) rm_ranks_wait_say(ranks->rank, ranks->size, sentence);
}

/* MPI, for example, waits for a missing rank and cannot be interrupted. */
static void stuck(void *context, const char *sentence) {
    const rm_ranks *ranks = context;
    rm_ranks_wait_say(ranks->rank, ranks->size, sentence);
    fflush(NULL);
    _exit(RM_PEER_STATUS);
}

static remat_status reach(const rm_rendezvous *where, const rm_options *o, rm_ranks *ranks) {
    rm_ranks_wait *wait;
    ranks->quiet = where->local_rank > 0 && where->rank != 1;
    TRY(rm_ranks_wait_begin(where, o->join_timeout, &wait));
    remat_status status = rm_rendezvous_store(where, (int64_t)(1000 * o->join_timeout), say, ranks, &ranks->meeting);
    rm_ranks_wait_end(wait);
    return status;
}

static void set_time_outs(rm_ranks *ranks, const rm_options *o, rm_group_config *config) {
    snprintf(ranks->join_name, sizeof ranks->join_name, "--join-timeout=%.6g", o->join_timeout);
    snprintf(ranks->silence_name, sizeof ranks->silence_name, "--hang-timeout=%.6g", o->hang_timeout);
    config->join_ms = (int64_t)(1000 * o->join_timeout);
    config->silence_ms = (int64_t)(1000 * o->hang_timeout);
    config->stopped_ms = rm_world_exists() ? STOPPED_MS : 0;
    config->join_name = ranks->join_name;
    config->silence_name = ranks->silence_name;
    config->say = say;
    config->stuck = stuck;
    config->tag_name = tag_name;
    config->context = ranks;
}

/* Into pipelines, and into those that hold the same layers. */
static remat_status part(rm_ranks *ranks, const rm_options *o, const rm_group_config *config) {
    remat_pipeline asked;
    remat_status status = rm_setup_pipeline(o, &asked);
    if (!status && ranks->size % asked.size)
        status = rm_fail(REMAT_INVALID, "--pipeline=%s cannot divide %d ranks: start a multiple of %d", o->pipeline,
                         ranks->size, asked.size);
    if (status) return rm_ranks_fail_alike(ranks, status);
    TRY(rm_pipe_open(ranks->group, asked.size, config, &ranks->pipe, &ranks->same));
    ranks->parts = asked.size;
    ranks->part = ranks->rank % asked.size;
    ranks->replica = ranks->rank / asked.size;
    ranks->replicas = ranks->size / asked.size;
    if (!ranks->pipe) return REMAT_OK;
    ranks->pipeline = *rm_pipe_table(ranks->pipe);
    ranks->pipeline.cut = asked.cut;
    return REMAT_OK;
}

static remat_status meet(const rm_rendezvous *where, const rm_options *o, const remat_observer *observer,
                         rm_ranks *ranks) {
    const bool nccl = !strcmp(o->dist_backend, "nccl");
    TRY(check_engine(ranks, o));
    TRY(reach(where, o, ranks));
    rm_group_config config = {.engine = nccl ? "auto" : o->dist_backend, /* in addition to NCCL, which only works on
                                                                            GPUs */
                              .rank = where->rank,
                              .size = where->size,
                              .store = ranks->meeting,
                              .observer = observer};
    set_time_outs(ranks, o, &config);
    remat_status status = rm_group_open(&config, &ranks->group);
    if (status) return say_once(ranks, status);
    ranks->store = rm_group_store(ranks->group);
    TRY(count_sharing(ranks, o->pipeline ? o->pipeline : ""));
    remat_status parted = part(ranks, o, &config);
    if (parted) return ranks->over ? parted : say_once(ranks, parted);
    rm_ranks_debug_meeting(ranks, where, config.engine);
    return rm_ranks_watch_start(ranks, o->hang_timeout, &ranks->watch);
}

/* A rank chooses its GPU by its number on this host (engine/cuda/device.c). Launchers use different variables for it.
 */
static void tell_local_rank(const rm_rendezvous *where) {
    char number[16];
    snprintf(number, sizeof number, "%d", where->local_rank);
    if (where->local_rank >= 0) setenv("LOCAL_RANK", number, 1);
}

remat_status rm_ranks_open(rm_options *o, const remat_observer *observer, rm_ranks *out) {
    rm_rendezvous where;
    rm_rendezvous_flags flags = {
        .init_method = o->init_method, .world_size = o->world_size, .rank = o->rank, .local_rank = o->local_rank};
    remat_pipeline asked;
    *out = (rm_ranks){.size = 1, .replicas = 1, .parts = 1};
    TRY(rm_rendezvous_resolve(&flags, rm_environment_of_process, NULL, &where));
    TRY(rm_setup_pipeline(o, &asked));
    const bool gpus = !strcmp(o->session.device, "cuda");
    REQUIRE(where.size > 1 || asked.size == 1, INVALID,
            "--pipeline=%s needs %d ranks, and this process is the only one: add --devices=%s%d%s, or start it with "
            "`remat launch --nproc-per-node=%d`",
            o->pipeline, asked.size, gpus ? "" : "cpu:", gpus ? 0 : asked.size, gpus ? ",1 (a GPU for each rank)" : "",
            asked.size);
    o->world_size = where.size;
    o->rank = where.rank;
    /* The engine that "auto" selects is not known before ranks have met. */
    if (where.size == 1) return strcmp(o->session.device, "auto") ? check_engine(out, o) : REMAT_OK;
    if (gethostname(out->host, sizeof out->host - 1)) strcpy(out->host, "?");
    out->rank = where.rank;
    out->size = where.size;
    tell_local_rank(&where);
    TRY(rm_lateness_open(out->size, &out->lateness));
    out->heed = rm_calloc((size_t)(HEEDED + out->size), sizeof *out->heed);
    REQUIRE(out->heed, MEMORY, "no memory for the signals of %d ranks", out->size);
    TRY(meet(&where, o, observer, out));
    if (out->pipe) o->session.pipeline = &out->pipeline;
    share_processors(out, o);
    return REMAT_OK;
}

void rm_ranks_close(rm_ranks *ranks) {
    rm_ranks_watch_stop(ranks->watch);
    if (ranks->ddp != ranks->all) rm_ddp_close(ranks->ddp);
    rm_ddp_close(ranks->all);
    rm_group_close(ranks->gpus);
    if (ranks->same != ranks->group) rm_group_close(ranks->same);
    rm_pipe_close(ranks->pipe);
    rm_free(ranks->cut);
    rm_group_close(ranks->group);
    rm_kv_close(ranks->meeting);
    rm_lateness_close(&ranks->lateness);
    rm_free(ranks->heed);
    *ranks = (rm_ranks){.size = 1, .replicas = 1, .parts = 1};
}

void rm_ranks_hurry(rm_ranks *ranks) {
    if (ranks->group && !strcmp(rm_group_engine(ranks->group), "local"))
        ranks->meeting = NULL; /* ends with the program */
}

/* ---- Ready? ----------------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t status;
    char sentence[1020];
} verdict;

/* For a rank that can take part: the first of them says which rank cannot. */
static remat_status go_on_without(rm_ranks *ranks, const verdict *all, int32_t other) {
    int32_t first = 0;
    while (all[first].status) first++;
    if (ranks->rank != first) return silently(REMAT_PEER);
    return rm_fail(REMAT_PEER, "rank %d cannot take part, and the others go on without it%s%.900s", other,
                   *all[other].sentence ? ": " : "", all[other].sentence);
}

static remat_status judge(rm_ranks *ranks, const verdict *all) {
    const verdict *mine = &all[ranks->rank];
    int32_t first = 0;
    while (first < ranks->size && !all[first].status) first++;
    if (first == ranks->size) return REMAT_OK;
    ranks->over = true;
    if (ranks->selective && !mine->status) return go_on_without(ranks, all, first);
    bool said = !mine->status;
    for (int32_t r = 0; r < ranks->rank; r++) {
        bool printed = !*all[r].sentence && all[r].status == mine->status; /* such as a budget, with advice */
        said |= all[r].status && (printed || !strcmp(all[r].sentence, mine->sentence));
    }
    remat_status status = (remat_status)(ranks->selective ? mine->status : all[first].status);
    return said ? silently(status) : rm_fail(status, "%s", mine->sentence);
}

remat_status rm_ranks_agree(rm_ranks *ranks, remat_status status) {
    void *all;
    verdict mine = {.status = (int32_t)status};
    if (!ranks->group) return status;
    if (status) snprintf(mine.sentence, sizeof mine.sentence, "%s", remat_last_error());
    remat_status heard = gather(ranks, TAG_READY, &mine, sizeof mine, &all);
    if (!heard)
        status = judge(ranks, all);
    else
        status = status ? rm_fail(status, "%s", mine.sentence) : heard;
    rm_free(all);
    return status;
}

/* ---- The same? -------------------------------------------------------------------------------------------------- */

/* Flags that may differ between ranks: places of files, and settings that each rank may choose. */
static bool may_differ(const char *name) {
    static const char *const names[] = {"data",         "labels", "lengths", "eval-data", "eval-labels",
                                        "eval-lengths", "spill",  "threads", "keep"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* Flags that training states do not keep, but whose presence decides which collectives ranks call. */
static const char *const by_presence[] = {"save", "eval-data", "dump-grads"};

/* Writes "--lr=0.1". A flag without a default that was not given is written as "no --epochs"; the learning rate then is
 * the optimizer's default. */
static void write_flag(FILE *out, const rm_options *o, int flag) {
    char text[RM_PATH_BYTES];
    const char *name = rm_options_name(flag);
    rm_options_text(o, flag, text, sizeof text);
    bool lr = !strcmp(name, "lr"), absent = !rm_options_has_default(flag) && (!*text || !strcmp(text, "0"));
    if (lr && o->rate.lr < 0)
        fprintf(out, "--lr=%g\n", rm_lr_given(o));
    else if (absent && !lr)
        fprintf(out, "no --%s\n", name);
    else
        fprintf(out, "--%s=%s\n", name, text);
}

static void write_flags(FILE *out, const rm_options *o) {
    for (int i = 0; i < rm_options_count(); i++) {
        char text[RM_PATH_BYTES];
        const char *name = rm_options_name(i);
        bool compared = rm_options_memory(i) != RM_FORGOTTEN && !may_differ(name);
        if (compared || !strcmp(name, "device")) write_flag(out, o, i);
        for (size_t k = 0; k < sizeof by_presence / sizeof *by_presence; k++)
            if (!strcmp(name, by_presence[k]))
                fprintf(out, "%s--%s\n", *rm_options_text(o, i, text, sizeof text) ? "" : "no ", name);
    }
}

/* The flags and the facts as one text; free it with free. */
static remat_status write_same(const rm_options *o, const char *facts, char **text) {
    size_t bytes;
    FILE *out = open_memstream(text, &bytes);
    REQUIRE(out, MEMORY, "no memory to compare flags");
    write_flags(out, o);
    fputs(facts, out);
    bool bad = ferror(out);
    if (fclose(out) || bad) FAIL(MEMORY, "no memory to compare flags");
    return REMAT_OK;
}

/* Ranks whose text is not rank 0's leave with the message. */
static remat_status part_with_others(rm_ranks *ranks, const char *text) {
    const uint64_t mine = rm_hash(text, strlen(text), 0);
    uint64_t first = mine;
    rm_reason why = rm_reason_kept();
    TRY(rm_ranks_tell(ranks, &first, sizeof first));
    ranks->over = true;
    if (mine == first && ranks->rank) return silently(REMAT_PEER);
    return rm_fail(mine == first ? REMAT_PEER : REMAT_INVALID,
                   "%.900s; the job goes on without the ranks that differ from rank 0", why.text);
}

/* After a comparison of `text`. The group stays usable: a difference is a mistake of the user, not a failure of a rank. */
static remat_status compared(rm_ranks *ranks, remat_status status, const char *text) {
    rm_reason why = rm_reason_kept();
    bool differ = status == REMAT_PEER && !rm_group_poll(ranks->group);
    (void)rm_reason_again(status, &why);
    if (!differ) return status;
    return ranks->selective ? part_with_others(ranks, text) : rm_ranks_fail_alike(ranks, REMAT_INVALID);
}

remat_status rm_ranks_compare(rm_ranks *ranks, const char *what, const char *text) {
    return ranks->all ? compared(ranks, rm_ddp_compare(ranks->all, what, text), text) : REMAT_OK;
}

/* Compares flags first, because later checks would report the same difference without naming the flags. */
static remat_status compare_first(rm_ranks *ranks, const char *text) {
    TRY(compared(ranks, rm_ddp_open(&(rm_ddp_config){.group = ranks->group, .rows = 1}, &ranks->all), rm_ddp_version));
    return rm_ranks_compare(ranks, "the run", text);
}

/* Without a pipeline, one table serves for gradients and for all else. */
static remat_status connect(rm_ranks *ranks, const rm_ddp_config *config) {
    if (!ranks->pipe) {
        rm_ddp_close(ranks->all);
        ranks->all = NULL;
    }
    if (config->group) TRY(rm_ddp_open(config, &ranks->ddp));
    if (!ranks->pipe) ranks->all = ranks->ddp;
    ranks->replicas_table = *rm_ddp_ranks(ranks->all);
    ranks->replicas_table.rank = ranks->replica;
    ranks->replicas_table.size = ranks->replicas;
    return REMAT_OK;
}

static void describe_buckets(const rm_options *o, uint64_t *first, uint64_t *others) {
    *others = (uint64_t)(o->bucket_cap_mb * 1048576);
    *first = *others < 1048576 ? *others : 1048576;
}

/* A pipeline's messages. The cut stays. */
static remat_status open_gpus_of_pipe(rm_ranks *ranks, const rm_group_config *config) {
    if (!ranks->pipe) return REMAT_OK;
    const char *cut = ranks->pipeline.cut;
    TRY(rm_pipe_open_gpus(ranks->pipe, *config, ranks->store));
    ranks->pipeline = *rm_pipe_table(ranks->pipe);
    ranks->pipeline.cut = cut;
    return REMAT_OK;
}

/* NCCL sends gradients on GPUs, among the ranks with the same layers, and a pipeline's messages; its ranks find each other
 * through the same store. */
static remat_status open_gpus(rm_ranks *ranks, const rm_options *o) {
    int number;
    char name[32];
    if (strcmp(o->session.device, "cuda")) return REMAT_OK;
    TRY(rm_device_number(o->session.device, &number));
    rm_group_config config = {.observer = rm_group_observer(ranks->group), .gpu = 1 + number};
    set_time_outs(ranks, o, &config);
    TRY(open_gpus_of_pipe(ranks, &config));
    if (!ranks->same) return REMAT_OK;
    snprintf(name, sizeof name, "gpus%d", ranks->part);
    config.engine = "nccl";
    config.rank = ranks->replica;
    config.size = ranks->replicas;
    config.first = ranks->part;
    config.stride = ranks->parts;
    config.store = ranks->store;
    config.name = name;
    return rm_group_open(&config, &ranks->gpus);
}

remat_status rm_ranks_connect(rm_ranks *ranks, const rm_options *o, const char *facts) {
    char *text = NULL;
    if (!ranks->group) return REMAT_OK;
    rm_ddp_config config = {.group = ranks->same,
                            .compress = o->ddp.compress,
                            .deterministic_world = o->order.shards > 0,
                            .shard_optimizer = o->ddp.shard_optimizer,
                            .fused_update = o->ddp.fused_update,
                            .rows = o->order.batch};
    describe_buckets(o, &config.first_bucket_bytes, &config.bucket_bytes);
    remat_status status = write_same(o, facts, &text);
    if (!status) status = compare_first(ranks, text);
    if (!status) status = open_gpus(ranks, o);
    config.gpus = ranks->gpus;
    if (!status) status = connect(ranks, &config);
    free(text);
    return status;
}

const remat_ranks *rm_ranks_table(const rm_ranks *ranks) { return ranks->ddp ? rm_ddp_ranks(ranks->ddp) : NULL; }

const remat_ranks *rm_ranks_replicas(const rm_ranks *ranks) { return ranks->all ? &ranks->replicas_table : NULL; }

remat_status rm_ranks_share(rm_ranks *ranks, const char *text, char **out) {
    *out = NULL;
    return ranks->all ? rm_ddp_share_text(ranks->all, text, out) : REMAT_OK;
}

remat_status rm_ranks_set_buckets(rm_ranks *ranks, const rm_options *o) {
    uint64_t first, others;
    describe_buckets(o, &first, &others);
    if (ranks->ddp) rm_ddp_set_buckets(ranks->ddp, first, others);
    return REMAT_OK;
}

remat_status rm_ranks_set_cut(rm_ranks *ranks, const char *cut) {
    if (!ranks->pipe) return REMAT_OK;
    char *before = ranks->cut;
    remat_status status = rm_ranks_share(ranks, cut, &ranks->cut);
    ranks->pipeline.cut = ranks->cut;
    rm_free(before);
    return status;
}

remat_status rm_ranks_tell(rm_ranks *ranks, void *data, int64_t bytes) {
    rm_collective what = {.kind = RM_BROADCAST, .wire = RM_WIRE_U8, .tag = TAG_TELL, .count = bytes, .out = data};
    return ranks->group ? rm_group_run(ranks->group, &what) : REMAT_OK;
}

remat_status rm_ranks_gather(rm_ranks *ranks, const void *mine, int64_t bytes, void *all) {
    if (ranks->group) return gather_into(ranks, TAG_KEEP, mine, bytes, all);
    memcpy(all, mine, (size_t)bytes);
    return REMAT_OK;
}

remat_status rm_ranks_broadcast(rm_ranks *ranks, remat_session *session) {
    if (!ranks->ddp) return REMAT_OK;
    char *settings = remat_settings_text(session);
    REQUIRE(settings, MEMORY, "no memory to compare sessions");
    remat_status status = compared(ranks, rm_ddp_broadcast(ranks->ddp, session), settings);
    remat_text_free(settings);
    TRY(status);
    rm_host_trim(); /* the buffers were copied through host memory */
    return REMAT_OK;
}

remat_status rm_ranks_send_arrays(rm_ranks *ranks, remat_session *session, remat_kind kind) {
    return ranks->ddp ? rm_ddp_send_arrays(ranks->ddp, session, kind) : REMAT_OK;
}

remat_status rm_ranks_share_buffers(rm_ranks *ranks, remat_session *session) {
    return ranks->ddp ? rm_ddp_broadcast_buffers(ranks->ddp, session) : REMAT_OK;
}

remat_status rm_ranks_most(rm_ranks *ranks, uint64_t *bytes) {
    void *all;
    if (!ranks->group) return REMAT_OK;
    remat_status status = gather(ranks, TAG_READY, bytes, sizeof *bytes, &all);
    for (int32_t r = 0; !status && r < ranks->size; r++)
        if (((uint64_t *)all)[r] > *bytes) *bytes = ((uint64_t *)all)[r];
    rm_free(all);
    return status;
}

const remat_ranks *rm_ranks_imagined(const rm_options *o, remat_ranks *table) {
    if (rm_setup_ranks(o) == 1) return NULL;
    *table = (remat_ranks){.struct_bytes = sizeof *table,
                           .size = (int)rm_setup_ranks(o),
                           .shard_optimizer = o->ddp.shard_optimizer,
                           .fused_update = o->ddp.fused_update,
                           .wire_bytes = o->ddp.compress ? 2 : 0};
    describe_buckets(o, &table->first_bucket_bytes, &table->bucket_bytes);
    return table;
}

/* ---- Stopping --------------------------------------------------------------------------------------------------- */

/* Since the last call, in microseconds, by all groups. */
static int32_t take_blocked(rm_ranks *ranks) {
    rm_group *groups[] = {ranks->group, ranks->same == ranks->group ? NULL : ranks->same, ranks->gpus,
                          ranks->pipe ? rm_pipe_group(ranks->pipe) : NULL};
    uint64_t before_ns = ranks->blocked_ns, us;
    ranks->blocked_ns = 0;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i]) ranks->blocked_ns += rm_group_blocked_ns(groups[i]);
    us = (ranks->blocked_ns - before_ns) / 1000;
    return us < INT32_MAX ? (int32_t)us : INT32_MAX;
}

/* Numbers of ranks that got a signal, the request to save, or a call; then, by rank, how long each was blocked. */
remat_status rm_ranks_heed(rm_ranks *ranks, int *stop, bool *save, bool *again) {
    static const int signals[SIGNALS] = {SIGTERM, SIGHUP, SIGINT};
    int32_t *sum = ranks->heed;
    if (!ranks->group) return REMAT_OK;
    const bool first = !ranks->blocked_ns; /* until then ranks wait for rank 0, which plans */
    memset(sum, 0, (size_t)(HEEDED + ranks->size) * sizeof *sum);
    for (int i = 0; i < SIGNALS; i++) sum[i] = *stop == signals[i];
    sum[SAVE] = *save;
    sum[AGAIN] = *again;
    sum[HEEDED + ranks->rank] = take_blocked(ranks);
    rm_collective what = {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .tag = TAG_STOP, .count = HEEDED + ranks->size};
    what.in = what.out = sum;
    TRY(rm_group_run(ranks->group, &what));
    if (!first) rm_lateness_add(&ranks->lateness, sum + HEEDED);
    *stop = 0;
    for (int i = SIGNALS - 1; i >= 0; i--)
        if (sum[i]) *stop = signals[i];
    *save = sum[SAVE];
    *again = sum[AGAIN];
    return REMAT_OK;
}

/* All ranks know which it is, but only the rank itself knows its host. */
remat_status rm_ranks_straggler(rm_ranks *ranks, rm_straggler *out) {
    *out = (rm_straggler){.rank = -1};
    if (!ranks->group) return REMAT_OK;
    out->rank = rm_lateness_worst(&ranks->lateness, &out->waited_s);
    memcpy(out->host, ranks->host, sizeof out->host);
    rm_collective what = {.kind = RM_BROADCAST, .wire = RM_WIRE_U8, .root = out->rank, .tag = TAG_STRAGGLER};
    what.count = sizeof out->host;
    what.out = out->host;
    return rm_group_run(ranks->group, &what);
}

void rm_ranks_let_others_go_first(void) { nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); }

/* `remat launch` recognises by exit statuses where a failure began (launch_supervisor.c), whichever rank ends first. */
static bool is_kept(void) { return getenv("REMAT_JOB_ID") && !getenv("TORCHELASTIC_USE_AGENT_STORE"); }

/* Aborting sets another message, which must not replace the reason. */
static void tell_others(const rm_ranks *ranks, remat_status status) {
    rm_reason why = rm_reason_kept();
    rm_group_abort(ranks->group, why.text);
    if (ranks->pipe) rm_group_abort(rm_pipe_group(ranks->pipe), why.text);
    if (ranks->same && ranks->same != ranks->group) rm_group_abort(ranks->same, why.text);
    (void)rm_reason_again(status, &why);
}

remat_status rm_ranks_failed(rm_ranks *ranks, const char *command, remat_status status) {
    if (ranks->size == 1 || ranks->alike || !*remat_last_error()) return status;
    if (status != REMAT_PEER && ranks->group && !ranks->over) tell_others(ranks, status);
    rm_ranks_watch_hush(ranks->watch, status);
    rm_fail_in(status, "rank %d of %d on %s", ranks->rank, ranks->size, ranks->host);
    if (status != REMAT_PEER) return status;
    fflush(stdout);
    fprintf(stderr, "remat %s: %s\n", command, remat_last_error());
    if (!is_kept()) rm_ranks_let_others_go_first();
    return silently(status);
}
