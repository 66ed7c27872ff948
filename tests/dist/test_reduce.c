/* test_reduce.c: the arithmetic of collectives without ranks: 16-bit floats compared with their definition, tree sums
 * with the loop that defines them, and trees of trees with a single tree. */
#include "dist/group/reduce.h"

#include <stdlib.h>

#include "dist/group/half.h"
#include "tests/dist/halves.h"
#include "tests/dist/ranks.h"
#include "tests/suite.h"

/* ---- Halves ------------------------------------------------------------------------------------------------------ */

static void check_half(uint16_t half) {
    double f16 = half_value(half, F16), bf16 = half_value(half, BF16);
    float a = rm_from_f16(half), b = rm_from_bf16(half);
    ck_assert_msg(isnan(f16) ? isnan(a) : (double)a == f16 && !signbit(a) == !signbit(f16), "f16 %04x: %a, not %a",
                  half, (double)a, f16);
    ck_assert_msg(isnan(bf16) ? isnan(b) : (double)b == bf16 && !signbit(b) == !signbit(bf16), "bf16 %04x", half);
    ck_assert_int_eq(rm_to_f16(a), isnan(f16) ? 0x7e00 : half);
    ck_assert_int_eq(rm_to_bf16(b), isnan(bf16) ? 0x7fc0 : half);
}
START_TEST(every_half_converts_both_ways) {
    for (int half = 0; half < 65536; half++) check_half((uint16_t)half);
}
END_TEST

static void check_float(uint32_t bits) {
    float x = rm_bits_float(bits);
    ck_assert_msg(rm_to_f16(x) == half_of((double)x, F16), "f16 of %a (%08x): %04x, not %04x", (double)x, bits,
                  rm_to_f16(x), half_of((double)x, F16));
    ck_assert_msg(rm_to_bf16(x) == half_of((double)x, BF16), "bf16 of %a (%08x): %04x, not %04x", (double)x, bits,
                  rm_to_bf16(x), half_of((double)x, BF16));
}
/* Values halfway between any two halves and next to it, where rounding is decided; and floats of every kind. */
START_TEST(floats_round_to_the_nearest_half) {
    uint64_t state = 1;
    for (int half = 0; half < 65535; half++)
        for (int format = 0; format < 2; format++) {
            float low = format ? rm_from_f16((uint16_t)half) : rm_from_bf16((uint16_t)half);
            float high = format ? rm_from_f16((uint16_t)(half + 1)) : rm_from_bf16((uint16_t)(half + 1));
            uint32_t middle = rm_float_bits((float)(((double)low + (double)high) / 2));
            for (uint32_t bits = middle - 1; bits != middle + 2; bits++) check_float(bits);
        }
    for (int i = 0; i < 300000; i++) check_float((uint32_t)next_random(&state));
    check_float(0x477fefff), check_float(0x477ff000), check_float(0x7f7fffff), check_float(0x7f800000);
}
END_TEST

START_TEST(compression_loses_at_most_half_a_unit) {
    enum { N = 5000 };
    static float x[N], y[N];
    static uint16_t half[N];
    uint64_t state = 3;
    for (int i = 0; i < N; i++)
        x[i] = ldexpf((float)(int32_t)next_random(&state), (int)(next_random(&state) % 20) - 36);
    for (int wire = RM_WIRE_F16; wire <= RM_WIRE_BF16; wire++) {
        rm_narrow((rm_wire)wire, 0.25f, x, half, N);
        rm_widen((rm_wire)wire, half, y, N);
        for (int i = 0; i < N; i++) {
            double loss = fabs((double)y[i] - 0.25 * (double)x[i]), unit = wire == RM_WIRE_F16 ? 0x1p-11 : 0x1p-8;
            ck_assert_msg(loss <= fabs(0.25 * (double)x[i]) * unit + (wire == RM_WIRE_F16 ? 0x1p-25 : 0),
                          "%a became %a", (double)x[i], (double)y[i]);
        }
    }
}
END_TEST

/* ---- Trees ------------------------------------------------------------------------------------------------------- */

