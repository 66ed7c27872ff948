/* test_store_tcp.c: the store over tcp: ports and addresses, clients and servers that break the protocol, a slow rank 0. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/resource.h>

#include "memory/clock.h"
#include "tests/dist/stores.h"
#include "tests/ports.h"
#include "tests/tries.h"

/* ---- Ports and addresses ----------------------------------------------------------------------------------------- */

START_TEST(port_in_use_is_an_error) {
    int port, fd = free_port(&port);
    char words[40];
    rm_kv *store;
    rm_kv_config config = {.host = "localhost", .port = port, .size = 2};
    snprintf(words, sizeof words, "port %d on this host is in use", port);
    ck_fails(rm_kv_open(&config, &store), IO, words);
    ck_assert(strstr(remat_last_error(), "MASTER_PORT"));
    close(fd);
    config.port = 70000;
    ck_fails(rm_kv_open(&config, &store), INVALID, "65535");
}
END_TEST

/* A socket passed on by a launcher, and what may happen to it on the way. */
START_TEST(launcher_socket_is_taken_over) {
    int port = 0, fd, other = 0, other_fd;
    rm_kv *store;
    ck_ok(rm_kv_listen("localhost", &port, "remedy", &fd));
    ck_assert_int_gt(port, 0);
    ck_fails(rm_kv_listen("localhost", &port, "do this", &other_fd), IO,
             "is in use by another job or the rest of one; do this");
    ck_ok(rm_kv_listen("localhost", &other, "", &other_fd));
    rm_kv_config config = {.host = "localhost", .port = port, .listen_fd = other_fd, .size = 1};
    ck_fails(rm_kv_open(&config, &store), IO, "is not the socket that listens on port");
    close(other_fd);
    ck_fails(rm_kv_open(&config, &store), IO, "close_fds=False");
    config.listen_fd = 1;
    ck_fails(rm_kv_open(&config, &store), IO, "descriptor 1 is not the socket");
    config.listen_fd = fd;
    ck_ok(rm_kv_open(&config, &store));
    rm_kv_close(store);
}
END_TEST

/* Rank 0 bound a port itself; the others use either kind of address. */
START_TEST(ranks_connect_by_ipv4_and_ipv6) {
    static const char *const hosts[][2] = {
        {"localhost", "127.0.0.1"}, {"0.0.0.0", "127.0.0.1"}, {"::", "::1"}, {"::1", "::1"}};
    rm_kv *store, *other;
    char text[64];
    int probe = socket(AF_INET6, SOCK_STREAM, 0), port;
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    bool v6 = probe >= 0 && !bind(probe, (struct sockaddr *)&at, sizeof at);
    if (probe >= 0) close(probe);
    for (int i = 0; i < (v6 ? 4 : 2); i++) {
        port = reserved_port();
        ck_ok(rm_kv_open(&(rm_kv_config){.host = hosts[i][0], .port = port, .size = 2}, &store));
        ck_assert_int_eq(rm_kv_port(store), port);
        ck_ok(rm_kv_open(&(rm_kv_config){.host = hosts[i][1], .port = port, .rank = 1, .size = 2}, &other));
        ck_assert(rm_kv_address(other, true, text, sizeof text));
        ck_assert_str_eq(text, hosts[i][1]);
        rm_kv_close(other);
        rm_kv_close(store);
    }
}
END_TEST

