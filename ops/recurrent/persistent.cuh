/* persistent.cuh: a tile's timesteps in one launch. The recurrent weights stay in registers and shared memory ("persistent
 * RNNs", Diamos et al. 2016). Only h, or parts of dh, are exchanged between the blocks of a cluster (ops/cuda/cluster.cuh).
 *
 * A cluster computes Q sequences, from a tile's first timestep to its last. Each of its blocks computes U units of the layer with
 * all their gates; K = 16 U is the widest layer that fits.
 *
 *     forward     16 neighbouring lanes (S) compute V units together. Lane s multiplies k = 4 (16 i + s) + (0..3), i = 0, 1, ...;
 *                 then lanes are added in pairs at distance 1, 2, 4, 8. Each block sends h' of its units to all blocks
 *     rebuild     the same sums, from the h stored in y; each block computes U units of a range of rows, and waits for no other
 *     backward    two lanes have the same columns of w_hh, one the rows of the block's even units, the other the rows of its odd
 *                 units. Their sum is this block's share of dh = dgates w_hh. It is sent to the block that has the unit, which
 *                 adds the shares of all blocks in a fixed order
 *
 * The order of a sum therefore depends only on the cell and on H: bits do not depend on the tile, on which values are kept, or on Q.
 * Sums are fp32 in every precision: tensor cores would not help, since most of the time is spent on exchanging h. */
#ifndef RM_PERSISTENT_CUH
#define RM_PERSISTENT_CUH

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/fours.cuh"
#include "ops/recurrent/recurrent.cuh"

/* On GPUs without clusters these kernels are never launched, so they are empty. */
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 900
#define RM_PERSISTENT 0
#else
#define RM_PERSISTENT 1
#endif

enum { RM_PERSISTENT_THREADS = 256, RM_PERSISTENT_SEQUENCES = 4, RM_PERSISTENT_REGISTERS = 160, RM_LANES = 32 };

/* A block's part of a layer. V 1 and 2: layers of up to 256 and 512 units. */
template <class Cell, int V_, int REGISTERS = RM_PERSISTENT_REGISTERS> struct rm_persistent_shape {
    static constexpr int THREADS = RM_PERSISTENT_THREADS, G = Cell::GATES, S = 16, V = V_;
    static constexpr int U = THREADS / S * V, K = RM_CLUSTER_MOST * U;
    static constexpr int WEIGHTS = G * U * K / THREADS;          /* of a thread */
    static constexpr int CHUNKS = K / (4 * S), CHUNK = 4 * G * V; /* forward: a lane reads four consecutive k at a time
                                                                     */
    static constexpr int ROWS = U / 2, C = 2 * K / THREADS, ROW = G * C; /* backward: a lane reads the rows of one unit
                                                                            at a time */
    static constexpr int HELD = REGISTERS < WEIGHTS ? REGISTERS : WEIGHTS;
    static constexpr int HELD_CHUNKS = HELD / CHUNK, HELD_ROWS = HELD / ROW; /* in registers; the rest in shared memory */
    static constexpr int FORWARD_SHARED = (CHUNKS - HELD_CHUNKS) * CHUNK * THREADS;
    static constexpr int BACKWARD_SHARED = (ROWS - HELD_ROWS) * ROW * THREADS;
    static constexpr int GROUPS = S / (4 * V); /* groups of four lanes end with the same unit; each group takes other
                                                  sequences */
};

/* The argument of a kernel: a tile. NULL: not wanted, or zeros. */
typedef struct {
    int64_t tau, batch, hidden, width, rows_each; /* rows_each: rows of a block in rebuild */
    const float *products, *table;                /* x's parts of the gates: (tau*B,width), or by token from (V,G*H) */
    const int32_t *token;                         /* (tau*B) */
    const float *w_hh, *b_ih, *b_hh;
    float *gates, *c;         /* (tau*B,width), (tau*B,H): kept values; backward replaces gates by their gradients */
    float *y;                 /* (tau*B,H) */
    const float *h_in, *c_in; /* (B,H) */
    float *h_out, *c_out;
    const float *dy, *dh_out, *dc_out; /* (tau*B,H), (B,H) */
    float *dh_in, *dc_in;
} rm_persistent;

/* ---- Sums over h ---------------------------------------------------------------------------------------------------- */

/* The weights of this lane's units, from `first` on, and of its k. The first are in registers, the rest in shared
 * memory, a column for each thread, so that neighbouring threads read from different banks. */
template <class Shape>
static __device__ inline void rm_persistent_load(const rm_persistent &a, int64_t first, float *held, float *shared) {
    const int slice = threadIdx.x % Shape::S;
    RM_UNROLL for (int i = 0; i < Shape::CHUNKS; i++) {
        RM_UNROLL for (int e = 0; e < Shape::CHUNK; e++) {
            const int64_t unit = first + e / (4 * Shape::G), gate = e / 4 % Shape::G, k = 4 * (i * Shape::S + slice) + e % 4;
            float w = unit < a.hidden && k < a.hidden ? a.w_hh[(gate * a.hidden + unit) * a.hidden + k] : 0;
            if (i < Shape::HELD_CHUNKS) held[i * Shape::CHUNK + e] = w;
            else shared[((i - Shape::HELD_CHUNKS) * Shape::CHUNK + e) * Shape::THREADS + threadIdx.x] = w;
        }
    }
}

