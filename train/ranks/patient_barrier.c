/* patient_barrier.c: see patient_barrier.h. */
#include "train/ranks/patient_barrier.h"

#include <time.h>

#define COUNTER "train/patient barrier" /* key in the store: number of arrivals */

static void sleep_ms(int64_t ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* No rank can reach the next barrier before all have reached this one, so this one ends when the count is the next
 * multiple of the number of ranks. The more ranks there are, the less often each of them asks. */
static remat_status wait_for_all(const rm_ranks *ranks) {
    int64_t come, pause_ms = 1, longest_ms = 20 + ranks->size / 4;
    TRY(rm_kv_add(ranks->store, COUNTER, 1, &come));
    int64_t all = (come + ranks->size - 1) / ranks->size * ranks->size;
    while (come < all) {
        TRY(rm_group_poll(ranks->group));
        sleep_ms(pause_ms);
        if (pause_ms < longest_ms) pause_ms++;
        TRY(rm_kv_add(ranks->store, COUNTER, 0, &come));
    }
    return REMAT_OK;
}

remat_status rm_patient_barrier(void *context, remat_status mine, double *values, int64_t count) {
    rm_ranks *ranks = context;
    if (ranks->size == 1) return mine;
    rm_reason why = rm_reason_kept(); /* the message of `mine`, which requests about other ranks must not replace */
    remat_status waited = ranks->store ? wait_for_all(ranks) : REMAT_OK;
    if (waited) return mine ? rm_reason_again(mine, &why) : waited;
    TRY(rm_ranks_agree(ranks, rm_reason_again(mine, &why)));
    if (!count) return REMAT_OK;
    const remat_ranks *table = rm_ddp_ranks(ranks->all);
    return table->sum(table->context, values, count);
}

rm_state_ranks rm_patient_barrier_ranks(rm_ranks *ranks, bool shard_optimizer) {
    return (rm_state_ranks){.rank = ranks->rank,
                            .size = ranks->size,
                            .replica = ranks->replica,
                            .replicas = ranks->replicas,
                            .part = ranks->part,
                            .parts = ranks->parts,
                            .shard_optimizer = shard_optimizer && ranks->replicas > 1,
                            .context = ranks,
                            .agree = rm_patient_barrier};
}
