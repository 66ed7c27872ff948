/* linear_scan.cu: the CUDA kernels of the op `linear_scan` (linear_scan.c). A thread computes one column through
 * the tile. */
#include "ops/cuda/kernel.cuh"

enum { A, B, RESET, THREADS = 64 /* threads of a block: few, since few columns are common */ };

typedef struct {
    int64_t tau, columns, width, batch;
    const float *a, *b, *y, *h_in;
    const float *reset;
} scan;

static scan scan_of(const remat_call *call) {
    const remat_desc *y = &call->y.desc;
    int64_t columns = rm_desc_count(y) / y->dim[0];
    scan s = {y->dim[0],
              columns,
              columns / y->dim[1],
              y->dim[1],
              (const float *)call->x[A].data,
              (const float *)call->x[B].data,
              (const float *)call->y.data,
              (const float *)call->state_in[0].data,
              (const float *)call->x[RESET].data};
    return s;
}

static __device__ inline bool is_reset(const scan &s, int64_t t, int64_t row) {
    return s.reset && s.reset[t * s.batch + row] > 0;
}

static __global__ void forward(scan s, float *y, float *h_out) {
    RM_EACH(i, s.columns) {
        int64_t row = rm_row_of(i, s.width);
        bool begun = s.h_in;
        float h = begun ? s.h_in[i] : 0;
        for (int64_t t = 0; t < s.tau; t++) {
            int64_t at = t * s.columns + i;
            h = !begun || is_reset(s, t, row) ? s.b[at] : s.a[at] * h + s.b[at];
            y[at] = h, begun = true;
        }
        h_out[i] = h;
    }
}

static __global__ void clear(int64_t n, float *to) { RM_EACH(i, n) to[i] = 0; }

/* h' = a h + b:  db = dh', da = dh' h, dh = dh' a. */
static __global__ void backward(scan s, const float *dy, const float *dh_out, float *da, float *db, float *dh_in) {
    RM_EACH(i, s.columns) {
        int64_t row = rm_row_of(i, s.width);
        float dh = dh_out ? dh_out[i] : 0;
        for (int64_t t = s.tau - 1; t >= 0; t--) {
            int64_t at = t * s.columns + i;
            bool reset = is_reset(s, t, row);
            float h = t ? s.y[at - s.columns] : s.h_in ? s.h_in[i] : 0;
            dh += dy[at];
            if (db) db[at] = dh;
            if (da) da[at] = reset ? 0 : dh * h;
            dh = reset ? 0 : dh * s.a[at];
        }
        if (dh_in) dh_in[i] = dh;
    }
}

void rm_linear_scan_forward_cuda(const remat_call *call) {
    scan s = scan_of(call);
    RM_LAUNCH(forward, rm_blocks_within(s.columns, THREADS, RM_EACH_BLOCKS), THREADS, call->queue, s,
              (float *)call->y.data, (float *)call->state_out[0].data);
}

void rm_linear_scan_backward_cuda(const remat_call *call) {
    scan s = scan_of(call);
    RM_LAUNCH(backward, rm_blocks_within(s.columns, THREADS, RM_EACH_BLOCKS), THREADS, call->queue, s,
              (const float *)call->dy.data, (const float *)call->dstate_out[0].data, (float *)call->dx[A].data,
              (float *)call->dx[B].data, (float *)call->dstate_in[0].data);
    int64_t rows = s.tau * s.batch;
    if (call->dx[RESET].data) RM_LAUNCH_EACH(clear, rows, call->queue, rows, (float *)call->dx[RESET].data);
}