static __device__ inline float rm_persistent_from(float value, int apart) { return __shfl_xor_sync(0xffffffffu, value, apart); }

/* Merges two sums over lanes: this lane continues with one of them, and adds the part of the lane `apart`. */
static __device__ inline float rm_persistent_halve(float low, float high, int apart) {
    const bool is_high = threadIdx.x & apart;
    return (is_high ? high : low) + rm_persistent_from(is_high ? low : high, apart);
}

/* For each of Q rows h (K, zeros past H), computes the sum of this lane's gate (lane % 4) and unit
 * (rm_persistent_lane). */
template <class Shape, int Q>
static __device__ inline void rm_persistent_sums(const float *held, const float *shared, const float *h, float *sum) {
    enum { S = Shape::S, G = Shape::G, V = Shape::V };
    const int slice = threadIdx.x % S;
    float part[Q][V][4];
    RM_UNROLL for (int q = 0; q < Q; q++) RM_UNROLL for (int v = 0; v < V; v++)
        RM_UNROLL for (int g = 0; g < 4; g++) part[q][v][g] = 0;
    RM_UNROLL for (int i = 0; i < Shape::CHUNKS; i++) {
        rm_four x[Q];
        RM_UNROLL for (int q = 0; q < Q; q++) x[q] = ((const rm_four *)(h + q * Shape::K))[i * S + slice];
        RM_UNROLL for (int e = 0; e < Shape::CHUNK; e++) {
            float w = i < Shape::HELD_CHUNKS
                          ? held[i * Shape::CHUNK + e]
                          : shared[((i - Shape::HELD_CHUNKS) * Shape::CHUNK + e) * Shape::THREADS + threadIdx.x];
            float *const at = &part[0][e / (4 * G)][e / 4 % G];
            RM_UNROLL for (int q = 0; q < Q; q++) at[q * V * 4] = fmaf(w, x[q].v[e % 4], at[q * V * 4]);
        }
    }
    RM_UNROLL for (int q = 0; q < Q; q++) {
        float of_unit[V];
        RM_UNROLL for (int v = 0; v < V; v++) {
            const float *p = part[q][v];
            if (G == 1) {
                of_unit[v] = p[0] + rm_persistent_from(p[0], 1);
                of_unit[v] += rm_persistent_from(of_unit[v], 2);
            } else {
                of_unit[v] = rm_persistent_halve(rm_persistent_halve(p[0], p[1], 1), rm_persistent_halve(p[2], p[3], 1), 2);
            }
        }
        sum[q] = V == 1 ? of_unit[0] + rm_persistent_from(of_unit[0], 4) : rm_persistent_halve(of_unit[0], of_unit[V - 1], 4);
        sum[q] += rm_persistent_from(sum[q], 8);
    }
}

/* ---- From sums to h ------------------------------------------------------------------------------------------------- */

/* A lane's work after the sums: one gate (lane % 4) of one unit, for the sequences of its group. The three lanes
 * beside it compute the unit's other gates; if the cell has one gate, all four compute the same. */
struct rm_persistent_lane {
    int64_t unit, first;   /* unit: if it is H or more, the lane has no work. first: the first unit that its weights
                              belong to */
    bool lives, reads;     /* reads: x has a part in this gate */
    int gate, from, group; /* from: the first of the unit's four lanes */
    float b_ih, b_hh;
};

template <class Shape>
static __device__ inline rm_persistent_lane rm_persistent_lane_of(const rm_persistent &a, int64_t first) {
    rm_persistent_lane l;
    const int lane = threadIdx.x % RM_LANES, four = threadIdx.x % Shape::S / 4;
    l.first = first + threadIdx.x / Shape::S * Shape::V, l.unit = l.first + four % Shape::V, l.lives = l.unit < a.hidden;
    l.gate = Shape::G == 1 ? 0 : lane % 4, l.from = lane / 4 * 4, l.group = four / Shape::V;
    l.reads = l.lives && l.gate < Shape::G;
    l.b_ih = l.reads && a.b_ih ? a.b_ih[l.gate * a.hidden + l.unit] : 0;
    l.b_hh = l.reads && a.b_hh ? a.b_hh[l.gate * a.hidden + l.unit] : 0;
    return l;
}

/* The place of x's part of this lane's gate: in a row of the tile, or in the table for a token. */
template <class Cell>
static __device__ inline const float *rm_persistent_product(const rm_persistent &a, const rm_persistent_lane &l, int64_t row) {
    return a.products + row * a.width + (l.gate + Cell::SHIFT) % Cell::GATES * a.hidden + l.unit;
}
template <class Cell>
static __device__ inline const float *rm_persistent_entry(const rm_persistent &a, const rm_persistent_lane &l, int32_t token) {
    return a.table + (token * (int64_t)Cell::GATES + l.gate) * a.hidden + l.unit;
}

