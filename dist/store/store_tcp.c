/* store_tcp.c: a rank's end of the tcp store. Rank 0 also starts the server, and then connects to itself like the
 * others. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dist/store/store_kind.h"
#include "memory/clock.h"
#include "memory/host.h"

#define GRACE_MS 10000 /* the default */

/* late: rank 0 still owes a reply that this rank has given up on. broken: only half a reply has arrived, or the
 * connection has failed, so later data cannot be interpreted. refused: rank 0 has refused this rank; later: only for
 * this attempt. */
typedef struct {
    int fd;
    int32_t rank, size, attempt, port;
    int64_t grace_ms;
    bool late, broken, refused, later, said_unknown, said_later;
    rm_kv_server *server;
    char host[256];      /* the host to connect to */
    char said_host[256]; /* the host in the config */
    char where[300];     /* "rank 0's store at HOST:PORT" */
} tcp_store;

/* ---- Sending and receiving whole messages ----------------------------------------------------------------------- */

static bool send_all(int fd, const void *data, size_t bytes) {
    for (const char *at = data; bytes > 0;) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* 1: all received; 0: the other end has closed; -1: timed out. */
static int receive_all(int fd, void *data, size_t bytes, int64_t deadline_ms) {
    for (char *at = data; bytes > 0;) {
        int64_t left = deadline_ms - rm_now_ms();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int n_ready = poll(&ready, 1, left > 0 ? (left < 1 << 30 ? (int)left : 1 << 30) : 0);
        if (n_ready < 0 && errno == EINTR) continue;
        if (n_ready <= 0) return -1;
        ssize_t n = recv(fd, at, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

static remat_status no_answer(const tcp_store *store, int got) {
    if (got < 0) FAIL(PEER, "%s does not answer; check whether rank 0 is stopped or the network is down", store->where);
    FAIL(PEER, "%s is gone: rank 0 has ended or dropped the connection", store->where);
}

static remat_status not_remat(const tcp_store *store) {
    FAIL(IO, "the program that answers at %s is not Remat; another program uses that port", store->where);
}

static remat_status give_up(tcp_store *store, int got) {
    store->broken = true;
    return no_answer(store, got);
}

/* As receive_all, for the rest of a reply that has begun. */
static remat_status receive_rest(tcp_store *store, void *data, size_t bytes, int64_t deadline_ms) {
    int got = receive_all(store->fd, data, bytes, deadline_ms);
    return got > 0 ? REMAT_OK : give_up(store, got);
}

static bool begins_to_answer(const tcp_store *store, int64_t deadline_ms) {
    for (;;) {
        int64_t left = deadline_ms - rm_now_ms();
        struct pollfd ready = {.fd = store->fd, .events = POLLIN};
        int n_ready = poll(&ready, 1, left > 0 ? (left < 1 << 30 ? (int)left : 1 << 30) : 0);
        if (n_ready > 0) return true;
        if (n_ready == 0 || errno != EINTR) return false;
    }
}

static remat_status receive_head(tcp_store *store, rm_kv_reply *reply, int64_t deadline_ms) {
    store->late = !begins_to_answer(store, deadline_ms);
    if (store->late) return no_answer(store, -1);
    TRY(receive_rest(store, reply, sizeof *reply, deadline_ms));
    store->broken = le32toh(reply->magic) != RM_KV_MAGIC;
    REQUIRE(!store->broken || !RM_KV_IS_STORE(le32toh(reply->magic)), INVALID,
            "%s runs another version of Remat; all ranks must run the same", store->where);
    if (store->broken) return not_remat(store);
    reply->answer = le32toh(reply->answer);
    reply->value_bytes = le32toh(reply->value_bytes);
    reply->number = (int64_t)le64toh((uint64_t)reply->number);
    return REMAT_OK;
}

static remat_status skip(tcp_store *store, uint32_t bytes) {
    char part[4096];
    int64_t deadline = rm_now_ms() + store->grace_ms;
    while (bytes > 0) {
        uint32_t n = bytes < sizeof part ? bytes : (uint32_t)sizeof part;
        TRY(receive_rest(store, part, n, deadline));
        bytes -= n;
    }
    return REMAT_OK;
}

/* A reply that this rank no longer waits for arrives before the next one, and must not be taken for it. */
static remat_status skip_late(tcp_store *store) {
    rm_kv_reply reply;
    if (!store->late) return REMAT_OK;
    TRY(receive_head(store, &reply, rm_now_ms() + store->grace_ms));
    return skip(store, reply.value_bytes);
}

static remat_status receive_refusal(tcp_store *store, const rm_kv_reply *reply, int64_t deadline) {
    char why[512] = "";
    store->refused = true;
    store->later = reply->answer == RM_KV_LATER;
    if (reply->value_bytes >= sizeof why) return give_up(store, 0);
    TRY(receive_rest(store, why, reply->value_bytes, deadline));
    return rm_fail(reply->answer == RM_KV_MISUSED ? REMAT_INVALID : REMAT_PEER, "%s refuses rank %d: %s", store->where,
                   store->rank, why);
}

static bool send_request(const tcp_store *store, rm_kv_op op, const char *key, const void *value, uint32_t bytes,
                         int64_t number) {
    size_t key_bytes = strlen(key);
    rm_kv_request request = {.magic = htole32(RM_KV_MAGIC),
                             .op = (uint8_t)op,
                             .key_bytes = (uint8_t)key_bytes,
                             .value_bytes = htole32(bytes),
                             .number = (int64_t)htole64((uint64_t)number)};
    char head[sizeof request + 256];
    memcpy(head, &request, sizeof request);
    memcpy(head + sizeof request, key, key_bytes);
    return send_all(store->fd, head, sizeof request + key_bytes) && send_all(store->fd, value, bytes);
}

/* Sends one request and receives its reply, except for the reply's value. */
static remat_status ask(tcp_store *store, rm_kv_op op, const char *key, const void *value, uint32_t bytes,
                        int64_t number, int64_t patience_ms, rm_kv_reply *reply) {
    if (store->broken) return no_answer(store, 0);
    TRY(skip_late(store));
    if (!send_request(store, op, key, value, bytes, number)) return give_up(store, 0);
    int64_t deadline = rm_now_ms() + patience_ms + store->grace_ms;
    TRY(receive_head(store, reply, deadline));
    if (reply->answer >= RM_KV_REFUSED) return receive_refusal(store, reply, deadline);
    return REMAT_OK;
}

/* ---- Requests --------------------------------------------------------------------------------------------------- */

static remat_status set(void *kind, const char *key, const void *value, uint32_t bytes) {
    rm_kv_reply reply;
    return ask(kind, RM_KV_SET, key, value, bytes, 0, 0, &reply);
}

static remat_status get(void *kind, const char *key, void *value, uint32_t capacity, uint32_t *bytes,
                        int64_t timeout_ms) {
    tcp_store *store = kind;
    rm_kv_reply reply;
    TRY(ask(store, RM_KV_GET, key, NULL, 0, timeout_ms, timeout_ms > 0 ? timeout_ms : 0, &reply));
    if (reply.answer == RM_KV_NOT_THERE && timeout_ms < 0) FAIL(MISSING, "there is no '%s' in the store", key);
    if (reply.answer == RM_KV_NOT_THERE)
        FAIL(PEER, "rank %d waited %lld ms for '%s' in %s, and no rank has set it", store->rank, (long long)timeout_ms,
             key, store->where);
    *bytes = reply.value_bytes;
    if (!value) return skip(store, reply.value_bytes);
    if (reply.value_bytes > capacity) {
        TRY(skip(store, reply.value_bytes));
        FAIL(INVALID, "'%s' in the store has %u bytes, but there is room for only %u", key, reply.value_bytes,
             capacity);
    }
    return receive_rest(store, value, reply.value_bytes, rm_now_ms() + store->grace_ms);
}

static remat_status add(void *kind, const char *key, int64_t delta, int64_t *sum) {
    rm_kv_reply reply;
    TRY(ask(kind, RM_KV_ADD, key, NULL, 0, delta, 0, &reply));
    *sum = reply.number;
    return REMAT_OK;
}

/* The server records ranks that go without saying goodbye. If the server itself is gone, rank 0 was lost. */
static bool lost(void *kind, int32_t rank, char *who, size_t bytes) {
    char key[32], text[128] = "";
    uint32_t length;
    snprintf(key, sizeof key, rank < 0 ? "lost" : "lost/%d", rank);
    remat_status status = get(kind, key, text, sizeof text - 1, &length, -1);
    if (status == REMAT_MISSING || (status && rank > 0)) return false;
    if (status)
        snprintf(text, sizeof text, "%swhose store does not answer%s", rank < 0 ? "0 (" : "", rank < 0 ? ")" : "");
    snprintf(who, bytes, "%s", text);
    return true;
}

static bool left(void *kind, int32_t rank, char *who, size_t bytes) {
    char key[32];
    uint32_t length = 0;
    snprintf(key, sizeof key, "left/%d", rank);
    if (get(kind, key, who, (uint32_t)bytes - 1, &length, -1)) return false;
    who[length] = 0;
    return true;
}

static bool address(void *kind, bool of_rank_0, char *text, size_t bytes) {
    const tcp_store *store = kind;
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    int failed = of_rank_0 ? getpeername(store->fd, (struct sockaddr *)&at, &length)
                           : getsockname(store->fd, (struct sockaddr *)&at, &length);
    return !failed && !getnameinfo((struct sockaddr *)&at, length, text, (socklen_t)bytes, NULL, 0, NI_NUMERICHOST);
}

/* The request that waits reads the end of the connection. */
static void cut(void *kind) { (void)shutdown(((tcp_store *)kind)->fd, SHUT_RDWR); }

static int32_t port(const void *kind) { return ((const tcp_store *)kind)->port; }

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

/* Returns -1 with errno. */
static int listen_at(const struct sockaddr *at, socklen_t length) {
    int one = 1, zero = 0, fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (at->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (!bind(fd, at, length) && !listen(fd, 1024)) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int listen_everywhere(uint16_t port_number) {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port_number), .sin6_addr = in6addr_any};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port_number)};
    int fd = listen_at((struct sockaddr *)&v6, sizeof v6); /* accepts IPv4 and IPv6 */
    return fd >= 0 || errno == EADDRINUSE ? fd : listen_at((struct sockaddr *)&v4, sizeof v4);
}

static bool is_loopback(const struct sockaddr *at) {
    if (at->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == 127;
    return at->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at)->sin6_addr);
}

static bool is_any(const struct sockaddr *at) {
    if (at->sa_family == AF_INET) return !((const struct sockaddr_in *)at)->sin_addr.s_addr;
    return at->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)at)->sin6_addr);
}

