/* arrivals.h: the roll call, with which a group begins: each rank says that it is there, which engine it is to use and which it
 * could; rank 0 hears all, and tells all which one they use. Ranks that choose for themselves might choose differently. */
#ifndef RM_ARRIVALS_H
#define RM_ARRIVALS_H

#include "dist/group/group.h"

/* Plain bytes in the store. */
typedef struct {
    char engine[16]; /* what its config asks for; "auto" */
    bool mpi, gloo;  /* what "auto" could be here: started by MPI and built with it; built with Gloo */
    char place[160]; /* the same for ranks that can share memory */
    char who[96];    /* "node7, process 4711" */
} rm_arrival;

void rm_arrival_fill(const char *engine, bool mpi, bool gloo, rm_arrival *out);

/* The engine of all of them. INVALID: they are to use different ones; MISSING: one cannot use what the others need. Names two. */
remat_status rm_arrivals_choose(const rm_arrival *all, int32_t size, char engine[16]);

/* Collective, over config->store: ends when all ranks have come. Fails alike on all: as rm_arrivals_choose, or PEER, with the ranks
 * that died, left or did not come in time (joining.h). */
remat_status rm_wait_for_ranks(const rm_group_config *config, const rm_arrival *mine, char engine[16]);

/* "rank 3 of 8", "ranks 1, 3-7 of 8": those r < size for which here[r] is false. */
void rm_missing_ranks(const bool *here, int32_t size, char *text, size_t bytes);

#endif
