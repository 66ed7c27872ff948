/* stores.h: helpers for the tests of stores, of both kinds: a place where ranks meet, and the configs of its ranks. */
#ifndef TEST_STORES_H
#define TEST_STORES_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "dist/store/store_kind.h"
#include "tests/dist/ranks.h"
#include "tests/suite.h"

/* A socket that listens on a free port of this host, as a launcher would pass to rank 0. */
static inline int free_port(int *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(fd > 0 && !bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, 100));
    ck_assert(!getsockname(fd, (struct sockaddr *)&at, &length));
    *port = ntohs(at.sin_port);
    return fd;
}

typedef struct {
    const char *path; /* NULL: tcp */
    int port, listen_fd;
} place;

static inline place make_place(bool file) {
    place p = {.path = file ? meeting_place() : NULL};
    if (!file) p.listen_fd = free_port(&p.port);
    return p;
}

static inline rm_kv_config config_for(const place *p, int rank, int size) {
    return (rm_kv_config){.path = p->path,
                          .host = "127.0.0.1",
                          .port = p->port,
                          .rank = rank,
                          .size = size,
                          .listen_fd = rank == 0 ? p->listen_fd : 0,
                          .secret = "ours",
                          .timeout_ms = 20000};
}

/* Each refusal is recorded once for rank 0 to report. */
static inline void ck_refused(rm_kv *store, int number, const char *words) {
    char key[32], who[500] = "";
    uint32_t bytes;
    snprintf(key, sizeof key, RM_KV_REFUSED_KEY, number);
    ck_ok(rm_kv_get(store, key, who, sizeof who - 1, &bytes, -1));
    ck_assert_msg(strstr(who, words), "'%s' does not say '%s'", who, words);
}

#endif