/* If the name has a single address: that address, and its length. 0 if it is unknown how other ranks reach this host:
 * it has several addresses, or it is this host's own name, which may be 127.0.1.1 here and something else elsewhere. */
static socklen_t only_address(const char *host, uint16_t port_number, struct sockaddr_storage *at) {
    char service[12];
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    snprintf(service, sizeof service, "%d", port_number);
    if (!strcmp(host, "localhost")) host = "127.0.0.1"; /* on many systems localhost is also ::1 */
    bool named = getaddrinfo(host, service, &hints, &found);
    hints.ai_flags = 0;
    if (named && getaddrinfo(host, service, &hints, &found)) return 0;
    bool only = !found->ai_next && !is_any(found->ai_addr) && !(named && is_loopback(found->ai_addr));
    socklen_t length = only ? found->ai_addrlen : 0;
    memcpy(at, found->ai_addr, length);
    freeaddrinfo(found);
    return length;
}

/* Returns -1 with errno. Listens at all addresses of this host if the right one is unknown or belongs to another
 * machine that forwards to this one. */
static int open_listener(const char *host, uint16_t port_number) {
    struct sockaddr_storage at;
    socklen_t length = only_address(host, port_number, &at);
    int fd = length ? listen_at((struct sockaddr *)&at, length) : -1;
    return fd >= 0 || (length && errno == EADDRINUSE) ? fd : listen_everywhere(port_number);
}

