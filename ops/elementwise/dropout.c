/* dropout.c: inverted dropout. The mask is a function of (seed, step, node, timestep, element) (engine/rng.h), so
 * it need not be saved: backward and every recomputation of forward draw it again. */
#include "ops/real.h"

#include <string.h>

#include "engine/rng.h"
#include "ops/elementwise/activation.h"
#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_dropout_attr *a = attr;
    TRY(rm_want_real("dropout", "x", &x[0]));
    REQUIRE(a && a->probability >= 0 && a->probability <= 1, INVALID,
            "dropout: the probability is %g; it must lie between 0 and 1", a ? a->probability : 0.0);
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 25, 2); /* ten rounds per four elements */
}

/* out = in / (1 - p) where the draw is >= p, else 0. Forward and backward are the same function. */
static void define_map(const remat_call *call, const remat_desc *shape, const real *in, real *out) {
    const rm_dropout_attr *a = call->attr;
    int64_t steps = rm_call_steps(call, shape), width = rm_desc_count(shape) / steps;
    for (int64_t t = 0; t < steps; t++)
        for (int64_t i = 0; i < width; i++) {
            uint32_t word =
                rm_random(call->key.seed, call->key.step, call->key.node, (uint32_t)(call->t0 + t), (uint64_t)i);
            bool keep = !call->training || rm_uniform(word) >= a->probability;
            real scale = call->training ? (real)(1 / (1 - a->probability)) : 1;
            out[t * width + i] = keep ? in[t * width + i] * scale : 0;
        }
}

static void define_forward(const remat_call *call) { define_map(call, &call->y.desc, call->x[0].data, call->y.data); }

static void define_backward(const remat_call *call) { /* y = x mask / (1 - p) */
    if (call->dx[0].data) define_map(call, &call->dy.desc, call->dy.data, call->dx[0].data);
}

/* ---- The fast version: counters side by side, so that the rounds are vectorised -------------------------- */

enum { COUNTERS = 32, GROUP = 4 * COUNTERS /* elements */ };

typedef struct {
    const remat_call *call;
    uint32_t threshold; /* an element is kept if its upper 24 bits are at least this, which means uniform >= p */
    real scale;
} map;

/* The draws of elements 4 first .. 4 first + GROUP - 1, in order: rm_random4 with the loop over rounds outside and the
 * loop over counters inside, which compilers vectorise. */
static void draw(const remat_key *key, uint32_t timestep, uint32_t first, uint32_t *word) {
    uint32_t c0[COUNTERS], c1[COUNTERS], c2[COUNTERS], c3[COUNTERS];
    uint32_t key0 = (uint32_t)key->seed, key1 = (uint32_t)(key->seed >> 32) ^ key->node;
    for (uint32_t i = 0; i < COUNTERS; i++) {
        c0[i] = first + i;
        c1[i] = timestep;
        c2[i] = (uint32_t)key->step;
        c3[i] = (uint32_t)(key->step >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNTERS; i++) {
            uint64_t a = (uint64_t)0xD2511F53u * c0[i], b = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(b >> 32) ^ c1[i] ^ key0;
            c1[i] = (uint32_t)b;
            c2[i] = (uint32_t)(a >> 32) ^ c3[i] ^ key1;
            c3[i] = (uint32_t)a;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    for (int i = 0; i < COUNTERS; i++) {
        word[4 * i] = c0[i];
        word[4 * i + 1] = c1[i];
        word[4 * i + 2] = c2[i];
        word[4 * i + 3] = c3[i];
    }
}

/* Elements [from, from + n) of one timestep; n <= GROUP, and `from` is a multiple of GROUP. */
static void map_group(const map *m, uint32_t timestep, int64_t from, int64_t n, const real *in, real *out) {
    uint32_t word[GROUP];
    draw(&m->call->key, timestep, (uint32_t)(from / 4), word);
    uint32_t threshold = m->threshold;
    real scale = m->scale;
    for (int64_t i = 0; i < n; i++) out[i] = rm_dropout(in[i], word[i], threshold, scale);
}

static void run(const remat_call *call, const remat_desc *shape, const real *in, real *out) {
    double p = ((const rm_dropout_attr *)call->attr)->probability;
    int64_t count = rm_desc_count(shape), steps = rm_call_steps(call, shape), width = count / steps;
    if (!call->training) {
        memcpy(out, in, (size_t)count * sizeof *out);
        return;
    }
    map m = {call, rm_dropout_threshold(p), rm_dropout_scale(p)};
    int64_t groups = (width + GROUP - 1) / GROUP;
    RM_PARALLEL_FOR(
        call->threads, count > RM_PARALLEL_MIN_HEAVY, for (int64_t job = 0; job < steps * groups; job++) {
            int64_t t = job / groups, from = job % groups * GROUP, at = t * width + from;
            map_group(&m, (uint32_t)(call->t0 + t), from, width - from < GROUP ? width - from : GROUP, in + at,
                      out + at);
        });
}

static void forward(const remat_call *call) { run(call, &call->y.desc, call->x[0].data, call->y.data); }

static void backward(const remat_call *call) {
    if (call->dx[0].data) run(call, &call->dy.desc, call->dy.data, call->dx[0].data);
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 7, 3, 5)}, .attr = &(rm_dropout_attr){0.25}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 50)}, .attr = &(rm_dropout_attr){0.5}},
    {.name = "keeps everything", .x = {RM_SHAPE2(RM_REAL, 2, 9)}, .attr = &(rm_dropout_attr){0}},
    {.name = "large enough for threads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 4, 13, 337)},
     .attr = &(rm_dropout_attr){0.1}},
};

const remat_op RM_OP(dropout) = {
    .struct_bytes = sizeof(remat_op),
    .name = "dropout",
    .doc = "y = x mask / (1 - p), mask 0 with probability p; y = x in evaluation; any shape",
    .n_in = 1,
    .attr_bytes = sizeof(rm_dropout_attr),
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(dropout)},
    .cheap = true,
    .random = 1,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};
