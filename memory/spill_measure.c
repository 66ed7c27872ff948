/* spill_measure.c: measures a spill file (spill.h): its rates in both directions, its latency, and its CPU time.
 * engine/times/measure.c, in contrast, measures how much transfers slow down a computation. Main entry: rm_spill_measure. */
#include <pthread.h>

#include "memory/bytes.h"
#include "memory/clock.h"
#include "memory/host.h"
#include "memory/spill.h"

enum { PART = 1 << 20, SAMPLE = 4 << 20, SLOTS = 8, ROUNDS = 8, SMALL = 16 };
#define WARM_UP_NS 80000000u
#define TIMED_NS 150000000u

typedef void mover(rm_spill *spill, const rm_part *part);

/* One transfer of `bytes`, from start to end. Every MiB of it uses the same memory. */
static remat_status one_transfer(rm_spill *spill, mover *move, char *memory, uint64_t bytes, int slot, uint64_t *ns) {
    uint64_t start_ns = rm_now_ns(), at = (uint64_t)slot * SAMPLE;
    for (uint64_t left = bytes; left > 0;) {
        uint64_t some = rm_smaller(left, PART);
        rm_part part = {memory, some, at, left};
        move(spill, &part);
        at += some;
        left -= some;
    }
    TRY(rm_spill_wait(spill, rm_spill_given(spill)));
    *ns += rm_now_ns() - start_ns;
    return REMAT_OK;
}

static uint64_t rate_of(uint64_t bytes, uint64_t ns, uint64_t latency_ns) {
    ns = ns > latency_ns ? ns - latency_ns : 1;
    uint64_t rate = (uint64_t)((double)bytes * 1e9 / (double)ns);
    return rate > 0 ? rate : 1;
}

/* Writes the file's blocks once before timing anything: the first write costs more, and training steps reuse the same
 * blocks. Small transfers give the latency, large ones the rates. */
static remat_status measure(rm_spill *spill, char *memory, rm_tier *rates) {
    uint64_t warm_ns = 0, small_ns = 0, save_ns = 0, load_ns = 0, bytes = 0;
    int slots = 0, small = 0;
    while (slots < SLOTS && warm_ns < WARM_UP_NS)
        TRY(one_transfer(spill, rm_spill_save, memory, SAMPLE, slots++, &warm_ns));
    for (; small < SMALL && small_ns < WARM_UP_NS; small++)
        TRY(one_transfer(spill, small % 2 ? rm_spill_load : rm_spill_save, memory, RM_TRANSFER_ALIGN, small % slots,
                         &small_ns));
    int rounds = 0;
    uint64_t before_ns = rm_spill_used(spill).thread_ns;
    for (; rounds < ROUNDS && save_ns + load_ns < TIMED_NS; rounds++, bytes += SAMPLE) {
        TRY(one_transfer(spill, rm_spill_save, memory, SAMPLE, rounds % slots, &save_ns));
        TRY(one_transfer(spill, rm_spill_load, memory, SAMPLE, (rounds + slots / 2) % slots, &load_ns));
    }
    uint64_t latency_ns = small_ns / (uint64_t)small;
    *rates = (rm_tier){.save_bytes_per_s = rate_of(bytes, save_ns, (uint64_t)rounds * latency_ns),
                       .load_bytes_per_s = rate_of(bytes, load_ns, (uint64_t)rounds * latency_ns),
                       .latency_ns = latency_ns,
                       .cost_ns_per_mib = (rm_spill_used(spill).thread_ns - before_ns) * (1 << 20) / (2 * bytes)};
    return REMAT_OK;
}

/* Results are kept per process and disk, since files come and go on the same disk. */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t disk;
    rm_tier rates;
} known[8];
static int n_known;

static bool find_known(uint64_t disk, rm_tier *rates) {
    bool found = false;
    pthread_mutex_lock(&known_lock);
    for (int i = 0; i < n_known && !found; i++) {
        found = known[i].disk == disk;
        *rates = known[i].rates;
    }
    pthread_mutex_unlock(&known_lock);
    return found;
}

static void remember(uint64_t disk, const rm_tier *rates) {
    int most = sizeof known / sizeof *known;
    pthread_mutex_lock(&known_lock);
    known[n_known % most].disk = disk;
    known[n_known % most].rates = *rates;
    if (n_known < most) n_known++;
    pthread_mutex_unlock(&known_lock);
}

remat_status rm_spill_measure(rm_spill *spill, rm_tier *rates) {
    uint64_t disk = rm_spill_disk(spill);
    if (disk && find_known(disk, rates)) return REMAT_OK;
    TRY(rm_spill_reserve(spill, (uint64_t)SAMPLE * SLOTS));
    char *memory = rm_block_alloc(PART, RM_TRANSFER_ALIGN);
    REQUIRE(memory, MEMORY, "out of host memory (%d bytes) to measure how fast the disk is", PART);
    for (int i = 0; i < PART; i++) memory[i] = (char)(i * 37 >> 3); /* data that the disk cannot compress away */
    remat_status status = measure(spill, memory, rates);
    rm_block_free(memory, PART);
    rm_spill_forget_use(spill);
    if (!status && disk) remember(disk, rates);
    return status;
}