/* Whether a socket of this host could have this address. */
static bool is_own(const struct addrinfo *a) {
    int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool own = fd >= 0 && (!bind(fd, a->ai_addr, a->ai_addrlen) || errno != EADDRNOTAVAIL);
    if (fd >= 0) close(fd);
    return own;
}

static bool doubt(const void *kind, char *text, size_t bytes) {
    const char *host = ((const tcp_store *)kind)->said_host;
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_DGRAM};
    int failed = getaddrinfo(host, NULL, &hints, &found);
    bool own = false;
    for (const struct addrinfo *a = found; a; a = a->ai_next) own |= is_own(a);
    if (found) freeaddrinfo(found);
    if (own) return false;
    snprintf(text, bytes,
             failed
                 ? "'%.255s' (MASTER_ADDR), where the other ranks look for rank 0, is not a name that this host knows"
                 : "%.255s (MASTER_ADDR), where the other ranks look for rank 0, is not an address of this host",
             host);
    return true;
}

/* 0: not a socket with an address. */
static int32_t port_of(int fd) {
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &length)) return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

remat_status rm_kv_listen(const char *host, int32_t *port_number, const char *remedy, int *listen_fd) {
    *listen_fd = open_listener(host, (uint16_t)*port_number);
    if (*listen_fd < 0 && errno == EADDRINUSE)
        FAIL(IO,
             "port %d on this host is in use by another job or the rest of one; %s, or find the process with `ss -ltnp "
             "sport = :%d`",
             *port_number, remedy, *port_number);
    REQUIRE(*listen_fd >= 0, IO, "cannot listen on port %d: %s", *port_number, strerror(errno));
    *port_number = port_of(*listen_fd);
    return REMAT_OK;
}

