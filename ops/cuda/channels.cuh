/* channels.cuh: sums over all elements of each channel of x (outer,channels,inner): statistics, and gradients of gains
 * and biases. With inner 1 these are the columns of a matrix. Entry points: rm_launch_channels, rm_launch_add_columns; and
 * rm_launch_repeat_row, for biases themselves.
 *
 * Blocks read each element once. A channel's elements are dealt to `parts` blocks, so that few channels occupy the whole
 * GPU, too; then a thread joins the parts in order. If inner is 1, a warp reads 32 adjacent channels, otherwise the
 * threads of a block read one channel, four elements at a time. The order of a sum depends on the shape alone. */
#ifndef RM_CHANNELS_CUH
#define RM_CHANNELS_CUH

#include "ops/cuda/fours.cuh"

enum { RM_CHANNEL_WARPS = RM_SUM_THREADS / RM_WARP, RM_CHANNEL_BLOCKS = 1024 /* about as many are launched */ };

/* x: rows of `outer` start ld numbers apart. Channels first .. first + count are summed at a time. `slots` threads of a
 * block, or with inner 1 warps, share a channel's fours. */
typedef struct {
    int64_t outer, channels, inner, ld, first, count, slots, fours, parts;
} rm_channels;

/* Up to four elements of a channel: x[at + k step] is of row outer + k outer_step. */
typedef struct {
    int64_t at, step, outer, outer_step;
    int count;
} rm_place;

static __device__ inline rm_place rm_place_of(const rm_channels &l, int64_t c, int64_t four) {
    if (l.inner == 1) return {4 * four * l.ld + c, l.ld, 4 * four, 1, (int)(l.outer - 4 * four)};
    const int64_t each = (l.inner + 3) / 4, outer = rm_row_of(four, each), from = 4 * (four - outer * each);
    return {outer * l.ld + c * l.inner + from, 1, outer, 0, (int)(l.inner - from)};
}

static __device__ inline rm_four rm_load_place(const float *x, const rm_place &p) {
    if (p.step == 1) return rm_load_four(x + p.at, p.count);
    rm_four four = {};
    RM_UNROLL for (int k = 0; k < 4; k++) if (k < p.count) four.v[k] = x[p.at + k * p.step];
    return four;
}

/* What is summed: plain sums, or the moments below. */
template <int N> struct rm_sums { double v[N]; };
template <int N> static __device__ inline rm_sums<N> rm_join(rm_sums<N> a, const rm_sums<N> &b) {
    RM_UNROLL for (int k = 0; k < N; k++) a.v[k] += b.v[k];
    return a;
}

/* ---- Moments ------------------------------------------------------------------------------------------------------- */

/* The number of some elements, their mean, and the sum of their squared distances from it, in one pass. A thread adds
 * up distances d from its first element: m2 = sum(d d) - sum(d)^2 / n. Because that element is one of the n, sum(d d) is
 * at most (n + 1) m2, so the difference loses no more than a factor of n + 1 in precision, wherever the mean is. Threads
 * and parts are joined pairwise (Chan, Golub and LeVeque 1979). */
typedef struct {
    double n, mean, m2, pivot; /* while a thread adds: n, sum(d), sum(d d), its first element */
} rm_moments;

static __device__ inline void rm_moments_add(rm_moments *m, const rm_four &x, int count) {
    if (m->n == 0) m->pivot = x.v[0];
    RM_UNROLL for (int k = 0; k < 4; k++) if (k < count) {
        const double d = (double)x.v[k] - m->pivot;
        m->mean += d, m->m2 += d * d;
    }
    m->n += count < 4 ? count : 4;
}

static __device__ inline rm_moments rm_moments_of(const rm_moments &m) {
    if (m.n == 0) return {0, 0, 0, 0};
    const double m2 = m.m2 - m.mean * m.mean / m.n;
    return {m.n, m.pivot + m.mean / m.n, m2 < 0 ? 0 : m2, 0};
}

static __device__ inline rm_moments rm_join(const rm_moments &a, const rm_moments &b) {
    if (b.n == 0) return a;
    const double n = a.n + b.n, apart = b.mean - a.mean, share = b.n / n;
    return {n, a.mean + apart * share, a.m2 + b.m2 + apart * apart * a.n * share, 0};
}

/* ---- The sums over a channel --------------------------------------------------------------------------------------- */

/* The work of a launch: a struct with
 *     typedef .. sum;                                       doubles alone, all 0 at the start, with rm_join
 *     void take(sum *, int64_t channel, const rm_place &)   adds up to four elements
 *     sum end(sum)                                          after a thread's last one
 *     void conclude(int64_t channel, sum)                   stores a channel's result */
template <class Sum> static __device__ inline Sum rm_shuffled(const Sum &sum, int apart) {
    Sum other;
    const double *from = (const double *)&sum;
    double *to = (double *)&other;
    RM_UNROLL for (size_t k = 0; k < sizeof sum / sizeof *from; k++) to[k] =
        __shfl_xor_sync(0xffffffffu, from[k], apart);
    return other;
}

