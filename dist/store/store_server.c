/* store_server.c: rank 0's end of the tcp store: one thread, one poll loop, and a table of keys. It trusts no client: a
 * connection is closed unless it proves within two seconds that it knows this job's secret (store_kind.h), or if it
 * sends anything unexpected before that. */
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

#include "dist/store/store_kind.h"
#include "memory/clock.h"
#include "memory/host.h"

enum { BUCKETS = 1024, STRANGERS = 64, REFUSALS = 16 };
#define HELLO_NS UINT64_C(2000000000)
#define GOODBYE_NS UINT64_C(2000000000)
#define FULL_NS UINT64_C(100000000)
/* A client of this job has at most one reply that it has given up on, and one more. */
#define UNREAD_BYTES ((size_t)4 * RM_KV_VALUE_BYTES)

typedef struct entry entry;
struct entry {
    entry *next;
    uint32_t bytes;
    char *value, key[]; /* the key, 0, the value */
};

/* in: the part of a request received so far. out: replies not yet sent. A connection that waits for a key has
 * `deadline_ns`. */
typedef struct {
    int fd;
    bool greeted, known, goodbye, waits;
    int32_t rank;
    uint64_t deadline_ns;
    char *in, *out;
    size_t in_bytes, in_room, out_bytes, out_room;
    char greeting[112], who[96];
    rm_kv_meeting meeting;
} client;

