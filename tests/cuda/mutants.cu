/* mutants.cu: kernels with the mistakes that the emulation must find (test_kernels.c). */
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/reduce.cuh"

#include "tests/cuda/emulation.h"
#include "tests/cuda/mutants.h"

/* Thread 0 reads values that the others may not have written yet: a __syncthreads is missing. */
static __global__ void races(float *out) {
    __shared__ float seen[64];
    seen[threadIdx.x] = 0;
    __syncthreads();
    seen[threadIdx.x] = (float)(threadIdx.x + 1);
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += seen[i];
    if (threadIdx.x == 0) *out = sum;
    __syncthreads();
}

/* The same with __syncthreads. */
static __global__ void waits(float *out) {
    __shared__ float seen[64];
    seen[threadIdx.x] = (float)(threadIdx.x + 1);
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += seen[i];
    if (threadIdx.x == 0) *out = sum;
}

/* A warp may be ahead by more than one wait for its lanes, and overwrites values that another warp has not read. */
static __global__ void races_ahead(float *out) {
    __shared__ float seen;
    float sum = 0;
    for (int step = 0; step < 9; step++) {
        if (threadIdx.x == 0) seen = 0;
        __syncthreads();
        if (threadIdx.x >= RM_WARP) sum += seen;
        rm_warp_sum(sum);
        if (threadIdx.x == 0) seen = 1;
        __syncthreads();
    }
    if (threadIdx.x == RM_WARP) *out = sum;
}

/* Half of the block returns, and the other half waits for it. */
static __global__ void returns_early(float *out) {
    if (threadIdx.x >= 32) return;
    __syncthreads();
    *out = 1;
}

/* Both halves wait, but at different places. */
static __global__ void waits_elsewhere(float *out) {
    if (threadIdx.x >= 32)
        __syncthreads();
    else {
        *out = 1;
        __syncthreads();
    }
}

/* A loop that some lanes of a warp leave before the others. */
static __global__ void leaves_its_warp(float *out) {
    float sum = 0;
    for (unsigned i = threadIdx.x; i < 40; i += RM_WARP) sum += rm_warp_sum(1.0f);
    *out = sum;
}

/* Blocks race for one number. */
static __global__ void races_blocks(float *out) { *out = 2 * *out + (float)blockIdx.x; }

/* As if another host thread launched a kernel while this one runs. */
static __global__ void counts_its_grid(float *out) {
    RM_LAUNCH(races_blocks, 4, 1, &rm_emulated_queue, out);
    *out += (float)(gridDim.x * blockDim.x);
}

typedef struct {
    float *out;
    rm_mutant_mistake mistake;
} handed;

enum { NUMBERS = RM_MUTANT_BLOCKS * RM_MUTANT_THREADS, SENT = NUMBERS * sizeof(float) };
enum { MEMORY = 2 * (sizeof(rm_mailbox) + SENT) };

