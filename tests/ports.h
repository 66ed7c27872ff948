/* ports.h: a port of this host that belongs to one test: other processes get none of its number, whether they ask for any
 * free port or connect from one. */
#ifndef TEST_PORTS_H
#define TEST_PORTS_H

#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* A port at which nobody listens yet. It stays bound, with SO_REUSEADDR, until the test's process ends: the system gives it
 * to no one, but a listener that sets SO_REUSEADDR, as Remat's do, may ask for this number. */
static inline int reserved_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    ck_assert(fd >= 0 && !fcntl(fd, F_SETFD, FD_CLOEXEC));
    ck_assert(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    ck_assert(!bind(fd, (struct sockaddr *)&at, sizeof at) && !getsockname(fd, (struct sockaddr *)&at, &length));
    return ntohs(at.sin_port);
}

#endif