static remat_status listen_on(const rm_kv_config *config, int *out) {
    char remedy[400];
    int32_t chosen = config->port;
    snprintf(remedy, sizeof remedy, "choose another (MASTER_PORT, or %s=tcp://%s:PORT)", rm_member_name("init_method"),
             config->host);
    return rm_kv_listen(config->host, &chosen, remedy, out);
}

/* The launcher's socket may have been closed on the way to this process, and its number may now belong to another
 * file. */
static remat_status take_over(const rm_kv_config *config) {
    int listens = 0, fd = config->listen_fd;
    socklen_t length = sizeof listens;
    bool is_ours = !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) && listens &&
                   (!config->port || port_of(fd) == config->port);
    REQUIRE(is_ours, IO,
            "descriptor %d is not the socket that listens on port %d; a program between the launcher and this one has "
            "closed it (Python's subprocess needs close_fds=False)",
            fd, config->port);
    return REMAT_OK;
}

/* The address at which rank 0 reaches its own socket, which listens at one address or at all. */
static void own_address(int fd, char *host, size_t bytes) {
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    int failed = getsockname(fd, (struct sockaddr *)&at, &length) || is_any((struct sockaddr *)&at) ||
                 getnameinfo((struct sockaddr *)&at, length, host, (socklen_t)bytes, NULL, 0, NI_NUMERICHOST);
    if (failed) snprintf(host, bytes, "127.0.0.1");
}

static remat_status serve(const rm_kv_config *config, tcp_store *store) {
    int fd = config->listen_fd;
    if (fd > 0)
        TRY(take_over(config));
    else
        TRY(listen_on(config, &fd));
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    store->port = port_of(fd);
    own_address(fd, store->host, sizeof store->host);
    return rm_kv_server_start(fd, config, &store->server);
}

