/* test_verify.c: remat_config.verify_recompute. A bit flipped in a state, at any moment between its computation and its
 * last use, is detected in 100 of 100 cases, and the message names stage, timesteps and tensor. Without a flip nothing
 * is reported (test_random.c verifies half of its random networks and plans, too). Also the hash itself. */
#include "engine/hash.h"
#include "tests/flips.h"
#include "tests/suite.h"

/* ---- The hash ------------------------------------------------------------------------------------------------- */

/* For every length from 0 to 300, flipping any bit changes the hash. So does another seed, or an additional zero
 * byte. */
START_TEST(every_bit_changes_the_hash) {
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)rm_random(1, 2, 3, 4, i);
    for (size_t n = 0; n < sizeof data; n++) {
        uint64_t hash = rm_hash(data, n, 7);
        ck_assert_uint_eq(hash, rm_hash(data, n, 7));
        ck_assert_uint_ne(hash, rm_hash(data, n, 8));
        unsigned char moved[sizeof data + 1];
        memcpy(moved + 1, data, n);
        ck_assert_uint_eq(hash, rm_hash(moved + 1, n, 7)); /* the address does not matter */
        for (size_t bit = 0; bit < 8 * n; bit++) {
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            ck_assert_uint_ne(hash, rm_hash(data, n, 7));
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
}
END_TEST

/* Exchanged words and blocks, and zeros of different lengths. */
START_TEST(order_and_length_change_the_hash) {
    uint64_t word[64], swapped[64], zero[64] = {0}, hash;
    for (int i = 0; i < 64; i++) word[i] = (uint64_t)rm_random(9, 0, 0, 0, (uint64_t)i) << 32 | (uint32_t)i;
    hash = rm_hash(word, sizeof word, 0);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < i; j++) {
            memcpy(swapped, word, sizeof word);
            swapped[i] = word[j];
            swapped[j] = word[i];
            ck_assert_uint_ne(hash, rm_hash(swapped, sizeof swapped, 0));
        }
    for (size_t n = 0; n < sizeof zero; n++)
        for (size_t m = 0; m < n; m++) ck_assert_uint_ne(rm_hash(zero, n, 0), rm_hash(zero, m, 0));
}
END_TEST

/* ---- Flips ---------------------------------------------------------------------------------------------------- */

START_TEST(flips_along_time_are_caught) { flip_along_time("cpu", _i); }
END_TEST
START_TEST(flips_by_depth_are_caught) { flip_by_depth("cpu", _i); }
END_TEST
START_TEST(flips_in_the_second_tier_are_caught) { flip_in_the_second_tier("cpu", _i); }
END_TEST
START_TEST(verifying_changes_no_bits_and_reports_nothing) { nothing_flipped("cpu", _i); }
END_TEST

/* The session counts the tables of hashes among its bytes. */
START_TEST(hashes_are_counted_as_memory) {
    net n = {.cell = NET_LSTM, .layers = 1, .vocabulary = 5, .embed = 2, .hidden = 2, .timesteps = 64, .batch = 1};
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &n);
    rng_state = 3;
    remat_config config = verified("cpu", 1);
    remat_session *s;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    ck_assert_uint_ge(rm_verify_bytes(&s->chain), 64 * 2 * 8);
    remat_session_free(s);
    remat_graph_free(graph);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("verify");
    tcase_add_test(tests, every_bit_changes_the_hash);
    tcase_add_test(tests, order_and_length_change_the_hash);
    tcase_add_loop_test(tests, flips_along_time_are_caught, 0, 100);
    tcase_add_loop_test(tests, flips_by_depth_are_caught, 0, 100);
    tcase_add_loop_test(tests, flips_in_the_second_tier_are_caught, 0, 4);
    tcase_add_loop_test(tests, verifying_changes_no_bits_and_reports_nothing, 0, 12);
    tcase_add_test(tests, hashes_are_counted_as_memory);
    return run_cases("verify", tests);
}
