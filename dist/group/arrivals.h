/* arrivals.h: the first step of opening a group. Each rank reports in the store that it has arrived, which engine it
 * was told to use, and which engines it could use. Rank 0 reads all reports and decides for all ranks; ranks that chose
 * on their own might choose differently. */
#ifndef RM_ARRIVALS_H
#define RM_ARRIVALS_H

#include "dist/group/group.h"

/* Stored as raw bytes. */
typedef struct {
    char engine[16]; /* the engine in its config, or "auto" */
    bool mpi, gloo;  /* available for "auto" here: started by MPI and built with it; built with Gloo */
    char place[160]; /* equal on ranks that can share memory */
    char who[96];    /* "node7, process 4711" */
} rm_arrival;

void rm_arrival_fill(const char *engine, bool mpi, bool gloo, rm_arrival *out);

/* The engine for all ranks. INVALID: the configs name different ones. MISSING: one rank lacks the engine that the
 * others need. Messages name two ranks. */
remat_status rm_arrivals_choose(const rm_arrival *all, int32_t size, char engine[16]);

/* Collective, over config->store. Returns when all ranks have arrived. Fails alike on all ranks: as rm_arrivals_choose,
 * or with PEER, naming the ranks that died, left or did not arrive in time (joining.h). */
remat_status rm_wait_for_ranks(const rm_group_config *config, const rm_arrival *mine, char engine[16]);

/* "rank 3 of 8", "ranks 1, 3-7 of 8": lists the ranks r < size for which here[r] is false. */
void rm_missing_ranks(const bool *here, int32_t size, char *text, size_t bytes);

#endif
