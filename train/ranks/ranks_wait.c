/* ranks_wait.c: see ranks_wait.h. Uses a thread, because a rank that is connecting cannot check the time. */
#include "train/ranks/ranks_wait.h"

#include "memory/host.h"
#include "dist/group/side_thread.h"
#include "train/text.h"

#include <stdio.h>

#define FIRST_S 1.5 /* as in dist/group/joining.c */
#define SECOND_S 30.0
#define LATER_S 60.0

struct rm_ranks_wait {
    const rm_rendezvous *where;
    double timeout_s;
    rm_side_thread side;
};

void rm_ranks_wait_say(int32_t rank, int32_t size, const char *sentence) {
    fprintf(stderr, "remat train: rank %d of %d: %s\n", rank, size, sentence);
}

static void say_waiting(const rm_rendezvous *where, double waited_s, double timeout_s) {
    char text[1400], place[1100];
    if (where->meeting == RM_MEET_FILE)
        snprintf(place, sizeof place, "in %s", where->path);
    else
        snprintf(place, sizeof place, "at %s:%d", where->host, where->port);
    snprintf(text, sizeof text, "rank 0 is not %s yet, or does not answer; waiting since %.0f s; up to %.4g s", place,
             waited_s, timeout_s);
    rm_ranks_wait_say(where->rank, where->size, text);
}

static void *speak(void *context) {
    rm_ranks_wait *w = context;
    const double start = rm_now_s();
    rm_side_thread_lock(&w->side);
    for (double s = FIRST_S; rm_side_thread_doze(&w->side, start + s); s = s < SECOND_S ? SECOND_S : s + LATER_S)
        say_waiting(w->where, s, w->timeout_s);
    rm_side_thread_unlock(&w->side);
    return NULL;
}

remat_status rm_ranks_wait_begin(const rm_rendezvous *where, double timeout_s, rm_ranks_wait **out) {
    *out = NULL;
    if (where->rank == 0 || where->meeting == RM_MEET_NOWHERE) return REMAT_OK;
    if (where->local_rank > 0 && where->rank != 1) return REMAT_OK;
    rm_ranks_wait *w = rm_calloc(1, sizeof *w);
    REQUIRE(w, MEMORY, "no memory to wait for rank 0");
    w->where = where;
    w->timeout_s = timeout_s;
    remat_status status = rm_side_thread_start(&w->side, speak, w, "tell of waiting for rank 0");
    if (!status) *out = w;
    if (status) rm_free(w);
    return status;
}

void rm_ranks_wait_end(rm_ranks_wait *w) {
    if (!w) return;
    rm_side_thread_end(&w->side);
    rm_free(w);
}