/* Rank 0 listens only at the address that the others use, if it can know it. */
START_TEST(rank_0_listens_only_at_its_address) {
    static const char *const hosts[][2] = {{"127.0.0.2", "127.0.0.2"},     {"0x7f000003", "127.0.0.3"},
                                           {"localhost", "127.0.0.1"},     {"0.0.0.0", "::"},
                                           {"no-such-host.invalid", "::"}, {"192.0.2.1", "::"}};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        struct sockaddr_storage at;
        socklen_t length = sizeof at;
        int32_t port = 0;
        int fd;
        char text[64];
        ck_ok(rm_kv_listen(hosts[i][0], &port, "", &fd));
        ck_assert(!getsockname(fd, (struct sockaddr *)&at, &length));
        ck_assert(!getnameinfo((struct sockaddr *)&at, length, text, sizeof text, NULL, 0, NI_NUMERICHOST));
        if (!strcmp(text, "0.0.0.0")) strcpy(text, "::"); /* without IPv6 */
        ck_assert_msg(!strcmp(text, hosts[i][1]), "%s is listened for at %s", hosts[i][0], text);
        close(fd);
    }
    int port = reserved_port();
    rm_kv *store, *other;
    rm_kv_config config = {.host = "127.0.0.2", .port = port, .size = 2, .timeout_ms = 5000};
    ck_ok(rm_kv_open(&config, &store)); /* rank 0 reaches itself there, too */
    config.rank = 1;
    ck_ok(rm_kv_open(&config, &other));
    rm_kv_close(other);
    config.host = "127.0.0.1";
    config.timeout_ms = 1;
    ck_fails(rm_kv_open(&config, &other), PEER, "refused");
    rm_kv_close(store);
}
END_TEST

static char told[2000];
static void hear(void *context, const char *sentence) {
    (void)context;
    strncat(told, sentence, sizeof told - strlen(told) - 1);
}

/* Reported immediately, and not again with each look-up. */
START_TEST(unknown_host_is_reported_once) {
    rm_kv *store;
    rm_kv_config config = {
        .host = "no-such-\x1bhost.invalid", .port = 5, .rank = 1, .size = 2, .timeout_ms = 300, .say = hear};
    ck_fails(rm_kv_open(&config, &store), PEER, "rank 0's host 'no-such-?host.invalid' for 300 ms");
    static const char words[] = "finds no host 'no-such-?host.invalid', where rank 0 should be (";
    ck_assert_msg(!strncmp(told, words, strlen(words)) && !strstr(told + 1, "finds no host"), "'%s'", told);
}
END_TEST

/* Reads until the other end closes: if this end did so first, what it has sent might be lost. */
static void await_end(int fd) {
    char some[1000];
    while (recv(fd, some, sizeof some, 0) > 0) {}
    close(fd);
}

