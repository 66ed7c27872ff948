/* world.c: a process of an elastic job asks for its place. See world.h; world_host.c answers. */
#define _GNU_SOURCE
#include "dist/launch/world.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dist/launch/world_words.h"
#include "memory/clock.h"

#define BACK_MS 3000 /* to reach the host again; at first it may start later than this process */

/* One for each process, because a process has one place. */
static int connection = -1;

typedef struct {
    int64_t slot, most;
    int port;
    char host[256];
} address;

static bool read_address(address *out) {
    const char *said = getenv(RM_WORLD_VARIABLE);
    return said && sscanf(said, "%" SCNd64 " %" SCNd64 " %d %255s", &out->slot, &out->most, &out->port, out->host) == 4;
}

bool rm_world_exists(void) {
    address a;
    return read_address(&a);
}

int64_t rm_world_most(void) {
    address a;
    return read_address(&a) ? a.most : 0;
}

/* ---- Lines --------------------------------------------------------------------------------------------------------- */

static bool send_line(const char *line) {
    size_t bytes = strlen(line);
    return send(connection, line, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Reads byte by byte: what follows the line may be for the program that is loaded next. */
static bool receive_line(char line[RM_WORLD_LINE], int64_t deadline_ms) {
    for (size_t n = 0; n < RM_WORLD_LINE;) {
        int64_t left = deadline_ms - rm_now_ms();
        struct pollfd ready = {.fd = connection, .events = POLLIN};
        int some = poll(&ready, 1, left > 0 ? (int)(left < 1 << 30 ? left : 1 << 30) : 0);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0 || recv(connection, line + n, 1, 0) != 1) return false;
        if (line[n] == '\n') {
            line[n] = 0;
            return true;
        }
        n++;
    }
    return false;
}

/* ---- The connection ------------------------------------------------------------------------------------------------ */

static void hang_up(void) {
    if (connection >= 0) close(connection);
    connection = -1;
    unsetenv(RM_WORLD_CONNECTION);
}

/* Each side proves to the other that it knows the job's secret. */
static bool greet(const address *a, int64_t deadline_ms) {
    const char *secret = getenv("REMAT_JOB_SECRET");
    char line[RM_WORLD_LINE], text[2 * RM_KV_NONCE_BYTES + 1];
    uint8_t proof[RM_HMAC_BYTES], theirs[RM_HMAC_BYTES];
    rm_kv_meeting meeting = {.rank = htole64((uint64_t)a->slot)};
    if (!rm_kv_nonce(meeting.client)) return false;
    rm_world_hex(meeting.client, sizeof meeting.client, text);
    snprintf(line, sizeof line, RM_WORLD_HELLO " %" PRId64 " %s\n", a->slot, text);
    if (!send_line(line) || !receive_line(line, deadline_ms)) return false;
    if (!rm_world_unhex(line, meeting.server, sizeof meeting.server)) return false;
    rm_kv_proof(secret, "client", &meeting, proof);
    rm_world_hex(proof, sizeof proof, text);
    snprintf(line, sizeof line, "%s\n", text);
    if (!send_line(line) || !receive_line(line, deadline_ms)) return false;
    rm_kv_proof(secret, "server", &meeting, proof);
    return rm_world_unhex(line, theirs, sizeof theirs) && rm_hmac_same(proof, theirs);
}

static remat_status reach(const address *a, bool first, int64_t deadline_ms) {
    char why[128] = "its proof of the job's secret is wrong, or it closed the connection";
    bool unknown;
    for (;;) {
        connection = rm_kv_connect(a->host, a->port, &unknown, why, sizeof why);
        if (connection >= 0 && greet(a, rm_now_ms() + BACK_MS)) return REMAT_OK;
        hang_up();
        if (rm_now_ms() >= deadline_ms) break;
        usleep(50000);
    }
    REQUIRE(first, PEER,
            "the launcher of host 0 at %s:%d is gone, and the job with it: %s; start the launchers of all hosts again",
            a->host, a->port, why);
    FAIL(PEER,
         "process %" PRId64 " of the job cannot reach the launcher of host 0 at %s:%d: %s; check that it runs there, "
         "and give all hosts the same --master-addr, --master-port and --run-id",
         a->slot, a->host, a->port, why);
}

/* The connection of the program that this process ran before, if there is one. */
static void take_over(void) {
    const char *said = getenv(RM_WORLD_CONNECTION);
    if (connection >= 0 || !said) return;
    connection = atoi(said);
    unsetenv(RM_WORLD_CONNECTION);
    fcntl(connection, F_SETFD, FD_CLOEXEC);
}

static void own_address(char *text, size_t bytes) {
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    if (getsockname(connection, (struct sockaddr *)&at, &length) ||
        getnameinfo((struct sockaddr *)&at, length, text, (socklen_t)bytes, NULL, 0, NI_NUMERICHOST))
        snprintf(text, bytes, "0.0.0.0");
}

/* ---- The place ----------------------------------------------------------------------------------------------------- */

static void set_number(const char *name, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    setenv(name, text, 1);
}

/* Sets the variables. `listen_fd` is for rank 0, whose store the others look for at its port. */
static bool take_place(const char *line, int listen_fd) {
    rm_place p;
    if (!rm_world_read_place(line, &p)) return false;
    set_number("RANK", p.rank);
    set_number("WORLD_SIZE", p.size);
    set_number("LOCAL_RANK", p.local_rank);
    set_number("LOCAL_WORLD_SIZE", p.local_size);
    set_number("GROUP_WORLD_SIZE", p.hosts);
    set_number("MASTER_PORT", p.port);
    set_number("TORCHELASTIC_RESTART_COUNT", p.generation);
    setenv("MASTER_ADDR", p.host, 1);
    setenv("REMAT_JOB_ID", p.job, 1);
    unsetenv("REMAT_LISTEN_FD");
    if (p.rank == 0) set_number("REMAT_LISTEN_FD", listen_fd);
    if (p.rank) close(listen_fd);
    return true;
}

typedef enum { GONE, PLACE, OVER, REFUSED } answer; /* GONE: the connection is, or time is up */

/* `theirs`: the engine of the job's ranks, if they refuse this process. */
static answer wait_for_place(const rm_world_request *request, int64_t deadline_ms, char theirs[16]) {
    char line[RM_WORLD_LINE], host[64];
    int32_t port = 0;
    int listen_fd;
    own_address(host, sizeof host);
    if (rm_kv_listen(host, &port, "", &listen_fd)) return GONE;
    snprintf(line, sizeof line, "join %" PRId64 " %" PRId64 " %d %d %s\n", request->step, request->units, port,
             (int)getpid(), request->engine);
    bool sent = send_line(line);
    while (sent && receive_line(line, deadline_ms)) {
        if (take_place(line, listen_fd)) return PLACE;
        if (!strncmp(line, "note ", 5)) request->say(request->context, rm_printable(line + 5));
        if (!strcmp(line, "spare")) deadline_ms = INT64_MAX;
        bool others_come = !strcmp(line, "wait") && deadline_ms < rm_now_ms() + request->timeout_ms;
        if (others_come) deadline_ms = rm_now_ms() + request->timeout_ms;
        bool refused = sscanf(line, "refuse %15s", theirs) == 1;
        if (!refused && strcmp(line, "over")) continue; /* a call to join, which this process has already answered */
        close(listen_fd);
        return refused ? REFUSED : OVER;
    }
    close(listen_fd);
    return GONE;
}

remat_status rm_world_join(const rm_world_request *request, bool *over) {
    address a;
    int64_t deadline = rm_now_ms() + request->timeout_ms;
    *over = false;
    take_over();
    const char *count = getenv("TORCHELASTIC_RESTART_COUNT");
    bool first = connection < 0 && (!count || !atoi(count));
    REQUIRE(read_address(&a), INVALID, RM_WORLD_VARIABLE " is '%.100s', which no launcher sets: unset it",
            getenv(RM_WORLD_VARIABLE));
    answer place = GONE;
    char theirs[16];
    while (place == GONE && rm_now_ms() < deadline) {
        if (connection < 0) TRY(reach(&a, first, first ? deadline : rm_now_ms() + BACK_MS));
        place = wait_for_place(request, deadline, theirs);
        if (place == GONE || place == REFUSED) hang_up();
    }
    REQUIRE(place != REFUSED, INVALID,
            "the ranks of the job have --dist-backend=%s, but this process has --dist-backend=%s, so the job goes on "
            "without it: give it --dist-backend=%s",
            theirs, request->engine, theirs);
    REQUIRE(place != GONE, PEER,
            "too few ranks have come for %" PRId64
            " s: start the launchers of more hosts, or give a smaller MIN in --nnodes=MIN:MAX",
            request->timeout_ms / 1000);
    *over = place == OVER;
    return REMAT_OK;
}

bool rm_world_called(void) {
    struct pollfd ready = {.fd = connection, .events = POLLIN};
    return connection >= 0 && poll(&ready, 1, 0) > 0;
}

/* Leaves the lines where they are: rm_world_called() looks for them, too. */
bool rm_world_lost(int32_t *rank) {
    char lines[RM_WORLD_LINE];
    if (connection < 0) return false;
    ssize_t n = recv(connection, lines, sizeof lines - 1, MSG_PEEK | MSG_DONTWAIT);
    lines[n > 0 ? n : 0] = 0;
    const char *lost = strstr(lines, "lost ");
    return lost && sscanf(lost, "lost %" SCNd32, rank) == 1;
}

void rm_world_alive(void) {
    static const char line[] = "alive\n";
    if (connection >= 0) (void)send(connection, line, sizeof line - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void rm_world_again(void) {
    if (connection < 0) return;
    if (!send_line("again\n")) {
        hang_up();
        return;
    }
    fcntl(connection, F_SETFD, 0);
    set_number(RM_WORLD_CONNECTION, connection);
}

void rm_world_done(void) {
    if (connection >= 0) (void)send_line("done\n");
    hang_up();
}