template <int N> static __global__ void hands_on(handed h) {
    rm_mutant_mistake m = h.mistake;
    rm_mailbox *box = (rm_mailbox *)rm_cluster_memory(), *sends = box;
    float *slot = (float *)(box + 2);
    unsigned t = threadIdx.x, rank = rm_cluster_rank(), size = rm_cluster_size(), own = rank * blockDim.x + t;
    float x = m == RM_READS_NOTHING ? slot[own] : (float)(t + blockIdx.x);
    for (int i = 0; i < 2; i++) {
        if (t == 0 || (t == 1 && m == RM_OPENED_TWICE)) rm_mailbox_open(&box[i]);
        if (t == 0 && m != RM_NOT_EXPECTED && m != RM_EXPECTS_LATE) rm_mailbox_expect(&box[i], SENT);
        if (t == 0 && m == RM_EXPECTED_TWICE) rm_mailbox_expect(&box[i], SENT);
    }
    if (m == RM_BOX_OUTSIDE) sends = (rm_mailbox *)(slot + 2 * N);
    if (m == RM_BOX_BETWEEN) sends = (rm_mailbox *)((float *)box + 1);
    if (m == RM_SLOT_OUTSIDE) slot += N + 1;
    if (m != RM_NOT_OPENED) rm_cluster_sync();
    for (int i = 0; i < 2 && t == 0 && m == RM_EXPECTS_LATE; i++) rm_mailbox_expect(&box[i], SENT);
    for (int step = 0; step < RM_MUTANT_STEPS; step++) {
        bool last = step + 1 == RM_MUTANT_STEPS, two = m != RM_ONE_BOX;
        int i = two ? step % 2 : 0, phase = (two ? step / 2 : step) % (m == RM_PHASE_TWO ? 3 : 2);
        if (m != RM_NOT_SENT || !last || own != 5)
            for (unsigned to = 0; to < size + (m == RM_NO_SUCH_RANK); to++)
                rm_mailbox_send(rm_cluster_peer(to), &slot[i * N + own], &sends[i], x);
        if (m == RM_SENT_TWICE && last && own == 5) rm_mailbox_send(rm_cluster_peer(2), &slot[i * N + own], &box[i], x);
        if (m == RM_RETURNS && last && rank == 0) return;
        if (m != RM_READS_EARLY) rm_mailbox_wait(&box[i], phase);
        if (m == RM_READS_EARLY) rm_cluster_sync();
        float sum = __shfl_sync(0xffffffffu, x, 7);
        for (int n = 0; n < N; n++) sum += (float)(n % 4) * slot[i * N + n];
        if (m == RM_READS_EARLY) rm_mailbox_wait(&box[i], phase);
        unsigned next = m == RM_EXPECTS_LESS ? SENT - 4 : m == RM_EXPECTS_MUCH ? 1 << 20 : SENT;
        if (t == 0) rm_mailbox_expect(&box[i], m == RM_EXPECTS_NOTHING ? 0 : next);
        x = fmodf(sum, 61) + (float)t;
    }
    if (m == RM_SYNCS_IN_PART && own == 40) return;
    rm_cluster_sync();
    if (blockIdx.x == size && t == 9) *h.out = x;
}

void rm_mutant_hands_on(float *out, rm_mutant_mistake mistake) {
    handed h = {out, mistake};
    int clusters = mistake == RM_NO_CLUSTER ? 0 : RM_MUTANT_CLUSTERS, threads = RM_MUTANT_THREADS;
    int size = mistake == RM_TOO_LARGE ? RM_CLUSTER_MOST + 1 : RM_MUTANT_BLOCKS;
    if (mistake == RM_LAUNCHED_ALONE)
        RM_LAUNCH(hands_on<NUMBERS>, size, threads, NULL, h);
    else if (mistake == RM_LAUNCHED_APART)
        RM_LAUNCH_TOGETHER(hands_on<NUMBERS>, size, threads, NULL, h);
    else
        RM_LAUNCH_CLUSTERS(hands_on<NUMBERS>, clusters, size, threads, MEMORY, NULL, h);
}

void rm_mutant_races(float *out) { RM_LAUNCH_TOGETHER(races, 1, 64, NULL, out); }
void rm_mutant_races_ahead(float *out) { RM_LAUNCH_TOGETHER(races_ahead, 1, 64, NULL, out); }
void rm_mutant_waits(float *out) { RM_LAUNCH_TOGETHER(waits, 1, 64, NULL, out); }
void rm_mutant_returns_early(float *out) { RM_LAUNCH_TOGETHER(returns_early, 1, 64, NULL, out); }
void rm_mutant_waits_elsewhere(float *out) { RM_LAUNCH_TOGETHER(waits_elsewhere, 1, 64, NULL, out); }
void rm_mutant_leaves_its_warp(float *out) { RM_LAUNCH_TOGETHER(leaves_its_warp, 1, 32, NULL, out); }
void rm_mutant_waits_alone(float *out) { RM_LAUNCH(waits, 1, 64, NULL, out); }
void rm_mutant_races_blocks(float *out) { RM_LAUNCH(races_blocks, 4, 1, NULL, out); }
void rm_mutant_counts_its_grid(float *out) { RM_LAUNCH(counts_its_grid, 3, 2, &rm_emulated_queue, out); }
