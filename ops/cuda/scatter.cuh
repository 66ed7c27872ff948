/* scatter.cuh: adds rows of a matrix to the rows of a table selected by tokens: gradients of embeddings, separate
 * (embedding.cu) or folded into a cell (recurrent.cuh). Entry point: rm_launch_scatter. Rows are added in order. */
#ifndef RM_SCATTER_CUH
#define RM_SCATTER_CUH

#include "ops/cuda/kernel.cuh"

enum { RM_SCATTER_THREADS = 128, RM_SCATTER_ROWS = 1024 /* scanned at a time */, RM_SCATTER_GROUPS = 512 };

/* table[token[row],u] += x[row, (u + turn) mod columns]; x (rows,columns), whose rows start ld numbers apart */
typedef struct {
    int64_t rows, columns, ld, turn, v, group; /* v: rows of the table; each block owns `group` of them */
} rm_scatter;

/* A bit for each of 32 tokens: whether it is in [from, to). Neighbouring threads start at different tokens, so that
 * they read from different banks. */
static __device__ inline uint32_t rm_scatter_bits(const int32_t *token, unsigned begin, int64_t from, int64_t to) {
    uint32_t bits = 0;
    for (unsigned k = 0; k < 32; k++) {
        unsigned b = (begin + k) % 32;
        if (token[b] >= from && token[b] < to) bits |= 1u << b;
    }
    return bits;
}

/* The number of bits set in `own`. */
static __device__ inline int rm_scatter_count(const uint32_t *own, unsigned words) {
    int n = 0;
    for (unsigned w = 0; w < words; w++) n += __popc(own[w]);
    return n;
}

/* A token may occur in many rows, so blocks divide the rows and columns of the table, not the rows of x. A block scans
 * all tokens for its own, and a thread has one column. If a block owns one row of the table, the sum stays in a
 * register and AHEAD rows of x are loaded at once. */
static __global__ void rm_scatter_rows(rm_scatter s, const int32_t *__restrict__ token, const float *__restrict__ x,
                                       float *__restrict__ table) {
    enum { WORDS = RM_SCATTER_ROWS / 32, AHEAD = 16 };
    __shared__ int32_t here[RM_SCATTER_ROWS];
    __shared__ uint16_t row[RM_SCATTER_ROWS];
    __shared__ uint32_t own[WORDS];
    int64_t tiles = (s.columns + RM_SCATTER_THREADS - 1) / RM_SCATTER_THREADS;
    int64_t u = blockIdx.x % tiles * RM_SCATTER_THREADS + threadIdx.x, at = (u + s.turn) % s.columns;
    int64_t from = blockIdx.x / tiles * s.group, to = from + s.group < s.v ? from + s.group : s.v;
    const bool has = u < s.columns, alone = s.group == 1;
    float sum = has && alone ? table[from * s.columns + u] : 0;
    for (int64_t first = 0; first < s.rows; first += RM_SCATTER_ROWS) {
        __syncthreads(); /* all threads are done with the previous rows */
        for (int64_t k = threadIdx.x; k < RM_SCATTER_ROWS; k += RM_SCATTER_THREADS)
            here[k] = first + k < s.rows ? token[first + k] : -1;
        __syncthreads();
        if (threadIdx.x < WORDS) own[threadIdx.x] = rm_scatter_bits(here + 32 * threadIdx.x, threadIdx.x, from, to);
        __syncthreads();
        if (threadIdx.x < WORDS) {
            int n = rm_scatter_count(own, threadIdx.x);
            for (uint32_t bits = own[threadIdx.x], k = 32 * threadIdx.x; bits; bits >>= 1, k++)
                if (bits & 1) row[n++] = (uint16_t)k;
        }
        __syncthreads();
        const int n = has ? rm_scatter_count(own, WORDS) : 0;
        const float *of_x = x + first * s.ld + at;
        for (int i = 0; i < n && !alone; i++) table[here[row[i]] * s.columns + u] += of_x[row[i] * s.ld];
        for (int i = 0; i < n && alone; i += AHEAD) {
            float next[AHEAD];
            for (int k = 0; k < AHEAD; k++) next[k] = of_x[row[i + k < n ? i + k : n - 1] * s.ld];
            for (int k = 0; k < AHEAD && i + k < n; k++) sum += next[k];
        }
    }
    if (has && alone) table[from * s.columns + u] = sum;
}

/* Sets s.group itself. */
static inline void rm_launch_scatter(const void *queue, rm_scatter s, const int32_t *token, const float *x,
                                     float *table) {
    s.group = rm_blocks_of(s.v, RM_SCATTER_GROUPS);
    RM_LAUNCH_TOGETHER(rm_scatter_rows, rm_blocks_of(s.v, s.group) * rm_blocks_of(s.columns, RM_SCATTER_THREADS),
                       RM_SCATTER_THREADS, queue, s, token, x, table);
}

#endif
