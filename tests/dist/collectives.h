/* collectives.h: random collectives, on buffers of every kind, against a plain sum: what any engine must get right. Every
 * rank draws the same case from the same number, and knows what every other rank brings. */
#ifndef TEST_COLLECTIVES_H
#define TEST_COLLECTIVES_H

#include <math.h>

#include "tests/dist/ranks.h"

typedef struct {
    rm_collective what;
    bool in_place, in_arena, queued;
    uint64_t seed;
} random_case;

static inline random_case draw_case(uint64_t number, int size) {
    static const int64_t scales[] = {1, 7, 300, 5000, 70000, 300000};
    uint64_t state = number * 977 + 5;
    random_case c = {.seed = number};
    c.what.kind = (rm_kind)(next_random(&state) % RM_KINDS);
    c.what.wire = (rm_wire)(next_random(&state) % RM_WIRES);
    c.what.reduction = c.what.wire == RM_WIRE_F32 && next_random(&state) % 2 ? RM_MEAN : RM_SUM;
    c.what.root = (int32_t)(next_random(&state) % (uint64_t)size);
    c.what.tag = (uint32_t)next_random(&state);
    c.what.count = (int64_t)(next_random(&state) % (uint64_t)(scales[next_random(&state) % 6] + 1));
    c.in_place = next_random(&state) % 2;
    c.in_arena = next_random(&state) % 3 > 0;
    c.queued = next_random(&state) % 2;
    return c;
}

/* What rank r brings as its element i, as an integer and as a float of some magnitude and sign. */
static inline uint32_t brought_bits(const random_case *c, int r, int64_t i) {
    uint64_t state = c->seed * 1000003 + (uint64_t)r * 7919 + (uint64_t)i;
    return (uint32_t)next_random(&state);
}
static inline float brought_float(const random_case *c, int r, int64_t i) {
    uint32_t bits = brought_bits(c, r, i);
    return ldexpf((float)(int32_t)bits, (int)(bits % 40) - 50);
}
static inline void bring(const random_case *c, int r, int64_t n, void *buffer) {
    for (int64_t i = 0; i < n; i++)
        if (c->what.wire == RM_WIRE_F32)
            ((float *)buffer)[i] = brought_float(c, r, i);
        else if (c->what.wire == RM_WIRE_I32)
            ((uint32_t *)buffer)[i] = brought_bits(c, r, i);
        else
            ((uint8_t *)buffer)[i] = (uint8_t)brought_bits(c, r, i);
}

/* The definition: element i of the sum, in the order of ranks; volatile so that nothing is contracted or reordered. */
static inline float summed_float(const random_case *c, int size, int64_t i) {
    volatile float share = 1.0f / (float)size, sum = 0, part;
    for (int r = 0; r < size; r++) {
        part = c->what.reduction == RM_MEAN ? brought_float(c, r, i) * share : brought_float(c, r, i);
        sum = r == 0 ? part : sum + part;
    }
    return sum;
}
static inline uint32_t summed_bits(const random_case *c, int size, int64_t i) {
    uint32_t sum = 0;
    for (int r = 0; r < size; r++) sum += brought_bits(c, r, i);
    return sum;
}

/* Engines that add in an order of their own are held to the rounding of W - 1 additions: each at most half an ulp of a
 * partial sum, which is at most the sum of magnitudes; another half for each product of a mean. */
static inline double slack(const random_case *c, int size, int64_t i) {
    double magnitudes = 0;
    for (int r = 0; r < size; r++) magnitudes += fabs((double)brought_float(c, r, i));
    return magnitudes * (size + 1) * 0x1p-24;
}

static inline void need_float(const random_case *c, int size, int64_t i, float got, bool rank_order) {
    float expected = summed_float(c, size, i);
    if (rank_order)
        need(!memcmp(&got, &expected, sizeof got), "case %d: element %ld is %a, not %a", (int)c->seed, (long)i, got,
             expected);
    else
        need(fabs((double)got - (double)expected) <= slack(c, size, i), "case %d: element %ld is %a, not %a",
             (int)c->seed, (long)i, got, expected);
}

/* out[k] is element i of the sum (of: -1), or of what rank `of` brought. */
static inline void need_element(const random_case *c, int size, const void *out, int64_t k, int of, int64_t i,
                                bool rank_order) {
    if (c->what.wire == RM_WIRE_F32) {
        float got = ((const float *)out)[k], bare = of >= 0 ? brought_float(c, of, i) : 0;
        if (of < 0)
            need_float(c, size, i, got, rank_order);
        else
            need(!memcmp(&got, &bare, sizeof got), "case %d: element %ld is %a, not %a", (int)c->seed, (long)k, got,
                 bare);
        return;
    }
    uint32_t expected = of < 0 ? summed_bits(c, size, i) : brought_bits(c, of, i);
    if (c->what.wire == RM_WIRE_I32)
        need(((const uint32_t *)out)[k] == expected, "case %d: element %ld", (int)c->seed, (long)k);
    else
        need(((const uint8_t *)out)[k] == (uint8_t)expected, "case %d: element %ld", (int)c->seed, (long)k);
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

/* Where in lies when it is a part of out, or out a part of it. */
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

/* One case, checked. `rank_order`: sums must have the bits of a sum in rank order. */
static inline void do_case(rm_group *group, uint64_t number, bool rank_order) {
    const int rank = rm_group_rank(group), size = rm_group_size(group);
    random_case c = draw_case(number, size);
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
