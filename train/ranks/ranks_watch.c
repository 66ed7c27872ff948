/* ranks_watch.c: asks the group a few times a second whether a rank is silent, and reports each silence once, on the stderr of one rank.
 * A rank that is alive but late (such as rank 0 writing a large training state) is reported after a longer wait. */
#include "train/ranks/ranks_watch.h"

#include "memory/host.h"
#include "train/ranks/heartbeat.h"
#include "train/run/again.h"
#include "dist/launch/world.h"
#include "dist/group/side_thread.h"
#include "train/text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOK_S 0.2    /* between looks */
#define LATE_S 10.0   /* when to report a rank that is alive but late */
#define STUCK_S 0.8   /* after a failure, the main thread's time to return from the engine */
#define ELASTIC_S 5.0 /* the same in an elastic job, whose last step is lost with the process */
#define COPIES_S 60.0 /* then, to copy that step, and to close everything */
#define LOST_S 0.4 /* after the job's world has found a rank to be lost, the engine's time to notice it and say why */
#define STUCK_MPI_S                                                                                                    \
    0.4 /* the same for MPI: it does not return, and its launcher soon ends all ranks without a reason */

struct rm_ranks_watch {
    rm_group *group;    /* of all ranks */
    rm_group *part[2];  /* with a pipeline: those of some ranks; NULL: none */
    rm_heartbeat *beat; /* NULL: the engine has its own heartbeats */
    const char *server; /* of the heartbeats' store, in words */
    rm_kv *store;       /* borrowed; NULL: none */
    bool told, aborted; /* after a silence found by heartbeats, or by the world of an elastic job */
    bool elastic;
    double signed_s, lost_s; /* the last sign of life; when a rank was found to be lost, 0: none */
    double timeout_s, stuck_s;
    rm_side_thread side;
    bool hushed;     /* under its lock */
    int exit_status; /* likewise */
};

/* The first rank of the group reports the others; the second reports the first. */
static bool is_mine_to_say(const rm_group *group, const rm_notice *notice) {
    return rm_group_rank(group) == (notice->rank == rm_group_first(group) ? 1 : 0);
}

static void say(const rm_ranks_watch *w, const rm_notice *notice) {
    fprintf(stderr, "remat train: rank %d of %d: %s; waiting up to %.4g s\n", rm_group_rank(w->group),
            rm_group_size(w->group), notice->text, notice->responds ? 600 : w->timeout_s);
}

/* Sleeps until the next look; false: the thread should end. */
static bool doze(rm_ranks_watch *w) {
    rm_side_thread_lock(&w->side);
    bool goes_on = rm_side_thread_doze(&w->side, rm_now_s() + LOOK_S);
    rm_side_thread_unlock(&w->side);
    return goes_on;
}

static void say_quiet(rm_ranks_watch *w, const char *who, double silence) {
    if (w->told) return;
    fprintf(stderr, "remat train: rank %d of %d: %s has not responded for %.1f s; waiting up to %.4g s\n",
            rm_group_rank(w->group), rm_group_size(w->group), who, silence, w->timeout_s);
    w->told = true;
}

/* Ends the process: a library that waits for a stopped rank blocks the main thread, and without the store the failure cannot be
 * reported to others. A rank of an elastic job joins again, without the step that it was in. */
static void give_up(rm_ranks_watch *w, const char *why) {
    rm_side_thread_lock(&w->side);
    if (!w->hushed)
        fprintf(stderr, "remat train: rank %d of %d: %s\n", rm_group_rank(w->group), rm_group_size(w->group), why);
    if (w->elastic && !w->hushed && rm_again_counts(false)) rm_again_load();
    _exit(w->exit_status);
}

/* The first reason counts. */
static void abort_with(rm_ranks_watch *w, const char *reason) {
    w->aborted = true;
    rm_group_abort(w->group, reason);
}

/* `serves`: it serves the store, through which the others would hear. */
static void end_for_silence(rm_ranks_watch *w, const char *who, double silence, bool serves) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s has not responded for %.1f s, which is longer than --hang-timeout=%.4g", who,
             silence, w->timeout_s);
    if (serves && !w->elastic) give_up(w, reason);
    if (serves) rm_kv_cut(w->store);
    abort_with(w, reason);
}

/* Rank 1 reports a silent store; each rank reports the next one. */
static void heed_heartbeats(rm_ranks_watch *w) {
    char who[300], why[1024];
    double store = rm_heartbeat_store_silence(w->beat), next = rm_heartbeat_silence(w->beat, who, sizeof who);
    bool store_is_quiet = store >= rm_heartbeat_store_quiet_s(w->beat), next_is = next >= rm_heartbeat_quiet_s(w->beat);
    if (!store_is_quiet && !next_is) w->told = false;
    if (store_is_quiet && rm_group_rank(w->group) == 1) say_quiet(w, w->server, store);
    if (next_is) say_quiet(w, who, next);
    if (store >= w->timeout_s && !w->aborted) end_for_silence(w, w->server, store, true);
    if (next >= w->timeout_s && !w->aborted) end_for_silence(w, who, next, false);
    double failed = rm_heartbeat_failure(w->beat, why, sizeof why);
    if (failed > 0 && w->elastic && !w->aborted)
        abort_with(w, why); /* the main thread may wait for a rank that has ended */
    if (failed > w->stuck_s) give_up(w, why);
}

