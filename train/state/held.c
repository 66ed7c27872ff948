/* held.c: see held.h. */
#define _GNU_SOURCE /* memfd_create */
#include "train/state/held.h"

#include "memory/host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 1 << 18 };
#define VARIABLE "REMAT_HELD"

typedef struct {
    int fd;
    bool writes;
    uint64_t at;
    char *room;
} tape;

static int held_fd(void) {
    const char *said = getenv(VARIABLE);
    return said ? atoi(said) : -1;
}

bool rm_held_possible(const remat_session *session, const rm_options *o) {
    bool whole = !o->ddp.shard_optimizer && !o->ddp.fused_update && !o->pipeline;
    return session && whole && !strcmp(o->session.device, "cpu");
}

/* ---- Arrays one after the other ------------------------------------------------------------------------------------ */

static remat_status move(tape *t, void *data, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        char *from = (char *)data + done;
        off_t at = (off_t)(t->at + done);
        ssize_t n = t->writes ? pwrite(t->fd, from, bytes - done, at) : pread(t->fd, from, bytes - done, at);
        if (n < 0 && errno == EINTR) continue;
        REQUIRE(n > 0, IO, "cannot hold a step in memory: %s", n ? strerror(errno) : "it is too short");
        done += (uint64_t)n;
    }
    t->at += bytes;
    return REMAT_OK;
}

static remat_status move_array(tape *t, remat_session *session, remat_kind kind, int64_t index) {
    remat_array array;
    TRY(remat_array_info(session, kind, index, &array));
    for (uint64_t first = 0; first < array.bytes; first += PIECE) {
        uint64_t some = array.bytes - first < PIECE ? array.bytes - first : PIECE;
        if (t->writes) TRY(remat_read_part(session, kind, index, first, t->room, some));
        TRY(move(t, t->room, some));
        if (!t->writes) TRY(remat_write_part(session, kind, index, first, t->room, some));
    }
    return REMAT_OK;
}

static remat_status move_kind(tape *t, remat_session *session, remat_kind kind) {
    for (int64_t i = 0; session && i < remat_count(session, kind); i++) TRY(move_array(t, session, kind, i));
    return REMAT_OK;
}

static remat_status move_all(tape *t, remat_session *session, remat_session *ema) {
    t->at = sizeof(rm_state_point);
    t->room = rm_malloc(PIECE);
    REQUIRE(t->room, MEMORY, "no memory to hold a step");
    remat_status status = move_kind(t, session, REMAT_PARAM);
    if (!status) status = move_kind(t, session, REMAT_OPTIMIZER);
    if (!status) status = move_kind(t, ema, REMAT_PARAM);
    rm_free(t->room);
    return status;
}

/* ---- One step ------------------------------------------------------------------------------------------------------ */

remat_status rm_held_keep(remat_session *session, remat_session *ema, const rm_early_copy *early,
                          const rm_state_point *point) {
    char number[16];
    rm_state_point copy = *point;
    tape t = {.fd = memfd_create("remat-step", 0), .writes = true};
    REQUIRE(t.fd >= 0, IO, "cannot hold a step in memory: %s", strerror(errno));
    remat_status status = move(&t, &copy, sizeof copy);
    if (!status) status = move_all(&t, session, ema);
    if (!status && early) status = move(&t, early->data, early->bytes);
    if (status) close(t.fd);
    TRY(status);
    rm_held_drop();
    snprintf(number, sizeof number, "%d", t.fd);
    setenv(VARIABLE, number, 1);
    return REMAT_OK;
}

bool rm_held_find(rm_state_point *point) {
    tape t = {.fd = held_fd()};
    return t.fd >= 0 && !move(&t, point, sizeof *point);
}

/* The early arrays are the rest of the file. */
remat_status rm_held_fill(remat_session *session, remat_session *ema, rm_early_copy *early) {
    tape t = {.fd = held_fd()};
    TRY(move_all(&t, session, ema));
    off_t end = lseek(t.fd, 0, SEEK_END);
    early->bytes = end > (off_t)t.at ? (uint64_t)end - t.at : 0;
    early->data = early->bytes ? rm_malloc(early->bytes) : NULL;
    REQUIRE(early->data || !early->bytes, MEMORY, "no memory to take up a step");
    return move(&t, early->data, early->bytes);
}

void rm_held_drop(void) {
    if (held_fd() >= 0) close(held_fd());
    unsetenv(VARIABLE);
}
