/* ranks_watch.c: asks the group a few times a second whether a rank gives no sign of life, and says so once on stderr: once
 * for each time that a rank falls silent, from one rank alone. A rank that lives and is only late (rank 0 writes a large
 * training state) is mentioned when it has kept this one waiting for a while. */
#include "train/ranks_watch.h"

#include "memory/host.h"
#include "train/text.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOOK_NS 200000000 /* between looks */
#define LATE_S 10.0       /* a rank that lives is late after so long */

struct rm_ranks_watch {
    rm_group *group;
    double timeout_s;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ending;
    bool ends; /* under the lock */
};

/* Rank 0 speaks for all, but of itself: that is for rank 1. */
static bool is_mine_to_say(const rm_group *group, const char *text) {
    return rm_group_rank(group) == (strstr(text, "rank 0 ") ? 1 : 0);
}

/* The words of the group: only a rank that gives signs of life is said to live. */
static bool lives(const char *text) { return strstr(text, "which lives") != NULL; }

static void say(const rm_ranks_watch *w, const char *text) {
    fprintf(stderr, "remat train: rank %d of %d: %s; waiting up to %.4g s\n", rm_group_rank(w->group),
            rm_group_size(w->group), text, lives(text) ? 600 : w->timeout_s);
}

/* True when a while has passed; false: it is to end. */
static bool doze(rm_ranks_watch *w) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->lock);
    if (!w->ends) pthread_cond_timedwait(&w->ending, &w->lock, &until);
    bool ends = w->ends;
    pthread_mutex_unlock(&w->lock);
    return !ends;
}

static void *watch(void *context) {
    rm_ranks_watch *w = context;
    double quiet_since = 0;
    bool said = false;
    while (doze(w)) {
        char text[1024];
        double now = rm_now_s();
        bool quiet = rm_group_notice(w->group, text, sizeof text);
        if (!quiet) said = false;
        if (!quiet || quiet_since == 0) quiet_since = quiet ? now : 0;
        bool due = quiet && (!lives(text) || now - quiet_since >= LATE_S);
        if (!due || said) continue;
        if (is_mine_to_say(w->group, text)) say(w, text);
        said = true;
    }
    return NULL;
}

remat_status rm_ranks_watch_start(rm_group *group, double timeout_s, rm_ranks_watch **out) {
    rm_ranks_watch *w = rm_calloc(1, sizeof *w);
    *out = NULL;
    REQUIRE(w, MEMORY, "no memory to watch the other ranks");
    *w = (rm_ranks_watch){.group = group, .timeout_s = timeout_s};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->ending, NULL);
    int error = pthread_create(&w->thread, NULL, watch, w);
    if (!error) *out = w;
    if (error) rm_free(w);
    REQUIRE(!error, MEMORY, "no thread to watch the other ranks: %s", strerror(error));
    return REMAT_OK;
}

void rm_ranks_watch_stop(rm_ranks_watch *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->ending);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->ending);
    pthread_mutex_destroy(&w->lock);
    rm_free(w);
}