struct rm_kv_server {
    int listen_fd, wake;
    int32_t size, attempt;
    char *secret;
    entry *table[BUCKETS];
    client *clients;
    struct pollfd *poll;
    int n_clients;
    int64_t room, poll_room;
    uint64_t closing_ns; /* 0: open; otherwise when to stop waiting for goodbyes */
    uint64_t full_ns;    /* accepts no connection until then: it ran out of descriptors or memory */
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

static bool reserve(char **buffer, size_t *room, size_t bytes) {
    if (bytes <= *room) return true;
    char *larger = rm_realloc(*buffer, bytes);
    if (!larger) return false;
    *buffer = larger;
    *room = bytes;
    return true;
}

/* Sends as much as the socket takes; the rest follows when poll says so. Returns false if the connection is gone. */
static bool flush_out(client *c) {
    size_t sent = 0;
    while (sent < c->out_bytes) {
        ssize_t n = send(c->fd, c->out + sent, c->out_bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
        if (n < 0) break;
        sent += (size_t)n;
    }
    if (sent < c->out_bytes && sent) memmove(c->out, c->out + sent, c->out_bytes - sent);
    c->out_bytes -= sent;
    return true;
}

/* Also returns false if a client keeps sending requests but does not read the replies. */
static bool reply_in(uint32_t magic, client *c, rm_kv_answer answer, int64_t number, const void *value,
                     uint32_t bytes) {
    rm_kv_reply head = {.magic = htole32(magic),
                        .answer = htole32(answer),
                        .value_bytes = htole32(bytes),
                        .number = (int64_t)htole64((uint64_t)number)};
    size_t unread = c->out_bytes + sizeof head + bytes;
    if (unread > UNREAD_BYTES || !reserve(&c->out, &c->out_room, unread)) return false;
    memcpy(c->out + c->out_bytes, &head, sizeof head);
    if (bytes) memcpy(c->out + c->out_bytes + sizeof head, value, bytes);
    c->out_bytes = unread;
    return flush_out(c);
}

static bool reply(client *c, rm_kv_answer answer, int64_t number, const void *value, uint32_t bytes) {
    return reply_in(RM_KV_MAGIC, c, answer, number, value, bytes);
}

static bool refuse(client *c, const char *why) {
    (void)reply(c, RM_KV_REFUSED, 0, why, (uint32_t)strlen(why));
    return false;
}

/* Recorded for rank 0 to report; once for a stranger that tries again and again. */
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

/* Refuses a client that greets as `rank` of `size` and was started with wrong settings. */
static bool send_away(rm_kv_server *server, client *c, long long rank, int size, const char *who, const char *why) {
    char text[480];
    snprintf(text, sizeof text, "rank %lld of %d from %.95s: %s", rank, size, who, why);
    note_refusal(server, text);
    (void)reply(c, RM_KV_MISUSED, 0, why, (uint32_t)strlen(why));
    return false;
}

static void note_stranger(rm_kv_server *server, const client *c, long long rank, const char *of, const char *why) {
    char text[200], from[64] = "?";
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    if (!getpeername(c->fd, (struct sockaddr *)&at, &length))
        (void)getnameinfo((struct sockaddr *)&at, length, from, sizeof from, NULL, 0, NI_NUMERICHOST);
    snprintf(text, sizeof text, "rank %lld%s, from %s: %s", rank, of, from, why);
    note_refusal(server, text);
}

static bool refuse_stranger(rm_kv_server *server, client *c, long long rank) {
    note_stranger(server, c, rank, " of another job", "the secrets differ");
    return refuse(c, "this port belongs to another job (the secrets differ); choose another port");
}

/* Replies in the client's own version of the protocol, whose header has not changed in the relevant fields. */
static bool refuse_version(rm_kv_server *server, client *c, const rm_kv_request *head) {
    static const char why[] = "rank 0 runs another version of Remat; all ranks must run the same";
    uint32_t magic = le32toh(head->magic);
    if (magic == RM_KV_MAGIC || !RM_KV_IS_STORE(magic)) return false;
    note_stranger(server, c, (long long)le64toh((uint64_t)head->number), "", "it runs another version of Remat");
    (void)reply_in(magic, c, RM_KV_MISUSED, 0, why, sizeof why - 1);
    return false;
}

/* ---- Requests --------------------------------------------------------------------------------------------------- */

/* The value is a nonce and "SIZE ATTEMPT WHO", which is parsed after the client has proved that it belongs to the
 * job. */
static bool hello(client *c, int64_t rank, const char *value, uint32_t bytes) {
    c->meeting.rank = htole64((uint64_t)rank);
    memcpy(c->meeting.client, value, RM_KV_NONCE_BYTES);
    memcpy(c->greeting, value + RM_KV_NONCE_BYTES, bytes - RM_KV_NONCE_BYTES);
    c->greeted = true;
    if (!rm_kv_nonce(c->meeting.server)) return refuse(c, "rank 0's system provides no random numbers");
    return reply(c, RM_KV_FINE, 0, c->meeting.server, RM_KV_NONCE_BYTES);
}

/* Refuses a rank of another attempt than this store's, and a rank that was present before: the other ranks have noticed
 * that it is gone, so their attempt ends. */
static bool refuse_attempt(rm_kv_server *server, client *c, long long rank, int attempt) {
    char why[320], key[32];
    rm_kv_answer answer = attempt < server->attempt ? RM_KV_REFUSED : RM_KV_LATER;
    snprintf(why, sizeof why, "rank 0 is of attempt %d of this job, and this is rank %lld of attempt %d",
             server->attempt, rank, attempt);
    if (attempt == server->attempt) {
        snprintf(key, sizeof key, "left/%lld", rank);
        const entry *before = *find(server, key);
        snprintf(key, sizeof key, "lost/%lld", rank);
        if (!before) before = *find(server, key);
        if (!before) return true;
        snprintf(why, sizeof why, "rank %lld was here before (%.*s), and has ended: this attempt ends without it", rank,
                 (int)(before->bytes < 96 ? before->bytes : 96), before->value);
    }
    (void)reply(c, answer, 0, why, (uint32_t)strlen(why));
    return false;
}

/* A rank that is already present means that two jobs, or two launches of one job, share this port. */
static bool take_rank(rm_kv_server *server, client *c, int64_t rank) {
    char why[320];
    int size = 0, attempt = 0, used = 0;
    if (sscanf(c->greeting, "%d %d %n", &size, &attempt, &used) != 2) return refuse(c, "that was no greeting");
    const char *who = c->greeting + used;
    if (size != server->size || rank < 0 || rank >= server->size) {
        snprintf(why, sizeof why,
                 "rank 0 belongs to a job of %d ranks, but this is rank %lld of %d; give all ranks the same %s, and "
                 "all hosts the same --nnodes and --nproc-per-node",
                 server->size, (long long)rank, size, rm_member_name("world_size"));
        return send_away(server, c, rank, size, who, why);
    }
    if (!refuse_attempt(server, c, (long long)rank, attempt)) return false;
    for (int i = 0; i < server->n_clients; i++)
        if (server->clients[i].known && server->clients[i].rank == rank) {
            snprintf(why, sizeof why,
                     "rank %lld is already present (%s): two jobs use one port, or two processes one %s",
                     (long long)rank, server->clients[i].who, rm_member_name("rank"));
            return send_away(server, c, rank, size, who, why);
        }
    c->known = true;
    c->rank = (int32_t)rank;
    c->deadline_ns = 0;
    snprintf(c->who, sizeof c->who, "%.95s", who);
    return true;
}

static bool prove(rm_kv_server *server, client *c, const char *value) {
    uint8_t proof[RM_HMAC_BYTES];
    int64_t rank = (int64_t)le64toh(c->meeting.rank);
    rm_kv_proof(server->secret, "client", &c->meeting, proof);
    if (!rm_hmac_same(proof, (const uint8_t *)value)) return refuse_stranger(server, c, rank);
    if (!take_rank(server, c, rank)) return false;
    rm_kv_proof(server->secret, "server", &c->meeting, proof);
    return reply(c, RM_KV_FINE, 0, proof, sizeof proof);
}

static bool answer_get(rm_kv_server *server, client *c, const char *key, int64_t wait_ms) {
    entry *found = *find(server, key);
    if (found) return reply(c, RM_KV_FINE, 0, found->value, found->bytes);
    if (wait_ms < 0) return reply(c, RM_KV_NOT_THERE, 0, NULL, 0);
    c->waits = true; /* the request stays in `in` and is tried again whenever a key is set */
    c->deadline_ns = rm_now_ns() + (uint64_t)wait_ms * 1000000u;
    return true;
}

static bool add(rm_kv_server *server, client *c, const char *key, int64_t delta) {
    entry *found = *find(server, key);
    uint64_t sum = 0;
    if (found && found->bytes != sizeof sum) return refuse(c, "cannot add to a key that does not hold a number");
    if (found) memcpy(&sum, found->value, sizeof sum);
    sum = le64toh(sum) + (uint64_t)delta;
    if (!delta) return reply(c, RM_KV_FINE, (int64_t)sum, NULL, 0);
    uint64_t kept = htole64(sum);
    return put(server, key, &kept, sizeof kept) && reply(c, RM_KV_FINE, (int64_t)sum, NULL, 0);
}

static void look_again(rm_kv_server *server);

/* Serves one complete request. Returns false to close the connection. */
static bool serve(rm_kv_server *server, client *c, const rm_kv_request *request) {
    char key[256];
    const char *value = c->in + sizeof *request + request->key_bytes;
    uint32_t bytes = le32toh(request->value_bytes);
    int64_t number = (int64_t)le64toh((uint64_t)request->number);
    memcpy(key, c->in + sizeof *request, request->key_bytes);
    key[request->key_bytes] = 0;
    bool fine = true;
    switch (request->op) {
    case RM_KV_HELLO:
        return hello(c, number, value, bytes);
    case RM_KV_PROOF:
        return prove(server, c, value);
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
        snprintf(key, sizeof key, "left/%d", c->rank);
        (void)put(server, key, c->who, (uint32_t)strlen(c->who));
        return reply(c, RM_KV_FINE, 0, NULL, 0);
    }
    look_again(server);
    return fine;
}

/* Whether the received bytes can be the start of a valid request; *whole: the total size of that request. */
static bool plausible(const client *c, const rm_kv_request *head, size_t *whole) {
    uint32_t bytes = le32toh(head->value_bytes);
    *whole = sizeof *head + head->key_bytes + bytes;
    if (le32toh(head->magic) != RM_KV_MAGIC || head->key_bytes > RM_KV_KEY_BYTES) return false;
    if (c->known) return head->op >= RM_KV_SET && head->op <= RM_KV_BYE && bytes <= RM_KV_VALUE_BYTES;
    if (c->greeted) return head->op == RM_KV_PROOF && bytes == RM_HMAC_BYTES;
    return head->op == RM_KV_HELLO && bytes >= RM_KV_NONCE_BYTES && bytes < RM_KV_NONCE_BYTES + sizeof c->greeting;
}

/* Serves the first request in `in` if it is complete. Also returns true if it is not complete yet. */
static bool serve_head(rm_kv_server *server, client *c, bool *served) {
    rm_kv_request head;
    size_t whole;
    *served = false;
    if (c->in_bytes < sizeof head) return true;
    memcpy(&head, c->in, sizeof head);
    if (!plausible(c, &head, &whole)) return refuse_version(server, c, &head);
    if (c->in_bytes < whole) return reserve(&c->in, &c->in_room, whole);
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
    if (c->goodbye || !reserve(&c->in, &c->in_room, 512)) return false; /* it closes, or sends more than it should */
    /* A client has one request at a time: more data are not from a rank of this job */
    if (c->in_bytes == c->in_room) return !c->waits;
    ssize_t n = recv(c->fd, c->in + c->in_bytes, c->in_room - c->in_bytes, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (n == 0) return false;
    c->in_bytes += (size_t)n;
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
    if (!*find(server, "lost")) (void)put(server, "lost", who, (uint32_t)length); /* the first one is the cause */
    look_again(server);
}

/* Tries requests that wait for a key again; those whose time is up get their reply. */
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
    int64_t n = server->n_clients + 1;
    return rm_grow(&server->clients, &server->room, n, sizeof *server->clients) &&
           rm_grow(&server->poll, &server->poll_room, n + 2, sizeof *server->poll);
}

static int oldest_stranger(const rm_kv_server *server) {
    int oldest = -1;
    for (int i = 0; i < server->n_clients; i++) {
        const client *c = &server->clients[i];
        if (!c->known && (oldest < 0 || c->deadline_ns < server->clients[oldest].deadline_ns)) oldest = i;
    }
    return oldest;
}

/* If there are too many strangers, closes the one that has been silent for longest: the newest may be a rank. */
static void take_in(rm_kv_server *server) {
    int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
        server->full_ns = rm_now_ns() + FULL_NS; /* a connection left in the queue would make poll return at once */
    if (fd < 0) return;
    if (server->n_clients >= server->size + STRANGERS) drop(server, oldest_stranger(server));
    if (!make_room(server)) {
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
        /* From the end: drop() fills a gap with the last entry, which has already been handled */
        for (int i = n - 1; i >= 0; i--)
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
    rm_free(server->secret);
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

remat_status rm_kv_server_start(int listen_fd, const rm_kv_config *config, rm_kv_server **out) {
    rm_kv_server *server = rm_calloc(1, sizeof *server);
    if (!server) {
        close(listen_fd);
        FAIL(MEMORY, "out of memory for the store");
    }
    server->listen_fd = listen_fd;
    server->size = config->size;
    server->attempt = config->attempt;
    server->secret = rm_strdup(config->secret ? config->secret : "");
    server->wake = eventfd(0, EFD_CLOEXEC);
    if (server->wake < 0 || !server->secret || !make_room(server) || start_thread(server)) {
        server_free(server);
        FAIL(MEMORY, "out of memory, descriptors or threads for the store");
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