/* Returns -1 with errno if nobody listens there or it cannot be reached. */
static int connect_once(const struct addrinfo *address, int64_t timeout_ms) {
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0, one = 1;
    if (fd < 0) return -1;
    socklen_t length = sizeof error;
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    if (connect(fd, address->ai_addr, address->ai_addrlen)) error = errno;
    if (error == EINPROGRESS) {
        error = ETIMEDOUT;
        if (poll(&ready, 1, (int)timeout_ms) > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error) {
        close(fd);
        errno = error;
        return -1;
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one); /* so that the server notices a host that vanishes */
    return fd;
}

/* Looks up names anew each time: on a cluster, a host's name may appear a little later than the job starts. */
int rm_kv_connect(const char *host, int32_t port_number, bool *unknown, char *why, size_t bytes) {
    char service[12];
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
    snprintf(service, sizeof service, "%d", port_number);
    int failed = getaddrinfo(host, service, &hints, &found), fd = -1;
    *unknown = failed != 0;
    if (failed) snprintf(why, bytes, "%s", failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed));
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = connect_once(a, 3000);
        if (fd < 0) snprintf(why, bytes, "%s", strerror(errno));
    }
    if (found) freeaddrinfo(found);
    return fd;
}

static void say_unknown(const rm_kv_config *config, const char *why) {
    char sentence[512];
    snprintf(sentence, sizeof sentence,
             "finds no host '%s', where rank 0 should be (%s); check that this is its name. It is looked up again for "
             "up to %lld s",
             config->host, why, (long long)config->timeout_ms / 1000);
    if (config->say) config->say(config->context, rm_printable(sentence));
}

/* An unknown name is reported once, and immediately: the host may appear later, or the name may be wrong. */
static remat_status reach(const rm_kv_config *config, int64_t deadline, tcp_store *store) {
    char why[128] = "";
    bool unknown = false;
    for (long pause_us = 1000;; pause_us = pause_us < 50000 ? pause_us * 2 : pause_us) {
        store->fd = rm_kv_connect(store->host, store->port, &unknown, why, sizeof why);
        store->late = store->broken = store->refused = store->later = false;
        if (store->fd >= 0) return REMAT_OK;
        if (unknown && !store->said_unknown) say_unknown(config, why);
        store->said_unknown |= unknown;
        if (rm_now_ms() >= deadline) break;
        usleep((useconds_t)pause_us);
    }
    REQUIRE(!unknown, PEER, "rank %d could not find rank 0's host '%s' for %lld ms: %s; check that this is its name",
            config->rank, config->host, (long long)config->timeout_ms, why);
    FAIL(PEER,
         "rank %d cannot reach rank 0 at %s:%d within %lld ms: %s; check that rank 0 runs there and that the port is "
         "open",
         config->rank, config->host, config->port, (long long)config->timeout_ms, why);
}

/* One of the two requests of store_kind.h. Waits longer: a launcher's socket listens before there is a rank 0 to
 * reply. */
static remat_status exchange(tcp_store *store, rm_kv_op op, const void *value, size_t bytes, int64_t patience_ms,
                             void *answer, uint32_t answer_bytes) {
    rm_kv_reply reply;
    TRY(ask(store, op, "", value, (uint32_t)bytes, store->rank, patience_ms, &reply));
    if (reply.value_bytes != answer_bytes) return not_remat(store);
    return receive_rest(store, answer, answer_bytes, rm_now_ms() + store->grace_ms);
}

static remat_status greet(const rm_kv_config *config, tcp_store *store, int64_t patience_ms) {
    char who[96], text[RM_KV_NONCE_BYTES + 112];
    uint8_t proof[RM_HMAC_BYTES], answer[RM_HMAC_BYTES];
    rm_kv_meeting meeting = {.rank = htole64((uint64_t)store->rank)};
    REQUIRE(rm_kv_nonce(meeting.client), IO, "the system provides no random numbers: %s", strerror(errno));
    memcpy(text, meeting.client, sizeof meeting.client);
    rm_kv_who(who, sizeof who);
    size_t room = sizeof text - sizeof meeting.client;
    size_t length = (size_t)snprintf(text + sizeof meeting.client, room, "%d %d %s", store->size, store->attempt, who);
    if (length >= room) length = room - 1;
    TRY(exchange(store, RM_KV_HELLO, text, sizeof meeting.client + length, patience_ms, meeting.server,
                 sizeof meeting.server));
    rm_kv_proof(config->secret, "client", &meeting, proof);
    TRY(exchange(store, RM_KV_PROOF, proof, sizeof proof, patience_ms, answer, sizeof answer));
    rm_kv_proof(config->secret, "server", &meeting, proof);
    store->refused = !rm_hmac_same(proof, answer);
    REQUIRE(!store->refused, PEER,
            "the program that answers in place of %s does not know this job's secret; choose another port",
            store->where);
    return REMAT_OK;
}

