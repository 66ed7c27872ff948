/* collectives.h: random collectives on buffers of every kind, compared with a plain sum: what any engine must get
 * right. Every rank draws the same case from the same number and can compute what every other rank contributes. */
#ifndef TEST_COLLECTIVES_H
#define TEST_COLLECTIVES_H

#include <math.h>

#include "tests/dist/halves.h"
#include "tests/dist/ranks.h"

typedef struct {
    rm_collective what;
    bool in_place, in_arena, queued;
    uint64_t seed;
} random_case;

static inline rm_reduction draw_reduction(rm_wire wire, int size, uint64_t random) {
    const bool tree = (wire == RM_WIRE_F32 || wire == RM_WIRE_F64) && !(size & (size - 1));
    const bool mean = wire == RM_WIRE_F32 || wire == RM_WIRE_F16 || wire == RM_WIRE_BF16;
    rm_reduction all[] = {RM_SUM, tree ? RM_TREE : RM_SUM, mean ? RM_MEAN : RM_SUM};
    return all[random % 3];
}

static inline random_case draw_case(uint64_t number, int size) {
    static const int64_t scales[] = {1, 7, 300, 5000, 70000, 300000};
    uint64_t state = number * 977 + 5;
    random_case c = {.seed = number};
    c.what.kind = (rm_kind)(next_random(&state) % RM_KINDS);
    c.what.wire = (rm_wire)(next_random(&state) % RM_WIRES);
    c.what.reduction = draw_reduction(c.what.wire, size, next_random(&state));
    c.what.root = (int32_t)(next_random(&state) % (uint64_t)size);
    c.what.tag = (uint32_t)next_random(&state);
    c.what.count = (int64_t)(next_random(&state) % (uint64_t)(scales[next_random(&state) % 6] + 1));
    c.in_place = next_random(&state) % 2;
    c.in_arena = next_random(&state) % 3 > 0;
    c.queued = next_random(&state) % 2;
    return c;
}

/* Element i of rank r's contribution: as bits, of which 8-, 16- and 32-bit elements use the lowest (so halves of every
 * kind occur, including NaN and infinity), or as floats of some magnitude and sign. */
static inline uint64_t brought_bits(const random_case *c, int r, int64_t i) {
    uint64_t state = c->seed * 1000003 + (uint64_t)r * 7919 + (uint64_t)i;
    return next_random(&state);
}
static inline double brought_real(const random_case *c, int r, int64_t i) {
    const uint64_t bits = brought_bits(c, r, i);
    if (c->what.wire == RM_WIRE_F16) return half_value((uint16_t)bits, F16);
    if (c->what.wire == RM_WIRE_BF16) return half_value((uint16_t)bits, BF16);
    if (c->what.wire == RM_WIRE_F64) return ldexp((double)(int64_t)bits, (int)(bits % 40) - 80);
    return (double)ldexpf((float)(int32_t)bits, (int)(bits % 40) - 50);
}
static inline void bring_element(const random_case *c, int r, int64_t i, void *to) {
    const uint64_t bits = brought_bits(c, r, i);
    const double real = brought_real(c, r, i);
    const float single = (float)real;
    if (c->what.wire == RM_WIRE_F32)
        memcpy(to, &single, 4);
    else if (c->what.wire == RM_WIRE_F64)
        memcpy(to, &real, 8);
    else
        memcpy(to, &bits, rm_wire_bytes(c->what.wire)); /* little endian */
}
static inline void bring(const random_case *c, int r, int64_t n, void *buffer) {
    const uint64_t width = rm_wire_bytes(c->what.wire);
    for (int64_t i = 0; i < n; i++) bring_element(c, r, i, (char *)buffer + (uint64_t)i * width);
}

/* The definitions of dist/group/group.h; volatile, so that nothing is contracted or reordered. */
static inline double rounded(rm_wire wire, double x) {
    volatile float single = (float)x;
    if (wire == RM_WIRE_F64) return x;
    if (wire == RM_WIRE_F16) return half_value(half_of((double)single, F16), F16);
    if (wire == RM_WIRE_BF16) return half_value(half_of((double)single, BF16), BF16);
    return (double)single;
}
static inline double contribution(const random_case *c, int r, int size, int64_t i) {
    volatile float share = 1.0f / (float)size, x = (float)brought_real(c, r, i);
    if (c->what.reduction != RM_MEAN) return brought_real(c, r, i);
    x = x * share;
    return rounded(c->what.wire, (double)x);
}
/* A sum of two floats in double, rounded, is their sum in float. */
static inline double added(rm_wire wire, double a, double b) {
    volatile double sum = a + b;
    volatile float single = (float)sum;
    return wire == RM_WIRE_F64 ? sum : (double)single;
}
static inline double summed(const random_case *c, int size, int64_t i) {
    double t[64] = {0};
    for (int r = 0; r < size; r++) t[r] = contribution(c, r, size, i);
    if (c->what.reduction == RM_TREE)
        for (int w = size / 2; w > 0; w /= 2)
            for (int r = 0; r < w; r++) t[r] = added(c->what.wire, t[r], t[r + w]);
    else
        for (int r = 1; r < size; r++) t[0] = added(c->what.wire, t[0], t[r]);
    return rounded(c->what.wire, t[0]);
}
static inline uint32_t summed_bits(const random_case *c, int size, int64_t i) {
    uint32_t sum = 0;
    for (int r = 0; r < size; r++) sum += (uint32_t)brought_bits(c, r, i);
    return sum;
}

/* Engines with their own order of additions may differ by the rounding of W - 1 additions, each at most half an ulp of
 * a partial sum, which is at most the sum of the magnitudes; and by another half for each product of a mean. */
