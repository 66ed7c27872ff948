/* ranks_debug.c: see ranks_debug.h. */
#define _GNU_SOURCE /* NI_NUMERICHOST */
#include "train/ranks/ranks_debug.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "dist/group/group_auto.h"

static bool is_one_of(const char *variable, const char *a, const char *b) {
    const char *value = getenv(variable);
    return value && (!strcasecmp(value, a) || !strcasecmp(value, b));
}

static bool is_wanted(void) {
    return is_one_of("NCCL_DEBUG", "INFO", "TRACE") || is_one_of("TORCH_DISTRIBUTED_DEBUG", "INFO", "DETAIL");
}

static bool has_address(const struct ifaddrs *interface, const char *address) {
    char text[256];
    const struct sockaddr *at = interface->ifa_addr;
    if (!at || (at->sa_family != AF_INET && at->sa_family != AF_INET6)) return false;
    socklen_t bytes = at->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    return !getnameinfo(at, bytes, text, sizeof text, NULL, 0, NI_NUMERICHOST) && !strcmp(text, address);
}

/* "; address 10.0.0.1, interface eth0"; "" if the engine uses none. */
static const char *address_text(const rm_ranks *ranks, char *text, size_t bytes) {
    char address[256];
    struct ifaddrs *all = NULL;
    *text = 0;
    if (!rm_group_address(ranks->group, address, sizeof address)) return text;
    if (getifaddrs(&all)) all = NULL;
    const struct ifaddrs *i = all;
    while (i && !has_address(i, address)) i = i->ifa_next;
    if (i)
        snprintf(text, bytes, "; address %s, interface %s", address, i->ifa_name);
    else
        snprintf(text, bytes, "; address or interface %s", address);
    freeifaddrs(all);
    return text;
}

/* "tcp://node1:29500"; "file:///shared/meeting". */
static const char *meeting_text(const rm_rendezvous *where, char *text, size_t bytes) {
    if (where->meeting == RM_MEET_TCP) snprintf(text, bytes, "tcp://%s:%d", where->host, where->port);
    if (where->meeting == RM_MEET_FILE) snprintf(text, bytes, "file://%s", where->path);
    if (where->meeting == RM_MEET_NOWHERE) snprintf(text, bytes, "MPI");
    return text;
}

void rm_ranks_debug_meeting(const rm_ranks *ranks, const rm_rendezvous *where, const char *backend) {
    char library[128] = "", text[1100];
    const char *engine = rm_group_engine(ranks->group);
    if (!is_wanted()) return;
    (void)rm_engine_library(engine, library, sizeof library);
    fprintf(stderr, "remat train: rank %d of %d on %s (process %d): started by %s, local rank %d; met at %s\n",
            ranks->rank, ranks->size, ranks->host, (int)getpid(), rm_launcher_text(where->launcher), where->local_rank,
            meeting_text(where, text, sizeof text));
    fprintf(stderr, "remat train: rank %d of %d: engine %s (%s), %s%s; ranks that share its processors: %d\n",
            ranks->rank, ranks->size, engine, library, rm_engine_reason(backend, engine),
            address_text(ranks, text, sizeof text), ranks->sharing);
}

void rm_ranks_debug_buckets(const rm_ranks *ranks, remat_session *session) {
    const int64_t n = remat_bucket_count(session);
    if (!ranks->ddp || ranks->replica || !is_wanted()) return;
    const char *engine = rm_group_engine(ranks->gpus ? ranks->gpus : ranks->same);
    for (int64_t i = 0; i < n; i++) {
        remat_bucket bucket;
        if (remat_bucket_info(session, i, &bucket)) return;
        fprintf(stderr, "remat train: rank %d of %d: bucket %lld of %lld over %s: %llu bytes, begins with %s\n",
                ranks->rank, ranks->size, (long long)i, (long long)n, engine,
                (unsigned long long)bucket.count * sizeof(float), bucket.first);
    }
}