enum { RANKS = 32, COUNT = 5003 };
static float data[RANKS][COUNT], out[COUNT];

static void fill(uint64_t seed) {
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++) {
            int32_t bits = (int32_t)next_random(&seed);
            data[r][i] = ldexpf((float)bits, bits % 20 - 40);
        }
}
static void tree_of(int ranks, int64_t at, int64_t count, float *to) {
    const void *in[RANKS];
    for (int r = 0; r < ranks; r++) in[r] = data[r] + at;
    void *one = to;
    rm_reduce(RM_WIRE_F32, RM_TREE, in, ranks, &one, 1, count);
}

START_TEST(tree_sum_equals_its_definition) {
    fill(7);
    for (int ranks = 1; ranks <= RANKS; ranks *= 2) {
        tree_of(ranks, 0, COUNT, out);
        for (int i = 0; i < COUNT; i++) {
            volatile float t[RANKS];
            for (int r = 0; r < ranks; r++) t[r] = data[r][i];
            for (int w = ranks / 2; w > 0; w /= 2)
                for (int r = 0; r < w; r++) t[r] = t[r] + t[r + w];
            ck_assert_msg(t[0] == out[i], "%d ranks, element %d: %a, not %a", ranks, i, (double)out[i], (double)t[0]);
        }
        tree_of(ranks, 77, 500, out + 77); /* the same sum in parts */
        float whole[500];
        memcpy(whole, out + 77, sizeof whole);
        tree_of(ranks, 0, COUNT, out);
        ck_assert(!memcmp(whole, out + 77, sizeof whole));
    }
}
END_TEST

/* Shard r + W j is the j-th of rank r: the tree over each rank's shards, and then over ranks, equals the tree over
 * all. */
START_TEST(tree_of_trees_equals_one_tree) {
    static float all[COUNT], own[RANKS][COUNT];
    fill(8);
    tree_of(RANKS, 0, COUNT, all);
    for (int ranks = 1; ranks <= RANKS; ranks *= 2) {
        const int each = RANKS / ranks;
        const void *in[RANKS];
        for (int r = 0; r < ranks; r++) {
            for (int j = 0; j < each; j++) in[j] = data[r + ranks * j];
            void *one = own[r];
            rm_reduce(RM_WIRE_F32, RM_TREE, in, each, &one, 1, COUNT);
        }
        for (int r = 0; r < ranks; r++) in[r] = own[r];
        void *one = out;
        rm_reduce(RM_WIRE_F32, RM_TREE, in, ranks, &one, 1, COUNT);
        ck_assert_msg(!memcmp(out, all, sizeof out), "%d ranks of %d shards", ranks, each);
    }
}
END_TEST

/* Outputs that are also inputs, and sums with several outputs. */
START_TEST(sums_work_in_place) {
    static float copy[4][COUNT];
    for (int reduction = RM_SUM; reduction <= RM_TREE; reduction++) {
        fill(9);
        for (int r = 0; r < 4; r++) memcpy(copy[r], data[r], sizeof copy[r]);
        const void *in[] = {data[0], data[1], data[2], data[3]};
        void *in_place[] = {copy[0], copy[1], copy[2], copy[3]}, *apart = out;
        rm_reduce(RM_WIRE_F32, (rm_reduction)reduction, in, 4, &apart, 1, COUNT);
        rm_reduce(RM_WIRE_F32, (rm_reduction)reduction, (const void *const *)in_place, 4, in_place, 4, COUNT);
        for (int r = 0; r < 4; r++) ck_assert(!memcmp(copy[r], out, sizeof out));
    }
}
END_TEST

int main(void) {
    TCase *halves = tcase_create("halves"), *sums = tcase_create("sums");
    tcase_add_test(halves, every_half_converts_both_ways);
    tcase_add_test(halves, floats_round_to_the_nearest_half);
    tcase_add_test(halves, compression_loses_at_most_half_a_unit);
    tcase_add_test(sums, tree_sum_equals_its_definition);
    tcase_add_test(sums, tree_of_trees_equals_one_tree);
    tcase_add_test(sums, sums_work_in_place);
    return run_cases("dist/reduce", halves, sums);
}
