/* bootstrap.h: a store for ranks that nobody told an address (mpirun on several hosts): rank 0 serves one on a free port
 * of its host, and its address, which some other way between the ranks carries (group_mpi.c: a broadcast), leads the
 * others there. What a launcher says beforehand is rendezvous.h's. */
#ifndef RM_BOOTSTRAP_H
#define RM_BOOTSTRAP_H

#include "dist/store/store.h"

enum { RM_BOOTSTRAP_HOSTS = 12 };

/* Plain bytes, to be carried as they are. */
typedef struct {
    int32_t port; /* 0: rank 0 could not serve */
    char secret[36];
    char network[100];                  /* whose 127.0.0.1 is rank 0's: "BOOT net:[NUMBER]" */
    char host[RM_BOOTSTRAP_HOSTS][256]; /* rank 0's addresses, then its name; "": no more */
} rm_bootstrap_address;

/* On rank 0. IO, MEMORY: no port, no thread. */
remat_status rm_bootstrap_serve(int32_t size, rm_kv **store, rm_bootstrap_address *out);
/* On the others: tries one address after the other. PEER: none of them leads there; the sentence has them, and the
 * remedy. */
remat_status rm_bootstrap_join(const rm_bootstrap_address *address, int32_t rank, int32_t size, rm_kv **store);

#endif