static inline double slack(const random_case *c, int size, int64_t i) {
    double magnitudes = 0;
    for (int r = 0; r < size; r++) magnitudes += fabs(brought_real(c, r, i));
    return magnitudes * (size + 1) * (c->what.wire == RM_WIRE_F64 ? 0x1p-53 : 0x1p-24);
}

static inline double element(rm_wire wire, const void *out, int64_t k) {
    if (wire == RM_WIRE_F64) return ((const double *)out)[k];
    if (wire == RM_WIRE_F32) return (double)((const float *)out)[k];
    return half_value(((const uint16_t *)out)[k], wire == RM_WIRE_F16 ? F16 : BF16);
}

static inline void need_real(const random_case *c, int size, const void *out, int64_t k, int64_t i, bool rank_order) {
    const rm_wire wire = c->what.wire;
    const bool half = wire == RM_WIRE_F16 || wire == RM_WIRE_BF16;
    const double got = element(wire, out, k), expected = summed(c, size, i);
    if (half && isnan(expected))
        need(((const uint16_t *)out)[k] == half_of(expected, wire == RM_WIRE_F16 ? F16 : BF16), "case %d: which NaN?",
             (int)c->seed);
    else if (rank_order || half || c->what.reduction == RM_TREE)
        need(!memcmp(&got, &expected, sizeof got), "case %d: element %ld is %a, not %a", (int)c->seed, (long)i, got,
             expected);
    else
        need(fabs(got - expected) <= slack(c, size, i), "case %d: element %ld is %a, not %a", (int)c->seed, (long)i,
             got, expected);
}

/* out[k] must be element i of the sum (`of` = -1), or of the contribution of rank `of`. */
static inline void need_element(const random_case *c, int size, const void *out, int64_t k, int of, int64_t i,
                                bool rank_order) {
    const uint64_t width = rm_wire_bytes(c->what.wire);
    const char *at = (const char *)out + (uint64_t)k * width;
    char bare[8];
    if (of >= 0) {
        bring_element(c, of, i, bare);
        need(!memcmp(at, bare, width), "case %d: element %ld", (int)c->seed, (long)k);
    } else if (c->what.wire == RM_WIRE_I32 || c->what.wire == RM_WIRE_U8) {
        uint32_t sum = summed_bits(c, size, i);
        need(!memcmp(at, &sum, width), "case %d: element %ld", (int)c->seed, (long)k);
    } else {
        need_real(c, size, out, k, i, rank_order);
    }
}

static inline void need_result(const random_case *c, int rank, int size, const void *out, bool rank_order) {
    const int64_t n = c->what.count;
    for (int64_t i = 0; i < n; i++) switch (c->what.kind) {
        case RM_ALL_REDUCE:
            need_element(c, size, out, i, -1, i, rank_order);
            break;
        case RM_REDUCE_SCATTER:
            need_element(c, size, out, i, -1, rank * n + i, rank_order);
            break;
        case RM_BROADCAST:
            need_element(c, size, out, i, c->what.root, i, rank_order);
            break;
        case RM_ALL_GATHER:
            for (int r = 0; r < size; r++) need_element(c, size, out, r * n + i, r, i, rank_order);
            break;
        default:
            break;
        }
}

static inline void *take(rm_group *group, const random_case *c, uint64_t bytes) {
    void *buffer = c->in_arena ? rm_group_alloc(group, bytes) : malloc(bytes + 1);
    need(buffer, "no buffer of %lu bytes", (unsigned long)bytes);
    return buffer;
}
static inline void give(rm_group *group, const random_case *c, void *buffer) {
    if (c->in_arena)
        rm_group_free(group, buffer);
    else
        free(buffer);
}

/* Places `in` if it is a part of `out`, or the reverse. */
static inline void place(rm_group *group, random_case *c, int rank, int size, void **first, void **second) {
    uint64_t in = rm_collective_in_bytes(&c->what, size), out = rm_collective_out_bytes(&c->what, size);
    uint64_t row = (uint64_t)rank * (uint64_t)c->what.count * rm_wire_bytes(c->what.wire);
    *second = NULL;
    *first = take(group, c, in > out ? in : out);
    c->what.in = c->what.out = *first;
    if (!c->in_place && in) c->what.in = *second = take(group, c, in);
    if (c->in_place && c->what.kind == RM_ALL_GATHER) c->what.in = (char *)*first + row;
    if (c->in_place && c->what.kind == RM_REDUCE_SCATTER) c->what.out = (char *)*first + row;
}

/* Runs and checks one case. `rank_order`: sums must have the bits of a sum in rank order. */
static inline void do_case(rm_group *group, uint64_t number, bool rank_order) {
    const int rank = rm_group_rank(group), size = rm_group_size(group);
    random_case c = draw_case(number, size);
    if (!strcmp(rm_group_engine(group), "nccl")) c.in_arena = true; /* nccl does not use host memory */
    void *first, *second;
    place(group, &c, rank, size, &first, &second);
    if (c.what.kind != RM_BROADCAST && c.what.kind != RM_BARRIER)
        bring(&c, rank, c.what.count * (c.what.kind == RM_REDUCE_SCATTER ? size : 1), (void *)c.what.in);
    if (c.what.kind == RM_BROADCAST && rank == c.what.root) bring(&c, rank, c.what.count, c.what.out);
    if (c.queued) {
        rm_ticket ticket;
        need_ok(rm_group_issue(group, &c.what, &ticket));
        need_ok(rm_group_wait(group, ticket));
        need(rm_group_done(group, ticket), "not done");
    } else {
        need_ok(rm_group_run(group, &c.what));
    }
    need_result(&c, rank, size, c.what.out, rank_order);
    give(group, &c, first);
    if (second) give(group, &c, second);
}

#endif