static void say_later(const rm_kv_config *config, tcp_store *store, int64_t left_ms) {
    char sentence[900];
    if (!store->said_later && config->say) {
        snprintf(sentence, sizeof sentence, "%.700s; waiting for the next one, up to %.4g s", remat_last_error(),
                 1e-3 * (double)(left_ms > 0 ? left_ms : 0));
        config->say(config->context, sentence);
    }
    store->said_later = true;
}

/* A connection that is closed without a reply may have come when there were too many strangers; one that is refused,
 * while an earlier attempt is ending. */
static remat_status join(const rm_kv_config *config, tcp_store *store) {
    int64_t start = rm_now_ms(), deadline = start + config->timeout_ms;
    for (;;) {
        TRY(reach(config, deadline, store));
        int64_t left = deadline - rm_now_ms();
        remat_status status = greet(config, store, left > 0 ? left : 0);
        bool waits = store->later || (!store->refused && !store->late);
        if (status != REMAT_PEER || rm_now_ms() >= (waits ? deadline : start + config->stale_ms)) return status;
        if (store->later) say_later(config, store, deadline - rm_now_ms());
        close(store->fd);
        store->fd = -1;
        usleep(50000);
    }
}

static void close_store(void *kind) {
    tcp_store *store = kind;
    rm_kv_reply reply;
    if (store->fd >= 0) {
        if (store->late)
            (void)send_request(store, RM_KV_BYE, "", NULL, 0, 0);
        else
            (void)ask(store, RM_KV_BYE, "", NULL, 0, 0, 0, &reply);
        close(store->fd);
    }
    rm_kv_server_stop(store->server);
    rm_free(store);
}

static remat_status open_store(const rm_kv_config *config, void **out) {
    bool serves = config->rank == 0;
    REQUIRE((config->port > 0 || serves) && config->port <= 65535, INVALID, "port %d is not possible; use 1 to 65535",
            config->port);
    REQUIRE(strlen(config->host) < 256, INVALID, "the name of rank 0's host has %zu characters, which is too long",
            strlen(config->host));
    tcp_store *store = rm_calloc(1, sizeof *store);
    REQUIRE(store, MEMORY, "out of memory for a store");
    *store = (tcp_store){.fd = -1, .rank = config->rank, .size = config->size, .port = config->port};
    store->attempt = config->attempt;
    snprintf(store->host, sizeof store->host, "%s", config->host);
    snprintf(store->said_host, sizeof store->said_host, "%s", config->host);
    store->grace_ms = config->grace_ms ? config->grace_ms : GRACE_MS;
    remat_status status;
    if (serves) TRY_GOTO(status, failed, serve(config, store));
    snprintf(store->where, sizeof store->where, "rank 0's store at %s:%d", config->host, store->port);
    TRY_GOTO(status, failed, join(config, store));
    *out = store;
    return REMAT_OK;
failed:
    if (store->fd >= 0) close(store->fd);
    rm_kv_server_stop(store->server);
    rm_free(store);
    return status;
}

const rm_kv_kind rm_kv_tcp = {.open = open_store,
                              .close = close_store,
                              .set = set,
                              .get = get,
                              .add = add,
                              .lost = lost,
                              .left = left,
                              .cut = cut,
                              .doubt = doubt,
                              .port = port,
                              .address = address};