template <class Work> static __global__ void rm_sum_channels(Work work, rm_channels l, typename Work::sum *partial) {
    __shared__ typename Work::sum of_warp[RM_CHANNEL_WARPS][RM_WARP];
    const bool columns = l.inner == 1;
    const int64_t warp = threadIdx.x / RM_WARP, lane = threadIdx.x % RM_WARP, column = columns ? lane : 0;
    const int64_t tiles = columns ? (l.count + RM_WARP - 1) / RM_WARP : l.count, part = blockIdx.x / tiles;
    const int64_t at = (blockIdx.x - part * tiles) * (columns ? RM_WARP : 1) + column, c = l.first + at;
    const int64_t each = (l.fours + l.parts - 1) / l.parts;
    const int64_t end = (part + 1) * each < l.fours ? (part + 1) * each : l.fours;
    typename Work::sum sum = {};
    if (at < l.count)
        for (int64_t four = part * each + (columns ? warp : threadIdx.x); four < end; four += l.slots)
            work.take(&sum, c, rm_place_of(l, c, four));
    sum = work.end(sum);
    for (int apart = RM_WARP / 2; apart > 0 && !columns; apart /= 2) sum = rm_join(sum, rm_shuffled(sum, apart));
    if (columns || lane == 0) of_warp[warp][column] = sum;
    __syncthreads();
    if (warp > 0 || at >= l.count || lane != column) return;
    for (int w = 1; w < RM_CHANNEL_WARPS; w++) sum = rm_join(sum, of_warp[w][column]);
    if (l.parts > 1)
        partial[part * l.count + at] = sum;
    else
        work.conclude(c, sum);
}

template <class Work>
static __global__ void rm_join_channels(Work work, rm_channels l, const typename Work::sum *partial) {
    RM_EACH(at, l.count) {
        typename Work::sum sum = partial[at];
        for (int64_t part = 1; part < l.parts; part++) sum = rm_join(sum, partial[part * l.count + at]);
        work.conclude(l.first + at, sum);
    }
}

/* How many parts a channel has, so that its blocks occupy a GPU, each thread has several fours, and the parts fit into
 * the queue's memory. */
static inline int64_t rm_channel_parts(const rm_channels &l, int64_t most) {
    const int64_t blocks = l.inner == 1 ? rm_blocks_of(l.count, RM_WARP) : l.count;
    int64_t parts = rm_blocks_of(l.fours, 4 * l.slots);
    if (parts > rm_blocks_of(RM_CHANNEL_BLOCKS, blocks)) parts = rm_blocks_of(RM_CHANNEL_BLOCKS, blocks);
    if (parts > most / l.count) parts = most / l.count;
    return parts > 1 ? parts : 1;
}

/* ld: numbers between rows of `outer`. */
template <class Work>
static inline void rm_launch_channels(const void *queue, const Work &work, int64_t outer, int64_t channels,
                                      int64_t inner, int64_t ld) {
    typedef typename Work::sum sum;
    sum *partial = (sum *)((const rm_cuda_queue *)queue)->partial;
    const int64_t most = RM_CUDA_PARTIAL_BYTES / (int64_t)sizeof(sum);
    rm_channels l = {outer, channels, inner, ld, 0, 0, RM_SUM_THREADS, outer * ((inner + 3) / 4), 1};
    if (inner == 1) l.slots = RM_CHANNEL_WARPS, l.fours = (outer + 3) / 4;
    for (; l.first < channels; l.first += l.count) {
        l.count = channels - l.first < most ? channels - l.first : most;
        l.parts = rm_channel_parts(l, most);
        const int64_t tiles = inner == 1 ? rm_blocks_of(l.count, RM_WARP) : l.count;
        RM_LAUNCH_TOGETHER(rm_sum_channels<Work>, tiles * l.parts, RM_SUM_THREADS, queue, work, l, partial);
        if (l.parts > 1) RM_LAUNCH_EACH(rm_join_channels<Work>, l.count, queue, work, l, partial);
    }
}

/* ---- Plain sums ---------------------------------------------------------------------------------------------------- */

/* out[c] += the sum of channel c */
struct rm_channel_sums {
    typedef rm_sums<1> sum;
    const float *x;
    float *out;
    __device__ void take(sum *s, int64_t, const rm_place &p) const {
        const rm_four four = rm_load_place(x, p);
        RM_UNROLL for (int k = 0; k < 4; k++) s->v[0] += four.v[k];
    }
    __device__ sum end(const sum &s) const { return s; }
    __device__ void conclude(int64_t c, const sum &s) const { out[c] += (float)s.v[0]; }
};

/* out (n) += sums over the rows of x (rows,n), whose rows start ld numbers apart: gradients of biases. */
static inline void rm_launch_add_columns(const void *queue, int64_t rows, int64_t n, int64_t ld, const float *x,
                                         float *out) {
    rm_launch_channels(queue, rm_channel_sums{x, out}, rows, n, 1, ld);
}

/* Sets every row of y (rows,n) to `row`: the biases, before a product is added. */
static __global__ void rm_repeat_row(int64_t count, int64_t n, const float *row, float *y) {
    RM_EACH_FOUR(i, count) {
        rm_four four;
        int64_t at = i - rm_row_of(i, n) * n;
        RM_UNROLL for (int k = 0; k < 4; k++) {
            four.v[k] = row[at];
            at = at + 1 < n ? at + 1 : 0;
        }
        rm_store_four(y + i, count - i, four);
    }
}
static inline void rm_launch_repeat_row(const void *queue, int64_t rows, int64_t n, const float *row, float *y) {
    RM_LAUNCH_FOURS(rm_repeat_row, rows * n, queue, rows * n, n, row, y);
}

#endif