/* Which is sooner than --hang-timeout, and on every engine. */
static void heed_world(rm_ranks_watch *w) {
    int32_t rank;
    const double now = rm_now_s();
    if (now >= w->signed_s + RM_WORLD_SIGN_S) {
        rm_world_alive();
        w->signed_s = now;
    }
    if (w->aborted || !rm_world_lost(&rank)) return;
    if (w->lost_s == 0) w->lost_s = now;
    if (now < w->lost_s + LOST_S) return;
    char reason[128];
    snprintf(reason, sizeof reason, "rank %d has left, or does not respond to the launcher of host 0", rank);
    if (rank == 0 && w->store) rm_kv_cut(w->store);
    abort_with(w, reason);
}

/* A rank that waits in one group does not look at the others: the failure of one is that of all. */
static void pass_failures(const rm_ranks_watch *w) {
    rm_group *all[] = {w->group, w->part[0], w->part[1]};
    for (int i = 0; i < 3; i++) {
        if (!w->part[0] || !all[i] || !rm_group_poll(all[i])) continue;
        rm_reason why = rm_reason_kept();
        for (int k = 0; k < 3; k++)
            if (k != i && all[k] && !rm_group_poll(all[k])) rm_group_abort(all[k], why.text);
    }
}

/* The first group in which a rank is silent or late. */
static rm_group *find_notice(const rm_ranks_watch *w, rm_notice *out) {
    rm_group *all[] = {w->group, w->part[0], w->part[1]};
    for (int i = 0; i < 3; i++)
        if (all[i] && rm_group_notice(all[i], out)) return all[i];
    return NULL;
}

static void *watch(void *context) {
    rm_ranks_watch *w = context;
    double quiet_since = 0;
    bool said = false;
    while (doze(w)) {
        rm_notice notice;
        double now = rm_now_s();
        rm_group *where = find_notice(w, &notice);
        bool quiet = where != NULL;
        pass_failures(w);
        if (w->beat) heed_heartbeats(w);
        if (w->elastic) heed_world(w);
        if (!quiet) said = false;
        if (!quiet || quiet_since == 0) quiet_since = quiet ? now : 0;
        bool due = quiet && (!notice.responds || now - quiet_since >= LATE_S);
        if (!due || said) continue;
        if (is_mine_to_say(where, &notice)) say(w, &notice);
        said = true;
    }
    return NULL;
}

/* Ranks of an engine without heartbeats are watched through the store. */
static remat_status start_heartbeat(const rm_ranks *ranks, rm_ranks_watch *w) {
    bool watches = !strcmp(rm_group_engine(ranks->group), "local");
    if (watches || !ranks->store) return REMAT_OK;
    w->server = rm_kv_port(ranks->store) ? "rank 0, which serves the store," : "the file that holds the store";
    return rm_heartbeat_start(ranks->group, ranks->store, ranks->host, &w->beat);
}

remat_status rm_ranks_watch_start(const rm_ranks *ranks, double timeout_s, rm_ranks_watch **out) {
    rm_ranks_watch *w = rm_calloc(1, sizeof *w);
    *out = NULL;
    REQUIRE(w, MEMORY, "no memory to watch the other ranks");
    bool mpi = !strcmp(rm_group_engine(ranks->group), "mpi");
    *w = (rm_ranks_watch){.group = ranks->group,
                          .part = {ranks->pipe ? rm_pipe_group(ranks->pipe) : NULL, ranks->pipe ? ranks->same : NULL},
                          .store = ranks->store,
                          .elastic = rm_world_exists(),
                          .timeout_s = timeout_s,
                          .stuck_s = mpi                 ? STUCK_MPI_S
                                     : rm_world_exists() ? ELASTIC_S
                                                         : STUCK_S,
                          .exit_status = RM_PEER_STATUS};
    remat_status status = start_heartbeat(ranks, w);
    if (!status) status = rm_side_thread_start(&w->side, watch, w, "watch the other ranks");
    if (!status) *out = w;
    if (status) rm_heartbeat_stop(w->beat);
    if (status) rm_free(w);
    return status;
}

void rm_ranks_watch_stop(rm_ranks_watch *w) {
    if (!w) return;
    rm_side_thread_end(&w->side);
    rm_heartbeat_stop(w->beat);
    rm_free(w);
}

void rm_ranks_watch_hush(rm_ranks_watch *w, remat_status status) {
    if (!w) return;
    rm_side_thread_lock(&w->side);
    w->hushed = true;
    if (w->elastic) w->stuck_s = COPIES_S;
    w->exit_status = status == REMAT_PEER ? RM_PEER_STATUS : 1;
    rm_side_thread_unlock(&w->side);
}