/* Returns h' of this lane's unit. *kept: the value to keep in column lane % 4. For an lstm, *c becomes c'. */
template <class Cell>
static __device__ inline float rm_persistent_next(const rm_persistent_lane &l, float x, float sum, float h, float *c,
                                                  float *kept) {
    float gates[4] = {0, 0, 0, 0}, own = Cell::gate(l.gate, x, sum, l.b_ih, l.b_hh);
    if (Cell::GATES == 1) gates[0] = own;
    else RM_UNROLL for (int g = 0; g < Cell::GATES; g++) gates[g] = __shfl_sync(0xffffffffu, own, l.from + g);
    if (Cell::SHIFT) gates[3] = __shfl_sync(0xffffffffu, sum + l.b_hh, l.from + Cell::GATES - 1);
    *kept = own;
    return Cell::next(threadIdx.x % 4, gates, h, c, kept);
}

/* ---- Forward -------------------------------------------------------------------------------------------------------- */

/* Number of timesteps for which each thread prefetches its parts of x, or tokens, into a ring. */
enum { RM_PERSISTENT_AHEAD = 4 };
template <class Shape, int Q> struct rm_persistent_rows {
    static constexpr int PASSES = (Q + Shape::GROUPS - 1) / Shape::GROUPS; /* rows of a lane */
    static constexpr int RING = RM_PERSISTENT_AHEAD * PASSES * Shape::THREADS;
};

template <class Cell, int V, int Q> static constexpr size_t rm_persistent_forward_bytes(void) {
    typedef rm_persistent_shape<Cell, V> Shape;
    return (2 * Q * Shape::K + Shape::FORWARD_SHARED + 2 * rm_persistent_rows<Shape, Q>::RING) * sizeof(float) +
           2 * sizeof(rm_mailbox);
}

/* Forward of a tile. Each cluster computes Q sequences. */
template <class Cell, int V, int Q>
static __global__ void __launch_bounds__(RM_PERSISTENT_THREADS, V == 1 ? 2 : 1) rm_persistent_forward(rm_persistent a) {
#if RM_PERSISTENT
    typedef rm_persistent_shape<Cell, V> Shape;
    constexpr int GROUPS = Shape::GROUPS, PASSES = rm_persistent_rows<Shape, Q>::PASSES, PEERS = RM_CLUSTER_MOST / 4;
    constexpr int AHEAD = RM_PERSISTENT_AHEAD;
    float *const all_h = rm_cluster_memory(), *const shared = all_h + 2 * Q * Shape::K; /* h before even and odd timesteps */
    float *const ring = shared + Shape::FORWARD_SHARED + threadIdx.x; /* [AHEAD][PASSES][THREADS] */
    int32_t *const tokens = (int32_t *)ring + rm_persistent_rows<Shape, Q>::RING;
    rm_mailbox *const box = (rm_mailbox *)(shared + Shape::FORWARD_SHARED + 2 * rm_persistent_rows<Shape, Q>::RING);
    const int rank = (int)rm_cluster_rank(), size = (int)rm_cluster_size(), column = threadIdx.x % 4;
    const int64_t first = blockIdx.x / size * Q; /* sequence */
    const int n = (int)(a.batch - first < Q ? a.batch - first : Q);
    const rm_persistent_lane l = rm_persistent_lane_of<Shape>(a, (int64_t)rank * Shape::U);
    const unsigned bytes = (unsigned)(n * a.hidden * sizeof(float));

    float held[Shape::HELD_CHUNKS * Shape::CHUNK];
    rm_persistent_load<Shape>(a, l.first, held, shared);
    for (int i = threadIdx.x; i < 2 * Q * Shape::K; i += Shape::THREADS) {
        int q = i / Shape::K, k = i % Shape::K;
        all_h[i] = a.h_in && q < n && k < a.hidden ? a.h_in[(first + q) * a.hidden + k] : 0;
    }
    if (threadIdx.x == 0)
        for (int b = 0; b < 2; b++) rm_mailbox_open(&box[b]), rm_mailbox_expect(&box[b], bytes);
    rm_cluster_sync();

    rm_peer peer[PEERS]; /* h' is sent to every block; four lanes share this work */
    RM_UNROLL for (int i = 0; i < PEERS; i++) peer[i] = rm_cluster_peer(column + 4 * i < size ? column + 4 * i : 0);
    /* The first row of this lane in the timestep that is prefetched, and in the one that is written. Its other rows are
     * GROUPS apart. */
    const int64_t row = first + l.group, wide = a.batch * a.width, deep = a.batch * a.hidden;
    const int64_t between = GROUPS * a.width, under = GROUPS * a.hidden;
    const float *from = a.table ? NULL : rm_persistent_product<Cell>(a, l, row);
    const int32_t *token = a.table ? a.token + row : NULL;
    float *kept_at = a.gates ? a.gates + row * a.width + column * a.hidden + l.unit : NULL;
    float *y = a.y + row * a.hidden + l.unit, *c_at = Cell::HAS_C && a.c ? a.c + row * a.hidden + l.unit : NULL;
    float c[PASSES];
    RM_UNROLL for (int j = 0; j < PASSES; j++) {
        const int q = l.group + j * GROUPS;
        c[j] = q < n && l.lives && Cell::HAS_C && a.c_in ? a.c_in[(first + q) * a.hidden + l.unit] : 0;
    }
    for (int t = 0; t < AHEAD; t++) {
        RM_UNROLL for (int j = 0; j < PASSES; j++) {
            const int spot = (t * PASSES + j) * Shape::THREADS;
            const bool has = l.group + j * GROUPS < n && l.reads && t < a.tau;
            ring[spot] = 0;
            if (has && !token) rm_fetch(&ring[spot], from + j * between);
            if (has && token) rm_fetch(&ring[spot], rm_persistent_entry<Cell>(a, l, token[j * GROUPS]));
            if (has && token && t + AHEAD < a.tau) rm_fetch(&tokens[spot], &token[AHEAD * a.batch + j * GROUPS]);
        }
        rm_fetch_end();
        if (token) token += a.batch;
        else from += wide;
    }
    if (token) token += AHEAD * a.batch;
    /* Other warps do not wait for a warp that sends nothing. They could get two phases ahead, and this warp would
     * miss the end of the first phase. It has no work anyway, so it skips the loop. */
    const bool warp_lives = (int64_t)rank * Shape::U + threadIdx.x / RM_LANES * (RM_LANES / Shape::S) * V < a.hidden;
    for (int64_t t = 0; warp_lives && t < a.tau; t++) {
        const int now = (int)(t & 1), next = 1 - now, turn = (int)(t % AHEAD) * PASSES;
        rm_fetch_wait<AHEAD - 1>();
        const bool goes_on = t + 1 < a.tau;
        const float *const h = all_h + now * Q * Shape::K;
        float *const h_next = all_h + next * Q * Shape::K;
        if (t > 0) {
            rm_mailbox_wait(&box[now], (unsigned)((t - 1) >> 1 & 1));
            if (threadIdx.x == 0 && t + 2 < a.tau) rm_mailbox_expect(&box[now], bytes);
        }
        float sum[Q];
        rm_persistent_sums<Shape, Q>(held, shared, h, sum);
        RM_UNROLL for (int j = 0; j < PASSES; j++) {
            const int q = l.group + j * GROUPS;
            float own = 0, kept = 0;
            RM_UNROLL for (int p = 0; p < Q; p++) own = q == p ? sum[p] : own;
            const bool has = q < n && l.lives;
            const int slot = q * Shape::K + (int)l.unit;
            const int spot = (turn + j) * Shape::THREADS;
            float h_new = rm_persistent_next<Cell>(l, ring[spot], own, has ? h[slot] : 0, &c[j], &kept);
            if (!has) continue;
            if (goes_on) {
                RM_UNROLL for (int i = 0; i < PEERS; i++)
                    if (column + 4 * i < size) rm_mailbox_send(peer[i], &h_next[slot], &box[next], h_new);
            }
            if (l.reads && t + AHEAD < a.tau) {
                rm_fetch(&ring[spot], token ? rm_persistent_entry<Cell>(a, l, tokens[spot]) : from + j * between);
                if (token && t + 2 * AHEAD < a.tau) rm_fetch(&tokens[spot], &token[j * GROUPS]);
            }
            if (kept_at) kept_at[j * between] = kept;
            if (column == 0) y[j * under] = h_new;
            if (c_at && column == 1) c_at[j * under] = c[j];
            if (goes_on || column) continue;
            if (a.h_out) a.h_out[(first + q) * a.hidden + l.unit] = h_new;
            if (Cell::HAS_C && a.c_out) a.c_out[(first + q) * a.hidden + l.unit] = c[j];
        }
        rm_fetch_end();
        y += deep;
        if (kept_at) kept_at += wide;
        if (c_at) c_at += deep;
        if (token) token += a.batch;
        else from += wide;
    }
    rm_cluster_sync();
#endif
}

