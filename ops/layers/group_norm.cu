/* group_norm.cu: the CUDA kernels of the op `group_norm` (group_norm.c): norm.cuh's, whose row is a group of a sample, with a
 * gain and a bias for each channel. */
#include "ops/layers/norm.cuh"

enum { X, GAIN, BIAS };

/* x is (samples,channels,inner), split into samples * groups rows of `each` channels. */
typedef struct {
    int64_t samples, channels, inner, groups, each;
} shape;

static shape shape_of(const remat_desc *x, const void *attr) {
    const rm_group_norm_attr *a = (const rm_group_norm_attr *)attr;
    shape s = {1, x->dim[a->axis], 1, a->groups, x->dim[a->axis] / a->groups};
    for (int d = 0; d < x->rank; d++)
        if (d < a->axis)
            s.samples *= x->dim[d];
        else if (d > a->axis)
            s.inner *= x->dim[d];
    return s;
}

/* Gain or bias of the four elements from i on, of a row whose first channel is `first`; NULL: 0. */
static __device__ inline rm_four by_channel(const shape &s, const float *of_channel, int64_t first, int64_t i) {
    rm_four four = {};
    if (!of_channel) return four;
    int64_t c = rm_row_of(i, s.inner), rest = i - c * s.inner;
    RM_UNROLL for (int k = 0; k < 4; k++) {
        if (c < s.each) four.v[k] = of_channel[first + c];
        if (++rest == s.inner) rest = 0, c++;
    }
    return four;
}

struct vectors_of_group {
    shape s;
    const float *gains, *biases;
    __device__ rm_four gain(int64_t row, int64_t i) const { return by_channel(s, gains, row % s.groups * s.each, i); }
    __device__ rm_four bias(int64_t row, int64_t i) const { return by_channel(s, biases, row % s.groups * s.each, i); }
    __device__ int64_t row_of(int64_t outer, int64_t c) const { return outer * s.groups + c / s.each; }
};

static vectors_of_group vectors_of(const remat_call *call) {
    return {shape_of(&call->x[X].desc, call->attr), (const float *)call->x[GAIN].data,
            (const float *)call->x[BIAS].data};
}

void rm_group_norm_forward_cuda(const remat_call *call) {
    const vectors_of_group v = vectors_of(call);
    const int64_t rows = v.s.samples * v.s.groups, n = v.s.each * v.s.inner;
    RM_LAUNCH_ROWS(rm_norm_forward, rows, n, call->queue, v, rows, n,
                   ((const rm_group_norm_attr *)call->attr)->epsilon, (const float *)call->x[X].data,
                   (float *)call->y.data, (rm_norm_facts *)call->aux);
}

void rm_group_norm_backward_cuda(const remat_call *call) {
    const vectors_of_group v = vectors_of(call);
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    const rm_norm_facts *facts = (const rm_norm_facts *)call->aux;
    float *dx = (float *)call->dx[X].data, *dgain = (float *)call->dx[GAIN].data, *dbias = (float *)call->dx[BIAS].data;
    const int64_t rows = v.s.samples * v.s.groups, n = v.s.each * v.s.inner;
    if (dx) RM_LAUNCH_ROWS(rm_norm_backward, rows, n, call->queue, v, rows, n, x, dy, facts, dx);
    if (dgain || dbias)
        rm_launch_channels(call->queue, rm_norm_vector_gradients<vectors_of_group>{v, x, dy, facts, dgain, dbias},
                           v.s.samples, v.s.channels, v.s.inner, v.s.channels * v.s.inner);
}
