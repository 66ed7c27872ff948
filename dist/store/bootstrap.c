/* bootstrap.c: see bootstrap.h. */
#define _GNU_SOURCE
#include "dist/store/bootstrap.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "dist/store/boot_id.h"

/* Ranks with the same text share one loopback interface: the same running kernel and network namespace. */
static void network_of_this_process(char *text, size_t bytes) {
    char boot[RM_BOOT_ID_BYTES], space[40] = "";
    rm_boot_id(boot);
    if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) space[0] = 0;
    snprintf(text, bytes, "%s %s", boot, space);
    if (!*boot || !*space) text[0] = 0;
}

static remat_status draw_secret(char *text, size_t bytes) {
    uint64_t number[2];
    REQUIRE(getrandom(number, sizeof number, 0) == sizeof number, IO, "the system provides no random numbers: %s",
            strerror(errno));
    snprintf(text, bytes, "%016llx%016llx", (unsigned long long)number[0], (unsigned long long)number[1]);
    return REMAT_OK;
}

/* An address that other hosts may be able to reach: neither loopback nor link-local. */
static bool is_for_others(const struct ifaddrs *a, int family) {
    if (!a->ifa_addr || a->ifa_addr->sa_family != family) return false;
    if (!(a->ifa_flags & IFF_UP) || a->ifa_flags & IFF_LOOPBACK) return false;
    return family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)a->ifa_addr)->sin6_addr);
}

static int add_addresses(rm_bootstrap_address *out, int n, const struct ifaddrs *all, int family) {
    socklen_t bytes = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    for (const struct ifaddrs *a = all; a && n < RM_BOOTSTRAP_HOSTS - 1; a = a->ifa_next)
        if (is_for_others(a, family) &&
            !getnameinfo(a->ifa_addr, bytes, out->host[n], sizeof out->host[n], NULL, 0, NI_NUMERICHOST))
            n++;
    return n;
}

static void list_hosts(const char *name, rm_bootstrap_address *out) {
    struct ifaddrs *all = NULL;
    int n = 0;
    if (getifaddrs(&all)) all = NULL;
    n = add_addresses(out, n, all, AF_INET);
    n = add_addresses(out, n, all, AF_INET6);
    if (all) freeifaddrs(all);
    snprintf(out->host[n], sizeof out->host[n], "%s", name);
}

remat_status rm_bootstrap_serve(int32_t size, rm_kv **store, rm_bootstrap_address *out) {
    char name[256] = "";
    *out = (rm_bootstrap_address){0};
    if (gethostname(name, sizeof name - 1)) name[0] = 0;
    network_of_this_process(out->network, sizeof out->network);
    list_hosts(name, out);
    TRY(draw_secret(out->secret, sizeof out->secret));
    /* Listens everywhere: only the connecting ranks can find out which of its addresses they can reach. */
    TRY(rm_kv_open(&(rm_kv_config){.host = "::", .size = size, .secret = out->secret}, store));
    out->port = rm_kv_port(*store);
    return REMAT_OK;
}

static bool try_host(const rm_bootstrap_address *address, const char *host, rm_kv_config config, rm_kv **store) {
    config.host = host;
    config.port = address->port;
    config.secret = address->secret;
    return *host && rm_kv_open(&config, store) == REMAT_OK;
}

static void list_tried(const rm_bootstrap_address *address, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < RM_BOOTSTRAP_HOSTS && *address->host[i] && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%.60s", i ? ", " : "", address->host[i]);
}

/* Tries each address once, then again with longer timeouts, in case a network is still coming up. */
remat_status rm_bootstrap_join(const rm_bootstrap_address *address, int32_t rank, int32_t size, rm_kv **store) {
    static const int64_t patience_ms[] = {1, 500, 1500};
    char mine[sizeof address->network], tried[500];
    rm_kv_config config = {.rank = rank, .size = size};
    REQUIRE(address->port > 0, PEER, "rank 0 could not serve a store");
    network_of_this_process(mine, sizeof mine);
    bool one_loopback = *mine && !strcmp(mine, address->network);
    for (size_t round = 0; round < sizeof patience_ms / sizeof *patience_ms; round++) {
        config.timeout_ms = patience_ms[round];
        if (one_loopback && try_host(address, "127.0.0.1", config, store)) return REMAT_OK;
        for (int i = 0; i < RM_BOOTSTRAP_HOSTS; i++)
            if (try_host(address, address->host[i], config, store)) return REMAT_OK;
    }
    list_tried(address, tried, sizeof tried);
    FAIL(PEER,
         "rank %d cannot reach rank 0 at port %d of any of its addresses (%s), where all ranks must hear of a rank "
         "that fails; give one that all can reach (mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=PORT), or a file that all "
         "see ({init_method}=file:///PATH)",
         rank, address->port, tried);
}
