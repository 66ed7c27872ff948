/* minimal.cuh: the CUDA kernels of min_gru and min_lstm. A thread computes one unit of one row through the tile;
 * columns are independent. `cell` computes the gates from x (min_gru.cu, min_lstm.cu). */
#ifndef RM_MINIMAL_CUH
#define RM_MINIMAL_CUH

#include "ops/cuda/kernel.cuh"
#include "ops/recurrent/minimal_math.h"

enum { RM_MIN_THREADS = 64 /* threads of a block: few, since few columns are common */ };

enum { RM_MIN_X, RM_MIN_RESET };

/* x: row (t,b) starts at (t batch + b) PARTS hidden; state = batch hidden. */
typedef struct {
    int64_t tau, batch, state, hidden;
    const float *x, *reset, *y, *h_in;
} rm_min_tile;

static inline rm_min_tile rm_min_tile_of(const remat_call *call) {
    const remat_desc *y = &call->y.desc;
    rm_min_tile tile = {y->dim[0],
                        y->dim[1],
                        y->dim[1] * y->dim[2],
                        y->dim[2],
                        (const float *)call->x[RM_MIN_X].data,
                        (const float *)call->x[RM_MIN_RESET].data,
                        (const float *)call->y.data,
                        (const float *)call->state_in[0].data};
    return tile;
}

static __device__ inline bool rm_min_begins(const rm_min_tile &tile, int64_t t, int64_t row) {
    return tile.reset && tile.reset[t * tile.batch + row] > 0;
}

static __global__ void rm_min_clear(int64_t n, float *to) { RM_EACH(i, n) to[i] = 0; }

template <class cell> static __global__ void rm_min_forward(rm_min_tile tile, float *y, float *h_out) {
    RM_EACH(i, tile.state) {
        int64_t row = rm_row_of(i, tile.hidden), first = row * tile.hidden * cell::PARTS + (i - row * tile.hidden);
        float h = tile.h_in ? tile.h_in[i] : 0;
        for (int64_t t = 0; t < tile.tau; t++) {
            rm_min_gates a = cell::gates(tile.x + t * tile.state * cell::PARTS + first, tile.hidden);
            if (rm_min_begins(tile, t, row)) h = 0;
            h = a.keep * h + a.take * a.candidate;
            y[t * tile.state + i] = h;
        }
        h_out[i] = h;
    }
}

template <class cell>
static __global__ void rm_min_backward(rm_min_tile tile, const float *dy, const float *dh_out, float *dx, float *dh_in) {
    RM_EACH(i, tile.state) {
        int64_t row = rm_row_of(i, tile.hidden), first = row * tile.hidden * cell::PARTS + (i - row * tile.hidden);
        float dh = dh_out ? dh_out[i] : 0;
        for (int64_t t = tile.tau - 1; t >= 0; t--) {
            int64_t at = t * tile.state * cell::PARTS + first;
            rm_min_gates a = cell::gates(tile.x + at, tile.hidden);
            bool begins = rm_min_begins(tile, t, row);
            float h = begins ? 0 : t ? tile.y[(t - 1) * tile.state + i] : tile.h_in ? tile.h_in[i] : 0;
            float d = dh + dy[t * tile.state + i], dtake = d * (a.candidate - h);
            if (dx) dx[at] = d * a.take * a.slope;
            for (int k = 1; dx && k < cell::PARTS; k++) dx[at + k * tile.hidden] = dtake * a.turn[k - 1];
            dh = begins ? 0 : d * a.keep;
        }
        if (dh_in) dh_in[i] = dh;
    }
}

template <class cell> static void rm_min_launch_forward(const remat_call *call) {
    rm_min_tile tile = rm_min_tile_of(call);
    RM_LAUNCH(rm_min_forward<cell>, rm_blocks_within(tile.state, RM_MIN_THREADS, RM_EACH_BLOCKS), RM_MIN_THREADS,
              call->queue, tile, (float *)call->y.data, (float *)call->state_out[0].data);
}

template <class cell> static void rm_min_launch_backward(const remat_call *call) {
    rm_min_tile tile = rm_min_tile_of(call);
    RM_LAUNCH(rm_min_backward<cell>, rm_blocks_within(tile.state, RM_MIN_THREADS, RM_EACH_BLOCKS), RM_MIN_THREADS,
              call->queue, tile, (const float *)call->dy.data, (const float *)call->dstate_out[0].data,
              (float *)call->dx[RM_MIN_X].data, (float *)call->dstate_in[0].data);
    int64_t rows = tile.tau * tile.batch;
    if (call->dx[RM_MIN_RESET].data)
        RM_LAUNCH_EACH(rm_min_clear, rows, call->queue, rows, (float *)call->dx[RM_MIN_RESET].data);
}

#endif