/* Another program answers at that port. */
static void *greet_wrongly(void *context) {
    int fd = accept(*(int *)context, NULL, NULL);
    const char text[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    if (write(fd, text, sizeof text) < 0) perror("write");
    await_end(fd);
    return NULL;
}
START_TEST(another_program_on_the_port_is_recognised) {
    int port, fd = free_port(&port);
    pthread_t thread;
    rm_kv *store;
    pthread_create(&thread, NULL, greet_wrongly, &fd);
    rm_kv_config config = {.host = "127.0.0.1", .port = port, .rank = 1, .size = 2, .timeout_ms = 5000};
    ck_fails(rm_kv_open(&config, &store), IO, "is not Remat");
    pthread_join(thread, NULL);
    close(fd);
}
END_TEST

static double processor_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- The protocol by hand, without store_tcp.c ---- */

static int knock(int port) {
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(fd >= 0 && !connect(fd, (struct sockaddr *)&at, sizeof at));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return fd;
}

static bool request(int fd, rm_kv_op op, const char *key, const void *value, uint32_t bytes, int64_t number) {
    rm_kv_request head = {.magic = htole32(RM_KV_MAGIC),
                          .op = (uint8_t)op,
                          .key_bytes = (uint8_t)strlen(key),
                          .value_bytes = htole32(bytes),
                          .number = (int64_t)htole64((uint64_t)number)};
    return send(fd, &head, sizeof head, MSG_NOSIGNAL) == sizeof head &&
           send(fd, key, strlen(key), MSG_NOSIGNAL) == (ssize_t)strlen(key) &&
           send(fd, value, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static rm_kv_reply next_reply(int fd, void *value, size_t room) {
    rm_kv_reply head;
    ck_assert(recv(fd, &head, sizeof head, MSG_WAITALL) == sizeof head);
    head.answer = le32toh(head.answer);
    head.value_bytes = le32toh(head.value_bytes);
    ck_assert(head.value_bytes <= room);
    if (head.value_bytes) ck_assert(recv(fd, value, head.value_bytes, MSG_WAITALL) == (ssize_t)head.value_bytes);
    return head;
}

/* Sends the greeting up to the receipt of rank 0's nonce. */
static void greet_by_hand(int fd, rm_kv_meeting *meeting, const char *who, int rank, int size) {
    char text[RM_KV_NONCE_BYTES + 112];
    *meeting = (rm_kv_meeting){.client = "a nonce", .rank = htole64((uint64_t)rank)};
    memcpy(text, meeting->client, sizeof meeting->client);
    int length = snprintf(text + sizeof meeting->client, 112, "%d 0 %s", size, who);
    ck_assert(request(fd, RM_KV_HELLO, "", text, (uint32_t)(sizeof meeting->client + (size_t)length), rank));
    rm_kv_reply reply = next_reply(fd, meeting->server, sizeof meeting->server);
    ck_assert(reply.answer == RM_KV_FINE && reply.value_bytes == sizeof meeting->server);
}

static int enter_as(const char *who, int port, int rank, int size) {
    rm_kv_meeting meeting;
    uint8_t proof[RM_HMAC_BYTES], answer[RM_HMAC_BYTES];
    int fd = knock(port);
    greet_by_hand(fd, &meeting, who, rank, size);
    rm_kv_proof("ours", "client", &meeting, proof);
    ck_assert(request(fd, RM_KV_PROOF, "", proof, sizeof proof, rank));
    rm_kv_reply reply = next_reply(fd, answer, sizeof answer);
    rm_kv_proof("ours", "server", &meeting, proof);
    ck_assert(reply.answer == RM_KV_FINE && reply.value_bytes == sizeof answer && rm_hmac_same(answer, proof));
    return fd;
}
static int enter_by_hand(int port, int rank, int size) { return enter_as("by hand", port, rank, size); }

/* Waits for the end of the connection without sending anything. Returns the number of bytes received before it. */
static size_t drain(int fd) {
    static char some[1 << 16];
    size_t all = 0;
    for (ssize_t n; (n = recv(fd, some, sizeof some, 0)) != 0; all += (size_t)n)
        if (n < 0) {
            ck_assert_msg(errno == ECONNRESET, "%s, and no end", strerror(errno));
            break;
        }
    return all;
}

/* A client that keeps requesting a large value but reads nothing is dropped before the unread data fill the memory. */
START_TEST(client_that_does_not_read_is_dropped) {
    static char large[RM_KV_VALUE_BYTES];
    place p = make_place(false);
    rm_kv *store;
    char who[128];
    rm_kv_config config = config_for(&p, 0, 2);
    ck_ok(rm_kv_open(&config, &store));
    int fd = enter_by_hand(p.port, 1, 2), asked = 0;
    ck_assert(request(fd, RM_KV_SET, "large", large, sizeof large, 0));
    ck_assert_int_eq(next_reply(fd, NULL, 0).answer, RM_KV_FINE);
    while (asked < 64 && request(fd, RM_KV_GET, "large", NULL, 0, -1)) asked++;
    double start = seconds();
    while (!rm_kv_lost(store, 1, who, sizeof who) && seconds() < start + 20) nap_ms(1);
    ck_assert_msg(rm_kv_lost(store, 1, who, sizeof who), "after %d requests it is still there", asked);
    ck_assert_str_eq(who, "by hand");
    ck_assert_int_lt((int64_t)drain(fd), 32 << 20); /* plus the data that the system buffers */
    close(fd);
    rm_kv_close(store);
}
END_TEST

/* Data after the goodbye cost no processor time. */
START_TEST(client_that_sends_after_goodbye_is_dropped) {
    static const char noise[2000];
    place p = make_place(false);
    rm_kv *store;
    char who[128];
    rm_kv_config config = config_for(&p, 0, 2);
    ck_ok(rm_kv_open(&config, &store));
    int fd = enter_by_hand(p.port, 1, 2);
    ck_assert(request(fd, RM_KV_BYE, "", NULL, 0, 0));
    ck_assert_int_eq(next_reply(fd, NULL, 0).answer, RM_KV_FINE);
    double spent = processor_s();
    ck_assert(send(fd, noise, sizeof noise, MSG_NOSIGNAL) > 0);
    nap_ms(200);
    spent = processor_s() - spent;
    ck_assert_msg(spent < 0.05, "%.3f s of processor time in 0.2 s", spent);
    ck_assert_uint_eq(drain(fd), 0);
    ck_assert(!rm_kv_lost(store, 1, who, sizeof who));
    close(fd);
    rm_kv_close(store);
}
END_TEST

/* Refused: a proof with another secret, a proof overheard on another connection, and requests without a proof. */
START_TEST(client_without_the_secret_is_refused) {
    place p = make_place(false);
    rm_kv *store;
    rm_kv_meeting first, second;
    uint8_t proof[RM_HMAC_BYTES];
    char why[512];
    rm_kv_config config = config_for(&p, 0, 3);
    ck_ok(rm_kv_open(&config, &store));
    for (int i = 0; i < 4; i++) {
        int fd = knock(p.port);
        greet_by_hand(fd, i == 2 ? &second : &first, "by hand", 1, 3);
        if (i < 2) rm_kv_proof(i ? "ours" : "theirs", i ? "server" : "client", &first, proof);
        if (i == 2) rm_kv_proof("ours", "client", &first, proof); /* valid for the earlier connection */
        if (i < 3) ck_assert(request(fd, RM_KV_PROOF, "", proof, sizeof proof, 1));
        if (i < 3) ck_assert_int_eq(next_reply(fd, why, sizeof why).answer, RM_KV_REFUSED);
        if (i == 3) (void)request(fd, RM_KV_GET, "key", NULL, 0, -1);
        ck_assert_uint_eq(drain(fd), 0);
        close(fd);
    }
    ck_assert(memcmp(first.server, second.server, sizeof first.server));
    ck_refused(store, 1, "rank 1 of another job, from 127.0.0.1: the secrets differ");
    rm_kv_close(store);
}
END_TEST

/* Plays rank 0's part of the two requests, with this secret. */
static void answer_greeting(int fd, const char *secret) {
    struct __attribute__((packed)) {
        rm_kv_request head;
        uint8_t value[RM_KV_NONCE_BYTES + 112];
    } hello;
    struct __attribute__((packed)) {
        rm_kv_reply head;
        uint8_t value[RM_KV_NONCE_BYTES];
    } reply = {.head = {.magic = htole32(RM_KV_MAGIC), .value_bytes = htole32(RM_KV_NONCE_BYTES)}, .value = "nonce"};
    rm_kv_meeting meeting = {.rank = htole64(1)};
    need(recv(fd, &hello.head, sizeof hello.head, MSG_WAITALL) == sizeof hello.head, "no greeting");
    need(recv(fd, hello.value, le32toh(hello.head.value_bytes), MSG_WAITALL) > RM_KV_NONCE_BYTES, "no greeting");
    memcpy(meeting.client, hello.value, sizeof meeting.client);
    memcpy(meeting.server, reply.value, sizeof meeting.server);
    need(send(fd, &reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply, "nobody listens");
    need(recv(fd, &hello, sizeof hello.head + RM_HMAC_BYTES, MSG_WAITALL) > 0, "no proof");
    rm_kv_proof(secret, "server", &meeting, reply.value);
    need(send(fd, &reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply, "nobody listens");
}

/* A server without the secret cannot impersonate rank 0. */
static void *play_rank_0(void *context) {
    int fd = accept(*(int *)context, NULL, NULL);
    answer_greeting(fd, "guessed");
    close(fd);
    return NULL;
}
START_TEST(server_without_the_secret_is_refused) {
    int port, fd = free_port(&port);
    pthread_t thread;
    rm_kv *store;
    rm_kv_config config = {
        .host = "127.0.0.1", .port = port, .rank = 1, .size = 2, .secret = "ours", .timeout_ms = 5000};
    pthread_create(&thread, NULL, play_rank_0, &fd);
    ck_fails(rm_kv_open(&config, &store), PEER, "does not know this job's secret");
    pthread_join(thread, NULL);
    close(fd);
}
END_TEST

/* The previous protocol sent a token with each request; the next one will have another digit. Each gets a reply in its
 * own version. */
START_TEST(client_of_another_version_gets_an_error) {
    place p = make_place(false);
    rm_kv *store;
    char why[512];
    rm_kv_config config = config_for(&p, 0, 3);
    ck_ok(rm_kv_open(&config, &store));
    for (char digit = '2'; digit <= '4'; digit += 2) {
        char hello[50] = "RKV0\x01\0\0\0\x0e\0\0\0\x02";
        int fd = knock(p.port);
        hello[3] = digit;
        ck_assert(send(fd, hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
        rm_kv_reply reply = next_reply(fd, why, sizeof why);
        ck_assert(reply.answer == RM_KV_MISUSED && !memcmp(&reply, hello, 4));
        ck_assert_msg(!memcmp(why, "rank 0 runs another version of Remat", 36), "%.*s", (int)reply.value_bytes, why);
        close(fd);
    }
    ck_refused(store, 1, "rank 2, from 127.0.0.1: it runs another version of Remat");
    rm_kv_close(store);
}
END_TEST

static void *be_of_another_version(void *context) {
    rm_kv_reply reply = {.magic = htole32(RM_KV_MAGIC + (1 << 24)), .answer = htole32(RM_KV_MISUSED)};
    char text[200];
    int fd = accept(*(int *)context, NULL, NULL);
    if (recv(fd, text, sizeof text, 0) < 0) perror("recv");
    if (send(fd, &reply, sizeof reply, MSG_NOSIGNAL) < 0) perror("send");
    await_end(fd);
    return NULL;
}
START_TEST(rank_0_of_another_version_is_recognised) {
    int port, fd = free_port(&port);
    pthread_t thread;
    rm_kv *store;
    rm_kv_config config = {.host = "127.0.0.1", .port = port, .rank = 1, .size = 2, .timeout_ms = 5000};
    pthread_create(&thread, NULL, be_of_another_version, &fd);
    ck_fails(rm_kv_open(&config, &store), INVALID, "runs another version of Remat");
    pthread_join(thread, NULL);
    close(fd);
}
END_TEST

/* A rank's name is text that the rank chooses. */
START_TEST(control_characters_in_names_are_removed) {
    place p = make_place(false);
    rm_kv *store;
    char who[128];
    rm_kv_config config = config_for(&p, 0, 2);
    ck_ok(rm_kv_open(&config, &store));
    int fd = enter_as("\x1b]0;owned\x07", p.port, 1, 2);
    close(fd);
    double start = seconds();
    while (!rm_kv_lost(store, 1, who, sizeof who) && seconds() < start + 20) nap_ms(1);
    ck_assert_str_eq(who, "?]0;owned?");
    ck_ok(rm_kv_set(store, "lost/0", "\x1b[2J", 5)); /* and text that it stores about others */
    ck_assert(rm_kv_lost(store, 0, who, sizeof who));
    ck_assert_str_eq(who, "?[2J");
    rm_kv_close(store);
}
END_TEST

/* Silent connections, more than there is room for: the time that a rank takes to get in. */
static double join_among_strangers(void) {
    place p = make_place(false);
    int idle[80];
    rm_kv *store, *other;
    rm_kv_config config = config_for(&p, 0, 2);
    ck_ok(rm_kv_open(&config, &store));
    for (int i = 0; i < 80; i++) idle[i] = knock(p.port);
    double start = seconds();
    config = config_for(&p, 1, 2);
    ck_ok(rm_kv_open(&config, &other));
    double took = seconds() - start;
    ck_assert_uint_eq(drain(idle[0]), 0);
    for (int i = 0; i < 80; i++) close(idle[i]);
    rm_kv_close(other);
    rm_kv_close(store);
    return took;
}

/* Once of some times, since a busy machine may be slow, before the strangers' time is up. */
START_TEST(strangers_do_not_keep_ranks_out) { ck_quick_once(join_among_strangers(), 1.5); }
END_TEST

/* Two connections are closed before rank 0 is ready. */
static void *close_two(void *context) {
    for (int i = 0; i < 2; i++) close(accept(*(int *)context, NULL, NULL));
    return NULL;
}
START_TEST(rank_reconnects_after_a_silent_close) {
    place p = make_place(false);
    pthread_t thread;
    rm_kv *store;
    pthread_create(&thread, NULL, close_two, &p.listen_fd);
    pid_t pid = fork();
    if (!pid) {
        rm_kv_config config = config_for(&p, 1, 2);
        close(p.listen_fd);
        need_ok(rm_kv_open(&config, &store));
        rm_kv_close(store);
        _exit(0);
    }
    pthread_join(thread, NULL);
    rm_kv_config config = config_for(&p, 0, 2);
    ck_ok(rm_kv_open(&config, &store));
    ck_assert_int_eq(end_of(pid), 0);
    rm_kv_close(store);
}
END_TEST

static void *cut_soon(void *store) {
    usleep(100000);
    rm_kv_cut(store);
    return NULL;
}

/* The request waits for a key that nobody sets. */
START_TEST(cut_store_ends_a_request) {
    int port = reserved_port();
    uint32_t bytes;
    char value[8];
    pthread_t thread;
    rm_kv *store, *other;
    ck_ok(rm_kv_open(&(rm_kv_config){.host = "127.0.0.1", .port = port, .size = 2}, &store));
    ck_ok(rm_kv_open(&(rm_kv_config){.host = "127.0.0.1", .port = port, .rank = 1, .size = 2}, &other));
    pthread_create(&thread, NULL, cut_soon, other);
    int64_t start = rm_now_ms();
    ck_fails(rm_kv_get(other, "key", value, sizeof value, &bytes, 60000), PEER, "is gone");
    ck_assert_int_lt(rm_now_ms() - start, 30000);
    pthread_join(thread, NULL);
    ck_fails(rm_kv_set(other, "key", "", 0), PEER, "store");
    ck_ok(rm_kv_set(store, "key", "", 0));
    rm_kv_close(other);
    rm_kv_close(store);
}
END_TEST

/* Connections that send garbage, half a request, a header that promises gigabytes, or nothing: the server keeps
 * working. */
START_TEST(garbage_is_dropped) {
    place p = make_place(false);
    rm_kv *store;
    rm_kv_config config = config_for(&p, 0, 1);
    uint64_t state = 1;
    int idle[70];
    ck_ok(rm_kv_open(&config, &store));
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)p.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 300; i++) {
        unsigned char junk[400];
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&at, sizeof at)) {
            close(fd);
            continue;
        }
        size_t n = next_random(&state) % sizeof junk;
        for (size_t k = 0; k < n; k++) junk[k] = (unsigned char)next_random(&state);
        if (i % 2) memcpy(junk, "RKV3\x01\xff\0\0\xff\xff\xff\xff", 12);
        if (i % 3 == 0) memcpy(junk, "GET / HTTP/1.1\r\n\r\n", 18);
        if (send(fd, junk, n, MSG_NOSIGNAL) < 0 && i < 0) perror("send");
        if (i % 5 == 0) nap_ms(1);
        if (i < 70)
            idle[i] = fd;
        else
            close(fd);
        int64_t sum;
        ck_ok(rm_kv_add(store, "n", 1, &sum));
        ck_assert_int_eq(sum, i + 1);
    }
    for (int i = 0; i < 70; i++) close(idle[i]);
    ck_ok(rm_kv_set(store, "key", "value", 5));
    rm_kv_close(store);
}
END_TEST

/* Faulty ranks of this job: almost valid headers, in pieces, more requests than are answered. The server answers, waits
 * or drops them, and keeps working. */
START_TEST(malformed_messages_are_dropped) {
    place p = make_place(false);
    rm_kv *store;
    rm_kv_config config = config_for(&p, 0, 401);
    uint64_t state = 7;
    ck_ok(rm_kv_open(&config, &store));
    for (int i = 0; i < 400; i++) {
        char text[3000];
        char who[128];
        size_t n = 0;
        int fd = enter_by_hand(p.port, 1 + i, 401) /* each rank once, since a rank cannot come twice */;
        for (int k = 0; k < 8; k++) {
            uint64_t r = next_random(&state);
            rm_kv_request head = {.magic = htole32(RM_KV_MAGIC),
                                  .op = (uint8_t)(r % 16 ? 2 + r % 4 : r >> 8),
                                  .key_bytes = (uint8_t)(r >> 16 & (r >> 24 & 7 ? 3 : 255)),
                                  .value_bytes = htole32((uint32_t)(r >> 32 & (r >> 27 & 7 ? 0x7f : 0xfffff))),
                                  .number = (int64_t)(r >> 30 & 3 ? next_random(&state) % 9 - 1 : next_random(&state))};
            if (r >> 60 == 0) head.magic ^= 1u << (r >> 40 & 31);
            size_t rest = head.key_bytes + le32toh(head.value_bytes);
            if (n + sizeof head + rest > sizeof text) continue;
            memcpy(text + n, &head, sizeof head);
            for (size_t b = 0; b < rest; b++) text[n + sizeof head + b] = "ab/\0"[next_random(&state) % 4];
            n += sizeof head + rest;
        }
        size_t cut = n ? next_random(&state) % n : 0;
        (void)!send(fd, text, cut, MSG_NOSIGNAL);
        if (i % 4 == 0) nap_ms(1);
        (void)!send(fd, text + cut, n - cut - (i % 8 == 0 && n > cut), MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        (void)drain(fd);
        close(fd);
        (void)rm_kv_lost(store, 1, who, sizeof who);
    }
    ck_ok(rm_kv_set(store, "key", "value", 5));
    ck_ok(rm_kv_wait(store, "key", -1));
    rm_kv_close(store);
}
END_TEST

/* ---- A slow or overloaded rank 0 --------------------------------------------------------------------------------- */

static void answer(int fd, const char *value, size_t cut) {
    char text[100];
    rm_kv_reply head = {.magic = htole32(RM_KV_MAGIC), .value_bytes = htole32((uint32_t)strlen(value))};
    memcpy(text, &head, sizeof head);
    memcpy(text + sizeof head, value, strlen(value));
    if (send(fd, text, sizeof head + strlen(value) - cut, MSG_NOSIGNAL) < 0) perror("send");
}

typedef struct {
    int listen_fd;
    sem_t given_up, answered;
} slow_server;

/* Answers the greeting, the first request only when the client has given it up, and the others before they come: the second,
 * and half of the third. No answer is late because this thread is slow. */
static void *be_slow(void *context) {
    slow_server *s = context;
    int fd = accept(s->listen_fd, NULL, NULL);
    answer_greeting(fd, "");
    sem_wait(&s->given_up);
    answer(fd, "the first", 0);
    answer(fd, "the second", 0);
    answer(fd, "the third", 4);
    sem_post(&s->answered);
    await_end(fd);
    return NULL;
}

START_TEST(late_reply_is_not_taken_for_the_next) {
    int port;
    slow_server slow = {.listen_fd = free_port(&port)};
    pthread_t thread;
    rm_kv *store;
    char value[40] = "";
    uint32_t bytes;
    rm_kv_config config = {
        .host = "127.0.0.1", .port = port, .rank = 1, .size = 2, .timeout_ms = 5000, .grace_ms = 400};
    ck_assert(!sem_init(&slow.given_up, 0, 0) && !sem_init(&slow.answered, 0, 0));
    pthread_create(&thread, NULL, be_slow, &slow);
    ck_ok(rm_kv_open(&config, &store));
    ck_fails(rm_kv_get(store, "first", value, sizeof value, &bytes, -1), PEER, "does not answer");
    sem_post(&slow.given_up);
    sem_wait(&slow.answered);
    ck_ok(rm_kv_get(store, "second", value, sizeof value, &bytes, -1));
    ck_assert_msg(bytes == 10 && !memcmp(value, "the second", 10), "'%.*s'", (int)bytes, value);
    ck_fails(rm_kv_get(store, "third", value, sizeof value, &bytes, -1), PEER, "does not answer");
    double quickest = 1e9;
    for (int time = 0; time < 5 && quickest >= 0.2; time++) {
        double start = seconds();
        ck_fails(rm_kv_get(store, "fourth", value, sizeof value, &bytes, -1), PEER, "is gone");
        quickest = fmin(quickest, seconds() - start);
    }
    ck_assert_msg(quickest < 0.2, "%.3f s", quickest);
    rm_kv_close(store);
    pthread_join(thread, NULL);
    close(slow.listen_fd);
}
END_TEST

/* Without descriptors for new connections, the server waits until some are free instead of spinning. */
START_TEST(lack_of_descriptors_does_not_spin) {
    place p = make_place(false);
    rm_kv *store, *other;
    rm_kv_config config = config_for(&p, 0, 2);
    ck_ok(rm_kv_open(&config, &store));
    pid_t pid = fork();
    if (!pid) {
        config = config_for(&p, 1, 2);
        nap_ms(100);
        need_ok(rm_kv_open(&config, &other));
        rm_kv_close(other);
        _exit(0);
    }
    struct rlimit before, none;
    getrlimit(RLIMIT_NOFILE, &before);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = before.rlim_max};
    ck_assert(!setrlimit(RLIMIT_NOFILE, &none));
    double spent = processor_s();
    nap_ms(900);
    spent = processor_s() - spent;
    ck_assert(!setrlimit(RLIMIT_NOFILE, &before));
    ck_assert_msg(spent < 0.1, "%.3f s of processor time in 0.9 s", spent);
    ck_assert_int_eq(end_of(pid), 0);
    rm_kv_close(store);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("tcp");
    tcase_add_test(cases, port_in_use_is_an_error);
    tcase_add_test(cases, launcher_socket_is_taken_over);
    tcase_add_test(cases, ranks_connect_by_ipv4_and_ipv6);
    tcase_add_test(cases, rank_0_listens_only_at_its_address);
    tcase_add_test(cases, unknown_host_is_reported_once);
    tcase_add_test(cases, another_program_on_the_port_is_recognised);
    tcase_add_test(cases, client_that_does_not_read_is_dropped);
    tcase_add_test(cases, client_that_sends_after_goodbye_is_dropped);
    tcase_add_test(cases, strangers_do_not_keep_ranks_out);
    tcase_add_test(cases, rank_reconnects_after_a_silent_close);
    tcase_add_test(cases, client_without_the_secret_is_refused);
    tcase_add_test(cases, server_without_the_secret_is_refused);
    tcase_add_test(cases, client_of_another_version_gets_an_error);
    tcase_add_test(cases, rank_0_of_another_version_is_recognised);
    tcase_add_test(cases, control_characters_in_names_are_removed);
    tcase_add_test(cases, cut_store_ends_a_request);
    tcase_add_test(cases, garbage_is_dropped);
    tcase_add_test(cases, malformed_messages_are_dropped);
    tcase_add_test(cases, late_reply_is_not_taken_for_the_next);
    tcase_add_test(cases, lack_of_descriptors_does_not_spin);
    return run_cases("dist/store_tcp", cases);
}
