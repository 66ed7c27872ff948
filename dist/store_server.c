/* store_server.c: rank 0's end of the tcp store: one thread, one poll loop, a table of keys. It trusts nobody: a
 * connection that does not open with this job's token is closed at its first wrong word, or after two seconds of
 * saying nothing. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dist/store_kind.h"
#include "memory/clock.h"
#include "memory/host.h"

enum { BUCKETS = 1024, STRANGERS = 64, REFUSALS = 16 };
#define HELLO_NS UINT64_C(2000000000)
#define GOODBYE_NS UINT64_C(2000000000)
#define FULL_NS UINT64_C(100000000)

typedef struct entry entry;
struct entry {
    entry *next;
    uint32_t bytes;
    char *value, key[]; /* the key, 0, the value */
};

/* in: the request so far. out: replies not yet taken. A connection that waits for a key has `deadline_ns`. */
typedef struct {
    int fd;
    bool known, goodbye, waits;
    int32_t rank;
    uint64_t deadline_ns;
    char *in, *out;
    uint32_t in_bytes, in_room, out_bytes, out_room;
    char who[96];
} client;

struct rm_kv_server {
    int listen_fd, wake;
    int32_t size;
    uint8_t token[RM_KV_TOKEN_BYTES];
    entry *table[BUCKETS];
    client *clients;
    struct pollfd *poll;
    int n_clients, room;
    uint64_t closing_ns; /* 0: open; else when to stop waiting for goodbyes */
    uint64_t full_ns;    /* until then it takes nobody in: there were no descriptors or memory left */
    pthread_t thread;
};

/* ---- The table -------------------------------------------------------------------------------------------------- */

static entry **find(rm_kv_server *server, const char *key) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = key; *c; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
    entry **link = &server->table[hash % BUCKETS];
    while (*link && strcmp((*link)->key, key)) link = &(*link)->next;
    return link;
}

static bool put(rm_kv_server *server, const char *key, const void *value, uint32_t bytes) {
    size_t key_bytes = strlen(key) + 1;
    entry **link = find(server, key), *made = rm_malloc(sizeof *made + key_bytes + bytes);
    if (!made) return false;
    *made = (entry){.next = *link ? (*link)->next : NULL, .bytes = bytes, .value = made->key + key_bytes};
    memcpy(made->key, key, key_bytes);
    if (bytes) memcpy(made->value, value, bytes);
    rm_free(*link);
    *link = made;
    return true;
}

/* ---- Replies ---------------------------------------------------------------------------------------------------- */

static bool reserve(char **buffer, uint32_t *room, uint32_t bytes) {
    if (bytes <= *room) return true;
    char *larger = rm_realloc(*buffer, bytes);
    if (!larger) return false;
    *buffer = larger;
    *room = bytes;
    return true;
}

