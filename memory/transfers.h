/* transfers.h: what an executor must know about a plan's use of the second tier, decided before the first step: where
 * each copy lies there, and which steps wait for which transfers. The judge (check.h) computes these waits as times;
 * this module computes them as transfer numbers, and the two share no code. */
#ifndef RM_TRANSFERS_H
#define RM_TRANSFERS_H

#include "memory/plan.h"

#define RM_TRANSFER_ALIGN 4096 /* copies begin at multiples of it */
#define RM_NO_COPY UINT64_MAX

/* The SAVE and LOAD steps of a plan are its transfers number 1, 2, ..., and run in this order. */
typedef struct {
    int64_t count;                 /* 0: the plan uses no second tier, and the arrays are NULL */
    uint64_t room_bytes;           /* bytes needed in the second tier */
    uint64_t *state_at, *saved_at; /* by state, by stage: offset of the copy, or RM_NO_COPY */
    int32_t *wait;                 /* by step: all transfers up to this number must be done before it; 0: none */
    uint64_t table_bytes;          /* host memory of these arrays and of the tier (rm_tier.host_bytes) */
} rm_transfers;

/* One piece, or saved block, of a transfer. In the second tier, the pieces of a state are contiguous. */
typedef struct {
    void *address;  /* in memory */
    uint64_t bytes; /* a multiple of RM_ALIGN; 0 only if the whole object is empty */
    uint64_t at;    /* offset in the second tier */
    uint64_t left;  /* bytes from this part to the end of the transfer: left == bytes in the last part */
} rm_part;

/* Told of a transfer that has just ended, by the thread that made it. */
typedef void rm_moved(void *context, bool save, uint64_t begin_ns, uint64_t bytes);

/* Requires a plan that passed the judge. Fills *transfers (zeroed or freed before); MEMORY. */
remat_status rm_transfers_find(const rm_problem *problem, const rm_plan *plan, rm_transfers *transfers);
/* table_bytes, without finding the transfers */
uint64_t rm_transfers_table_bytes(const rm_problem *problem, const rm_plan *plan);
void rm_transfers_free(rm_transfers *transfers); /* leaves it zeroed */

#endif
