/* bootstrap.h: a store for ranks that have no address of rank 0 (mpirun on several hosts). Rank 0 serves a store on a
 * free port of its host. Another channel between the ranks carries its address (a broadcast in group_mpi.c), and the
 * other ranks connect to it. rendezvous.h handles the addresses that a launcher gives beforehand. */
#ifndef RM_BOOTSTRAP_H
#define RM_BOOTSTRAP_H

#include "dist/store/store.h"

enum { RM_BOOTSTRAP_HOSTS = 12 };

/* Sent as raw bytes. */
typedef struct {
    int32_t port; /* 0: rank 0 could not serve a store */
    char secret[36];
    char network[100];                  /* identifies the network whose 127.0.0.1 is rank 0's: "BOOT net:[NUMBER]" */
    char host[RM_BOOTSTRAP_HOSTS][256]; /* rank 0's addresses, then its name; "" ends the list */
} rm_bootstrap_address;

/* Runs on rank 0. IO, MEMORY: no port, no thread. */
remat_status rm_bootstrap_serve(int32_t size, rm_kv **store, rm_bootstrap_address *out);
/* Runs on the other ranks: tries one address after the other. PEER: none of them reaches rank 0; the message lists
 * them, with the remedy. */
remat_status rm_bootstrap_join(const rm_bootstrap_address *address, int32_t rank, int32_t size, rm_kv **store);

#endif