/* ---- Rebuild -------------------------------------------------------------------------------------------------------- */

enum { RM_PERSISTENT_REBUILD_REGISTERS = 128 }; /* fewer weights, since prefetched rows need registers */

template <class Cell, int V> static constexpr size_t rm_persistent_rebuild_bytes(void) {
    typedef rm_persistent_shape<Cell, V, RM_PERSISTENT_REBUILD_REGISTERS> Shape;
    return (2 * RM_PERSISTENT_SEQUENCES * Shape::K + Shape::FORWARD_SHARED) * sizeof(float);
}

/* This thread's part of h before rows [at, at + Q): every 256th number. Skips rows from `to` on. */
template <class Shape, int Q>
static __device__ inline void rm_persistent_fetch(const rm_persistent &a, int64_t at, int64_t to, float *part) {
    RM_UNROLL for (int j = 0; j < Q * Shape::K / Shape::THREADS; j++) {
        const int64_t i = threadIdx.x + j * Shape::THREADS, row = at + i / Shape::K, k = i % Shape::K;
        const float *h = row < a.batch ? a.h_in ? a.h_in + row * a.hidden : NULL : a.y + (row - a.batch) * a.hidden;
        part[j] = h && row < to && k < a.hidden ? h[k] : 0;
    }
}

/* Rebuilds the gates of all rows, in place of x's parts if there is no table; another kernel computes c. Blocks are
 * independent: each computes U units of rows_each rows, and blocks of the same rows are neighbours. Rows are
 * prefetched while earlier ones are summed. */