/* Sends what the socket takes; the rest goes when poll says so. False: the connection is gone. */
static bool flush_out(client *c) {
    uint32_t sent = 0;
    while (sent < c->out_bytes) {
        ssize_t n = send(c->fd, c->out + sent, c->out_bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
        if (n < 0) break;
        sent += (uint32_t)n;
    }
    if (sent < c->out_bytes && sent) memmove(c->out, c->out + sent, c->out_bytes - sent);
    c->out_bytes -= sent;
    return true;
}

static bool reply(client *c, rm_kv_answer answer, int64_t number, const void *value, uint32_t bytes) {
    rm_kv_reply head = {.magic = htole32(RM_KV_MAGIC),
                        .answer = htole32(answer),
                        .value_bytes = htole32(bytes),
                        .number = (int64_t)htole64((uint64_t)number)};
    if (!reserve(&c->out, &c->out_room, c->out_bytes + (uint32_t)sizeof head + bytes)) return false;
    memcpy(c->out + c->out_bytes, &head, sizeof head);
    if (bytes) memcpy(c->out + c->out_bytes + sizeof head, value, bytes);
    c->out_bytes += (uint32_t)sizeof head + bytes;
    return flush_out(c);
}

static bool refuse(client *c, const char *why) {
    (void)reply(c, RM_KV_REFUSED, 0, why, (uint32_t)strlen(why));
    return false;
}

/* Kept for rank 0 to tell people; of a stranger who tries again and again once. */
static void note_refusal(rm_kv_server *server, const char *who) {
    char key[32];
    for (int i = 1; i <= REFUSALS; i++) {
        snprintf(key, sizeof key, RM_KV_REFUSED_KEY, i);
        const entry *there = *find(server, key);
        if (!there) {
            (void)put(server, key, who, (uint32_t)strlen(who));
            return;
        }
        if (there->bytes == strlen(who) && !memcmp(there->value, who, there->bytes)) return;
    }
}

/* Whoever greets as `rank` of `size` was started wrongly. */
static bool send_away(rm_kv_server *server, client *c, long long rank, int size, const char *who, const char *why) {
    char text[480];
    snprintf(text, sizeof text, "rank %lld of %d from %.95s: %s", rank, size, who, why);
    note_refusal(server, text);
    (void)reply(c, RM_KV_MISUSED, 0, why, (uint32_t)strlen(why));
    return false;
}

static bool refuse_stranger(rm_kv_server *server, client *c, long long rank) {
    char text[200], from[64] = "?";
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    if (!getpeername(c->fd, (struct sockaddr *)&at, &length))
        (void)getnameinfo((struct sockaddr *)&at, length, from, sizeof from, NULL, 0, NI_NUMERICHOST);
    snprintf(text, sizeof text, "rank %lld of another job, from %s: the secrets differ", rank, from);
    note_refusal(server, text);
    return refuse(c, "this port belongs to another job (the secrets differ): choose another port");
}

/* ---- Requests --------------------------------------------------------------------------------------------------- */

/* The value is "SIZE WHO". A rank that is there already means that two jobs, or two launches of one, share this port. */
static bool hello(rm_kv_server *server, client *c, int64_t rank, const char *value, uint32_t bytes) {
    char text[112] = "", why[320];
    int size = 0, used = 0;
    memcpy(text, value, bytes < sizeof text ? bytes : sizeof text - 1);
    if (sscanf(text, "%d %n", &size, &used) != 1) return refuse(c, "that was no greeting");
    if (size != server->size || rank < 0 || rank >= server->size) {
        snprintf(why, sizeof why,
                 "rank 0 belongs to a job of %d ranks, and this is rank %lld of %d: do all ranks have the "
                 "same --world-size?",
                 server->size, (long long)rank, size);
        return send_away(server, c, rank, size, text + used, why);
    }
    for (int i = 0; i < server->n_clients; i++)
        if (server->clients[i].known && server->clients[i].rank == rank) {
            snprintf(why, sizeof why,
                     "rank %lld is here already (%s): two jobs use one port, or two processes one --rank",
                     (long long)rank, server->clients[i].who);
            return send_away(server, c, rank, size, text + used, why);
        }
    c->known = true;
    c->rank = (int32_t)rank;
    c->deadline_ns = 0;
    snprintf(c->who, sizeof c->who, "%.95s", text + used);
    return reply(c, RM_KV_FINE, 0, NULL, 0);
}

static bool answer_get(rm_kv_server *server, client *c, const char *key, int64_t wait_ms) {
    entry *found = *find(server, key);
    if (found) return reply(c, RM_KV_FINE, 0, found->value, found->bytes);
    if (wait_ms < 0) return reply(c, RM_KV_NOT_THERE, 0, NULL, 0);
    c->waits = true; /* the request stays in `in`, and is looked at again whenever a key is set */
    c->deadline_ns = rm_now_ns() + (uint64_t)wait_ms * 1000000u;
    return true;
}

static bool add(rm_kv_server *server, client *c, const char *key, int64_t delta) {
    entry *found = *find(server, key);
    uint64_t sum = 0;
    if (found && found->bytes != sizeof sum) return refuse(c, "adding to a key that holds no number");
    if (found) memcpy(&sum, found->value, sizeof sum);
    sum = le64toh(sum) + (uint64_t)delta;
    if (!delta) return reply(c, RM_KV_FINE, (int64_t)sum, NULL, 0);
    uint64_t kept = htole64(sum);
    return put(server, key, &kept, sizeof kept) && reply(c, RM_KV_FINE, (int64_t)sum, NULL, 0);
}

static void look_again(rm_kv_server *server);

/* One whole request. False: close the connection. */
static bool serve(rm_kv_server *server, client *c, const rm_kv_request *request) {
    char key[256];
    const char *value = c->in + sizeof *request + request->key_bytes;
    uint32_t bytes = le32toh(request->value_bytes);
    int64_t number = (int64_t)le64toh((uint64_t)request->number);
    memcpy(key, c->in + sizeof *request, request->key_bytes);
    key[request->key_bytes] = 0;
    if (request->op == RM_KV_HELLO) return !c->known && hello(server, c, number, value, bytes);
    bool fine = true;
    switch (request->op) {
    case RM_KV_GET:
        return answer_get(server, c, key, number);
    case RM_KV_SET:
        fine = put(server, key, value, bytes) && reply(c, RM_KV_FINE, 0, NULL, 0);
        break;
    case RM_KV_ADD:
        fine = add(server, c, key, number);
        break;
    default:
        c->goodbye = true;
        return reply(c, RM_KV_FINE, 0, NULL, 0);
    }
    look_again(server);
    return fine;
}

/* Whether what came so far can be the start of a good request; and how many bytes that request has in all. */
static bool plausible(const rm_kv_server *server, const client *c, uint32_t *whole) {
    rm_kv_request head;
    memcpy(&head, c->in, sizeof head);
    uint32_t bytes = le32toh(head.value_bytes);
    *whole = (uint32_t)sizeof head + head.key_bytes + bytes;
    if (le32toh(head.magic) != RM_KV_MAGIC || memcmp(head.token, server->token, sizeof head.token)) return false;
    if (head.op < RM_KV_HELLO || head.op > RM_KV_BYE || head.key_bytes > RM_KV_KEY_BYTES) return false;
    return bytes <= RM_KV_VALUE_BYTES && (c->known ? head.op != RM_KV_HELLO : head.op == RM_KV_HELLO && bytes < 256);
}

/* Serves the request at the head of `in`, if it is complete; true also when it is not. */
static bool serve_head(rm_kv_server *server, client *c, bool *served) {
    rm_kv_request head;
    uint32_t whole;
    *served = false;
    if (c->in_bytes < sizeof head) return true;
    if (!plausible(server, c, &whole)) {
        memcpy(&head, c->in, sizeof head);
        if (le32toh(head.magic) == RM_KV_MAGIC)
            (void)refuse_stranger(server, c, (long long)le64toh((uint64_t)head.number));
        return false;
    }
    if (c->in_bytes < whole) return reserve(&c->in, &c->in_room, whole);
    memcpy(&head, c->in, sizeof head);
    c->waits = false;
    if (c->known) c->deadline_ns = 0;
    if (!serve(server, c, &head)) return false;
    if (c->waits) return true;
    memmove(c->in, c->in + whole, c->in_bytes - whole);
    c->in_bytes -= whole;
    *served = true;
    return true;
}

static bool receive(rm_kv_server *server, client *c) {
    if (!reserve(&c->in, &c->in_room, 512)) return false;
    if (c->in_bytes == c->in_room) return !c->waits; /* a client has one request under way: more is not from ours */
    ssize_t n = recv(c->fd, c->in + c->in_bytes, c->in_room - c->in_bytes, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (n == 0) return false;
    c->in_bytes += (uint32_t)n;
    bool served = !c->waits, fine = true;
    while (fine && served && !c->goodbye) fine = serve_head(server, c, &served);
    return fine;
}

/* ---- Clients ---------------------------------------------------------------------------------------------------- */

static void drop(rm_kv_server *server, int i) {
    client *c = &server->clients[i], gone = *c;
    char key[32], who[128];
    close(c->fd);
    rm_free(c->in);
    rm_free(c->out);
    *c = server->clients[--server->n_clients];
    if (!gone.known || gone.goodbye) return;
    snprintf(key, sizeof key, "lost/%d", gone.rank);
    (void)put(server, key, gone.who, (uint32_t)strlen(gone.who));
    int length = snprintf(who, sizeof who, "%d (%s)", gone.rank, gone.who);
    if (!*find(server, "lost")) (void)put(server, "lost", who, (uint32_t)length); /* the first is the cause */
    look_again(server);
}

/* Requests that wait for a key are tried again; those whose time is up get their answer. */
static void look_again(rm_kv_server *server) {
    for (int i = 0; i < server->n_clients; i++) {
        client *c = &server->clients[i];
        rm_kv_request head;
        char key[256];
        if (!c->waits) continue;
        memcpy(&head, c->in, sizeof head);
        memcpy(key, c->in + sizeof head, head.key_bytes);
        key[head.key_bytes] = 0;
        entry *found = *find(server, key);
        bool late = rm_now_ns() >= c->deadline_ns;
        if (!found && !late) continue;
        c->waits = false;
        c->deadline_ns = 0;
        c->in_bytes = 0; /* a client sends nothing while it waits */
        if (!reply(c, found ? RM_KV_FINE : RM_KV_NOT_THERE, 0, found ? found->value : NULL, found ? found->bytes : 0))
            shutdown(c->fd, SHUT_RDWR); /* poll then reports it */
    }
}

static bool make_room(rm_kv_server *server) {
    if (server->n_clients < server->room) return true;
    int room = server->room ? 2 * server->room : 16;
    client *clients = rm_realloc(server->clients, (size_t)room * sizeof *clients);
    if (clients) server->clients = clients;
    struct pollfd *slots = rm_realloc(server->poll, ((size_t)room + 2) * sizeof *slots);
    if (slots) server->poll = slots;
    if (!clients || !slots) return false;
    server->room = room;
    return true;
}

static void take_in(rm_kv_server *server) {
    int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
        server->full_ns = rm_now_ns() + FULL_NS; /* who waits in the queue would make poll return at once */
    if (fd < 0) return;
    if (server->n_clients >= server->size + STRANGERS || !make_room(server)) {
        close(fd);
        return;
    }
    server->clients[server->n_clients++] = (client){.fd = fd, .rank = -1, .deadline_ns = rm_now_ns() + HELLO_NS};
}

/* ---- The loop --------------------------------------------------------------------------------------------------- */

static int fill_poll(rm_kv_server *server) {
    uint64_t soonest = server->closing_ns ? server->closing_ns : UINT64_MAX, now = rm_now_ns();
    if (server->full_ns <= now) server->full_ns = 0;
    if (server->full_ns && server->full_ns < soonest) soonest = server->full_ns;
    server->poll[0] = (struct pollfd){.fd = server->full_ns ? -1 : server->listen_fd, .events = POLLIN};
    server->poll[1] = (struct pollfd){.fd = server->closing_ns ? -1 : server->wake, .events = POLLIN};
    for (int i = 0; i < server->n_clients; i++) {
        const client *c = &server->clients[i];
        server->poll[i + 2] = (struct pollfd){.fd = c->fd, .events = POLLIN | (c->out_bytes ? POLLOUT : 0)};
        if (c->deadline_ns && c->deadline_ns < soonest) soonest = c->deadline_ns;
    }
    if (soonest == UINT64_MAX) return -1;
    return soonest <= now ? 0 : (int)((soonest - now) / 1000000u) + 1;
}

static bool tend(rm_kv_server *server, client *c, short events) {
    if (events & POLLOUT && !flush_out(c)) return false;
    if (events & (POLLIN | POLLHUP | POLLERR) && !receive(server, c)) return false;
    return c->known || rm_now_ns() < c->deadline_ns;
}

static bool anybody_left(const rm_kv_server *server) {
    for (int i = 0; i < server->n_clients; i++)
        if (server->clients[i].known && !server->clients[i].goodbye) return true;
    return false;
}

static void *run(void *context) {
    rm_kv_server *server = context;
    while (!server->closing_ns || (anybody_left(server) && rm_now_ns() < server->closing_ns)) {
        int timeout = fill_poll(server), n = server->n_clients;
        if (poll(server->poll, (nfds_t)n + 2, timeout) < 0 && errno != EINTR) break;
        for (int i = n - 1; i >= 0; i--) /* from the end: drop() fills a gap with the last, which has had its turn */
            if (!tend(server, &server->clients[i], server->poll[i + 2].revents)) drop(server, i);
        look_again(server);
        if (server->poll[0].revents & POLLIN) take_in(server);
        if (server->poll[1].revents & POLLIN) server->closing_ns = rm_now_ns() + GOODBYE_NS;
    }
    return NULL;
}

static void server_free(rm_kv_server *server) {
    for (int i = 0; i < server->n_clients; i++) {
        close(server->clients[i].fd);
        rm_free(server->clients[i].in);
        rm_free(server->clients[i].out);
    }
    for (int b = 0; b < BUCKETS; b++)
        for (entry *e = server->table[b], *next; e; e = next) {
            next = e->next;
            rm_free(e);
        }
    close(server->listen_fd);
    if (server->wake >= 0) close(server->wake);
    rm_free(server->clients);
    rm_free(server->poll);
    rm_free(server);
}

static int start_thread(rm_kv_server *server) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&server->thread, NULL, run, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

remat_status rm_kv_server_start(int listen_fd, int32_t size, const char *secret, rm_kv_server **out) {
    rm_kv_server *server = rm_calloc(1, sizeof *server);
    if (!server) {
        close(listen_fd);
        FAIL(MEMORY, "no memory for the store");
    }
    server->listen_fd = listen_fd;
    server->size = size;
    rm_kv_token(secret, server->token);
    server->wake = eventfd(0, EFD_CLOEXEC);
    if (server->wake < 0 || !make_room(server) || start_thread(server)) {
        server_free(server);
        FAIL(MEMORY, "no memory, descriptor or thread for the store");
    }
    *out = server;
    return REMAT_OK;
}

void rm_kv_server_stop(rm_kv_server *server) {
    if (!server) return;
    uint64_t one = 1;
    while (write(server->wake, &one, sizeof one) < 0 && errno == EINTR) {}
    pthread_join(server->thread, NULL);
    server_free(server);
}