template <class Cell, int V>
static __global__ void __launch_bounds__(RM_PERSISTENT_THREADS, V == 1 ? 2 : 1) rm_persistent_rebuild(rm_persistent a) {
#if RM_PERSISTENT
    typedef rm_persistent_shape<Cell, V, RM_PERSISTENT_REBUILD_REGISTERS> Shape;
    enum { Q = RM_PERSISTENT_SEQUENCES, GROUPS = Shape::GROUPS, PASSES = (Q + GROUPS - 1) / GROUPS };
    float *const all_h = rm_cluster_memory(), *const shared = all_h + 2 * Q * Shape::K;
    const int64_t parts = (a.hidden + Shape::U - 1) / Shape::U, rows = a.tau * a.batch;
    const int64_t from = blockIdx.x / parts * a.rows_each;
    const int64_t to = from + a.rows_each < rows ? from + a.rows_each : rows;
    const rm_persistent_lane l = rm_persistent_lane_of<Shape>(a, blockIdx.x % parts * Shape::U);
    float held[Shape::HELD_CHUNKS * Shape::CHUNK], part[Q * Shape::K / Shape::THREADS];
    rm_persistent_fetch<Shape, Q>(a, from, to, part);
    rm_persistent_load<Shape>(a, l.first, held, shared);
    for (int64_t row = from; row < to; row += Q) {
        float *const h = all_h + (row - from) / Q % 2 * Q * Shape::K; /* the previous one may still be read */
        float sum[Q], x[PASSES];
        RM_UNROLL for (int j = 0; j < Q * Shape::K / Shape::THREADS; j++) h[threadIdx.x + j * Shape::THREADS] = part[j];
        RM_UNROLL for (int j = 0; j < PASSES; j++) {
            const int q = l.group + j * GROUPS;
            const bool has = q < Q && row + q < to && l.reads;
            x[j] = !has ? 0 : a.table ? *rm_persistent_entry<Cell>(a, l, a.token[row + q])
                                      : *rm_persistent_product<Cell>(a, l, row + q);
        }
        __syncthreads();
        rm_persistent_fetch<Shape, Q>(a, row + Q, to, part);
        rm_persistent_sums<Shape, Q>(held, shared, h, sum);
        RM_UNROLL for (int j = 0; j < PASSES; j++) {
            const int q = l.group + j * GROUPS;
            float own = 0, kept = 0, c = 0;
            RM_UNROLL for (int p = 0; p < Q; p++) own = q == p ? sum[p] : own;
            rm_persistent_next<Cell>(l, x[j], own, 0, &c, &kept);
            if (q < Q && row + q < to && l.lives)
                a.gates[(row + q) * a.width + threadIdx.x % 4 * a.hidden + l.unit] = kept;
        }
    }
#endif
}

/* ---- Backward ------------------------------------------------------------------------------------------------------- */

enum { RM_PERSISTENT_READS = 6 }; /* numbers kept for a unit and timestep */

template <class Cell, int V, int Q> static constexpr size_t rm_persistent_backward_bytes(void) {
    typedef rm_persistent_shape<Cell, V> Shape;
    return (2 * Q * Shape::U * (RM_CLUSTER_MOST + 4) + Shape::BACKWARD_SHARED +
            RM_PERSISTENT_AHEAD * RM_PERSISTENT_READS * Q * Shape::U) *
               sizeof(float) +
           2 * sizeof(rm_mailbox);
}

/* The numbers that backward of a unit and timestep reads: the kept values (of a plain RNN y), and c or h of the
 * previous timestep. */
struct rm_persistent_read {
    float kept[4], before, tanh_c;
};

/* The addresses that backward of a unit reads; they move back from timestep to timestep. */
struct rm_persistent_source {
    const float *kept, *dy, *before, *in; /* before: the state before the timestep; in: the state before the tile, or
                                             NULL */
};
template <class Cell>
static __device__ inline rm_persistent_source rm_persistent_source_of(const rm_persistent &a, int64_t sequence, int64_t unit) {
    const int64_t row = (a.tau - 1) * a.batch + sequence, at = row * a.hidden + unit;
    const float *in = Cell::HAS_C ? a.c_in : a.h_in;
    rm_persistent_source s = {a.y + at, a.dy + at, (Cell::HAS_C ? a.c : a.y) + at - a.batch * a.hidden, NULL};
    if (Cell::COLUMNS > 1) s.kept = a.gates + row * a.width + unit;
    if (in) s.in = in + sequence * a.hidden + unit;
    return s;
}

/* Prefetches timestep t, unless it is below 0, into a place of the ring, with numbers `apart` from each other; then
 * moves on to the timestep before it. */
template <class Cell>
static __device__ inline void rm_persistent_fetch_back(const rm_persistent &a, int64_t t, rm_persistent_source *s,
                                                       float *place, int apart) {
    if (t >= 0) {
        RM_UNROLL for (int k = 0; k < Cell::COLUMNS; k++) rm_fetch(place + k * apart, s->kept + k * a.hidden);
        rm_fetch(place + 4 * apart, s->dy);
        if (Cell::COLUMNS > 1) {
            if (t > 0) rm_fetch(place + 5 * apart, s->before);
            else if (s->in) rm_fetch(place + 5 * apart, s->in);
            else place[5 * apart] = 0;
        }
    }
    rm_fetch_end();
    const int64_t deep = a.batch * a.hidden;
    s->kept -= a.batch * a.width, s->dy -= deep, s->before -= deep;
}

/* Adds the shares of all 16 blocks of the cluster (0 for missing ones) in a fixed order: in fours, then the four sums.
 */
static __device__ inline float rm_persistent_add_shares(const float *share) {
    float sum[RM_CLUSTER_MOST / 4];
    RM_UNROLL for (int i = 0; i < RM_CLUSTER_MOST / 4; i++) {
        const rm_four s = ((const rm_four *)share)[i];
        sum[i] = (s.v[0] + s.v[1]) + (s.v[2] + s.v[3]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Backward of a tile. Each cluster computes Q sequences, as in forward. */
template <class Cell, int V, int Q>
static __global__ void __launch_bounds__(RM_PERSISTENT_THREADS, V == 1 ? 2 : 1) rm_persistent_backward(rm_persistent a) {
#if RM_PERSISTENT
    typedef rm_persistent_shape<Cell, V> Shape;
    constexpr int U = Shape::U, G = Shape::G, C = Shape::C, MOST = RM_CLUSTER_MOST, ACROSS = Shape::THREADS / 2;
    constexpr int AHEAD = RM_PERSISTENT_AHEAD, PLACE = RM_PERSISTENT_READS * Q * U;
    float *const all_shares = rm_cluster_memory();      /* [2][Q][U][MOST]: shares of dh, by block */
    float *const all_d = all_shares + 2 * Q * U * MOST; /* [2][Q][U][4]: gradients of the gates' sums */
    float *const shared = all_d + 2 * Q * U * 4;
    float *const ring = shared + Shape::BACKWARD_SHARED; /* [AHEAD][READS][Q U] */
    rm_mailbox *const box = (rm_mailbox *)(ring + AHEAD * RM_PERSISTENT_READS * Q * U);
    const unsigned rank = rm_cluster_rank(), size = rm_cluster_size();
    const int64_t first = blockIdx.x / size * Q, first_unit = (int64_t)rank * U;
    const int n = (int)(a.batch - first < Q ? a.batch - first : Q);
    const int units = (int)(a.hidden - first_unit < U ? a.hidden - first_unit : U);
    const unsigned bytes = (unsigned)(n * units * size * sizeof(float));
    const int mine = threadIdx.x % U, sequence = threadIdx.x / U; /* thread s U + u ends with unit u of sequence s */
    const bool has = sequence < n && mine < units;
    const int64_t exchanges = a.tau - (a.dh_in ? 0 : 1), in = (first + sequence) * a.hidden + first_unit + mine;
    const int odd = threadIdx.x % 2, across = threadIdx.x / 2; /* this lane's units; its first column */

    float held[Shape::HELD_ROWS * Shape::ROW];
    RM_UNROLL for (int i = 0; i < Shape::ROWS; i++) {
        RM_UNROLL for (int e = 0; e < Shape::ROW; e++) {
            const int64_t unit = 2 * i + odd, gate = e % G, k = across + e / G * ACROSS;
            float w = unit < units && k < a.hidden ? a.w_hh[(gate * a.hidden + first_unit + unit) * a.hidden + k] : 0;
            if (i < Shape::HELD_ROWS) held[i * Shape::ROW + e] = w;
            else shared[((i - Shape::HELD_ROWS) * Shape::ROW + e) * Shape::THREADS + threadIdx.x] = w;
        }
    }
    for (int i = threadIdx.x; i < 2 * Q * U * (MOST + 4); i += Shape::THREADS) all_shares[i] = 0;
    if (threadIdx.x == 0)
        for (int b = 0; b < 2; b++) rm_mailbox_open(&box[b]), rm_mailbox_expect(&box[b], bytes);
    rm_cluster_sync();

    int column[C / 2], slot[C / 2]; /* the columns that this lane ends with, and the destination of their sums */
    rm_peer peer[C / 2];
    RM_UNROLL for (int c = 0; c < C / 2; c++) {
        column[c] = across + (2 * c + odd) * ACROSS, slot[c] = column[c] % U * MOST + (int)rank;
        peer[c] = rm_cluster_peer(column[c] < a.hidden ? column[c] / U : 0);
    }
    float dh = has && a.dh_out ? a.dh_out[in] : 0, dc = has && Cell::HAS_C && a.dc_out ? a.dc_out[in] : 0, direct = 0;
    const int64_t last = (a.tau - 1) * a.batch + first + sequence, unit = first_unit + mine;
    rm_persistent_source source = rm_persistent_source_of<Cell>(a, first + sequence, unit);
    float *d_at = a.gates + last * a.width + unit, c_next = has && Cell::HAS_C ? a.c[last * a.hidden + unit] : 0;
    for (int i = 0; i < AHEAD && has; i++)
        rm_persistent_fetch_back<Cell>(a, a.tau - 1 - i, &source, ring + threadIdx.x + i * PLACE, Q * U);
    for (int64_t s = 0; s <= exchanges; s++) {
        const int now = (int)(s & 1), next = 1 - now;
        const int64_t t = a.tau - 1 - s; /* -1: the state before the tile */
        float *const place = ring + threadIdx.x + s % AHEAD * PLACE;
        rm_persistent_read r = {{0, 0, 0, 0}, 0, 0};
        float dy = 0, out[4] = {0, 0, 0, 0};
        if (has && t >= 0) {
            rm_fetch_wait<AHEAD - 1>();
            RM_UNROLL for (int k = 0; k < Cell::COLUMNS; k++) r.kept[k] = place[k * Q * U];
            dy = place[4 * Q * U];
            if (Cell::COLUMNS > 1) r.before = place[5 * Q * U];
            if (Cell::HAS_C) r.tanh_c = rm_tanh(c_next), c_next = r.before;
        }
        if (s > 0) {
            rm_mailbox_wait(&box[now], (unsigned)((s - 1) >> 1 & 1));
            if (threadIdx.x == 0 && s + 2 <= exchanges) rm_mailbox_expect(&box[now], bytes);
            if (has) dh = rm_persistent_add_shares(all_shares + ((now * Q + sequence) * U + mine) * MOST) + direct;
        }
        if (t < 0) break;
        float *const d = all_d + now * Q * U * 4;
        if (has) {
            rm_four of_sums = {{0, 0, 0, 0}};
            Cell::back(r, dh + dy, &dc, &direct, out);
            RM_UNROLL for (int g = 0; g < G; g++) of_sums.v[g] = out[g + Cell::SHIFT];
            ((rm_four *)d)[sequence * U + mine] = of_sums;
        }
        __syncthreads();
        float part[Q][C][G];
        RM_UNROLL for (int q = 0; q < Q; q++) RM_UNROLL for (int c = 0; c < C; c++)
            RM_UNROLL for (int g = 0; g < G; g++) part[q][c][g] = 0;
        RM_UNROLL for (int i = 0; i < Shape::ROWS; i++) {
            rm_four x[Q];
            RM_UNROLL for (int q = 0; q < Q; q++) x[q] = ((const rm_four *)d)[q * U + 2 * i + odd];
            RM_UNROLL for (int e = 0; e < Shape::ROW; e++) {
                const int g = e % G, c = e / G;
                float w = i < Shape::HELD_ROWS
                              ? held[i * Shape::ROW + e]
                              : shared[((i - Shape::HELD_ROWS) * Shape::ROW + e) * Shape::THREADS + threadIdx.x];
                RM_UNROLL for (int q = 0; q < Q; q++) part[q][c][g] = fmaf(w, x[q].v[g], part[q][c][g]);
            }
        }
        RM_UNROLL for (int q = 0; q < Q; q++) {
            float sum[C];
            RM_UNROLL for (int c = 0; c < C; c++) {
                const float *p = part[q][c];
                sum[c] = G == 4 ? (p[0] + p[1 % G]) + (p[2 % G] + p[3 % G]) : G == 3 ? (p[0] + p[1 % G]) + p[2 % G] : p[0];
            }
            RM_UNROLL for (int c = 0; c < C / 2; c++) {
                float share = rm_persistent_halve(sum[2 * c], sum[2 * c + 1], 1);
                if (s < exchanges && q < n && column[c] < a.hidden)
                    rm_mailbox_send(peer[c], &all_shares[(next * Q + q) * U * MOST + slot[c]], &box[next], share);
            }
        }
        if (!has) continue;
        RM_UNROLL for (int k = 0; k < Cell::COLUMNS; k++) d_at[k * a.hidden] = out[k];
        d_at -= a.batch * a.width;
        rm_persistent_fetch_back<Cell>(a, t - AHEAD, &source, place, Q * U);
    }
    if (has && a.dh_in) a.dh_in[in] = dh;
    if (has && Cell::HAS_C && a.dc_in) a.dc_in[in] = dc;
    rm_cluster_sync();
#endif
}

/* ---- Launches ------------------------------------------------------------------------------------------------------- */

enum { RM_PERSISTENT_WIDEST = 512 };

static inline bool rm_persistent_is_wide(const rm_cell_tile *r) { return r->hidden > RM_PERSISTENT_WIDEST / 2; }

/* Number of clusters that run at once: with narrow layers, two blocks fit on a multiprocessor. */
static inline int64_t rm_persistent_at_once(const rm_cell_tile *r) {
    return r->queue->clusters * (rm_persistent_is_wide(r) ? 1 : 2);
}

/* Whether persistent kernels compute this layer's timesteps. The answer must be the same for all tiles and passes,
 * because bits differ. Layers that fit into one block need no cluster; with very many sequences products are faster
 * (docs/notes/cuda.md has times). */
static inline bool rm_persistent_serves(const rm_cell_tile *r) {
    enum { ONE_BLOCK = RM_PERSISTENT_WIDEST / RM_CLUSTER_MOST / 2, MOST_EACH = 8 };
    return !r->reset && r->hidden > ONE_BLOCK && r->hidden <= RM_PERSISTENT_WIDEST && r->batch <= MOST_EACH * rm_persistent_at_once(r);
}

/* Number of sequences per cluster. With more of them there are fewer rounds of clusters, but a timestep takes
 * longer: HANDING_ON once plus EACH per sequence, in an arbitrary unit. This only affects speed, not bits. */
static inline int rm_persistent_sequences(int64_t batch, int64_t at_once) {
    enum { HANDING_ON = 2, EACH = 1 };
    int best = 1;
    int64_t least = INT64_MAX;
    for (int q = 1; q <= RM_PERSISTENT_SEQUENCES; q++) {
        int64_t clusters = rm_blocks_of(batch, q), cost = rm_blocks_of(clusters, at_once) * (HANDING_ON + q * EACH);
        if (cost < least) least = cost, best = q;
    }
    return best;
}

static inline rm_persistent rm_persistent_of(const rm_cell_tile *r, bool has_c, float *gates, float *c) {
    rm_persistent a;
    memset(&a, 0, sizeof a);
    a.tau = r->tau, a.batch = r->batch, a.hidden = r->hidden, a.width = r->width;
    a.table = r->table, a.token = r->token, a.w_hh = r->w_hh, a.b_ih = r->b_ih, a.b_hh = r->b_hh;
    a.gates = gates, a.c = c, a.y = r->y, a.h_in = r->h_in;
    a.c_in = has_c ? (const float *)r->call->state_in[1].data : NULL;
    return a;
}

typedef void rm_persistent_kernel(rm_persistent);
struct rm_persistent_choice {
    rm_persistent_kernel *kernel;
    size_t bytes;
};
#define RM_PERSISTENT_CHOICES(pass, V)                                                                                \
    {{rm_persistent_##pass<Cell, V, 1>, rm_persistent_##pass##_bytes<Cell, V, 1>()},                                 \
     {rm_persistent_##pass<Cell, V, 2>, rm_persistent_##pass##_bytes<Cell, V, 2>()},                                 \
     {rm_persistent_##pass<Cell, V, 3>, rm_persistent_##pass##_bytes<Cell, V, 3>()},                                 \
     {rm_persistent_##pass<Cell, V, 4>, rm_persistent_##pass##_bytes<Cell, V, 4>()}}

static inline void rm_persistent_launch(const rm_cell_tile *r, const rm_persistent_choice choices[2][4], rm_persistent a) {
    const bool wide = rm_persistent_is_wide(r);
    const int units = RM_PERSISTENT_WIDEST / RM_CLUSTER_MOST / (wide ? 1 : 2);
    const int q = rm_persistent_sequences(r->batch, rm_persistent_at_once(r));
    const rm_persistent_choice chosen = choices[wide][q - 1];
    RM_LAUNCH_CLUSTERS(chosen.kernel, rm_blocks_of(r->batch, q), (int)rm_blocks_of(r->hidden, units),
                       RM_PERSISTENT_THREADS, chosen.bytes, r->queue, a);
}

/* As rm_cell_forward. */
template <class Cell>
static inline void rm_persistent_launch_forward(const rm_cell_tile *r, const float *products, float *gates, float *c) {
    static const rm_persistent_choice choices[2][4] = {RM_PERSISTENT_CHOICES(forward, 1), RM_PERSISTENT_CHOICES(forward, 2)};
    rm_persistent a = rm_persistent_of(r, Cell::HAS_C, gates, c);
    a.products = products;
    a.h_out = (float *)r->call->state_out[0].data, a.c_out = Cell::HAS_C ? (float *)r->call->state_out[1].data : NULL;
    rm_persistent_launch(r, choices, a);
}

/* As rm_cell_backward. */
template <class Cell> static inline void rm_persistent_launch_backward(const rm_cell_tile *r, float *gates, float *c) {
    static const rm_persistent_choice choices[2][4] = {RM_PERSISTENT_CHOICES(backward, 1),
                                                       RM_PERSISTENT_CHOICES(backward, 2)};
    const remat_call *call = r->call;
    rm_persistent a = rm_persistent_of(r, Cell::HAS_C, gates, c);
    a.dy = (const float *)call->dy.data, a.dh_out = (const float *)call->dstate_out[0].data;
    a.dh_in = (float *)call->dstate_in[0].data;
    if (Cell::HAS_C) a.dc_out = (const float *)call->dstate_out[1].data, a.dc_in = (float *)call->dstate_in[1].data;
    rm_persistent_launch(r, choices, a);
}

/* Rebuilds the gates of all rows, which contain x's parts unless there is a table. Does not compute c. */
template <class Cell> static inline void rm_persistent_launch_rebuild(const rm_cell_tile *r, float *gates) {
    const bool wide = rm_persistent_is_wide(r);
    const int64_t parts = rm_blocks_of(r->hidden, RM_PERSISTENT_WIDEST / RM_CLUSTER_MOST / (wide ? 1 : 2));
    const int64_t at_once = rm_persistent_at_once(r) * RM_CLUSTER_MOST / parts; /* ranges of rows */
    rm_persistent a = rm_persistent_of(r, false, gates, NULL);
    a.products = gates;
    a.rows_each = rm_blocks_of(rm_blocks_of(r->rows, RM_PERSISTENT_SEQUENCES), at_once) * RM_PERSISTENT_SEQUENCES;
    const int64_t blocks = rm_blocks_of(r->rows, a.rows_each) * parts;
    if (wide)
        RM_LAUNCH_CLUSTERS((rm_persistent_rebuild<Cell, 2>), blocks, 1, RM_PERSISTENT_THREADS,
                           (rm_persistent_rebuild_bytes<Cell, 2>()), r->queue, a);
    else
        RM_LAUNCH_CLUSTERS((rm_persistent_rebuild<Cell, 1>), blocks, 1, RM_PERSISTENT_THREADS,
                           (rm_persistent_rebuild_bytes<Cell, 1>()), r->queue, a);
}

#endif
