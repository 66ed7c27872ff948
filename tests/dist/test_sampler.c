/* test_sampler.c: the order of samples equals PyTorch's, index for index (sampler_orders.h), and ranks share the
 * data. */
#include "dist/large_batch/sampler.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/dist/sampler_orders.h"
#include "tests/suite.h"
enum { ORDERS = sizeof orders / sizeof orders[0], CUTS = sizeof cuts / sizeof cuts[0] };

static remat_sampler *create(remat_sampler_config config, int64_t epoch) {
    config.struct_bytes = sizeof config;
    remat_sampler *sampler;
    ck_assert_msg(!remat_sampler_create(&config, &sampler), "%s", remat_last_error());
    remat_sampler_set_epoch(sampler, epoch);
    return sampler;
}

START_TEST(orders_match_pytorch) {
    remat_sampler *sampler = create(orders[_i].config, orders[_i].epoch);
    uint64_t checksum = 0;
    ck_assert_int_eq(remat_sampler_count(sampler), orders[_i].count);
    for (int64_t k = 0; k < orders[_i].count; k++) {
        int64_t index = remat_sampler_at(sampler, k);
        if (k < 10) ck_assert_int_eq(index, orders[_i].head[k]);
        checksum = checksum * 1000003 + (uint64_t)index;
    }
    ck_assert_uint_eq(checksum, orders[_i].checksum);
    remat_sampler_free(sampler);
}
END_TEST

/* With and without short batches, padded and not. */
START_TEST(batches_match_pytorch) {
    remat_sampler *sampler = create(cuts[_i].config, cuts[_i].epoch);
    uint64_t checksum = 0;
    int64_t count = remat_sampler_count(sampler), batch = cuts[_i].batch, last = 0;
    int64_t batches = rm_batch_count(count, batch, cuts[_i].drop_last);
    ck_assert_int_eq(batches, cuts[_i].batches);
    for (int64_t k = 0; k < batches; k++) {
        last = rm_batch_length(count, batch, k);
        for (int64_t i = 0; i < last; i++)
            checksum = checksum * 1000003 + (uint64_t)remat_sampler_at(sampler, k * batch + i);
        checksum = checksum * 1000003 + (uint64_t)cuts[_i].config.n;
    }
    ck_assert_int_eq(last, cuts[_i].last);
    ck_assert_uint_eq(checksum, cuts[_i].checksum);
    remat_sampler_free(sampler);
}
END_TEST

/* Four samples on two ranks: the output of well-known PyTorch DDP demos. */
START_TEST(four_samples_on_two_ranks_match_pytorch) {
    static const int64_t expected[2][2][2] = {{{1, 4}, {2, 3}}, {{2, 3}, {4, 1}}}; /* [epoch][rank][k] */
    for (int64_t epoch = 0; epoch < 2; epoch++)
        for (int64_t rank = 0; rank < 2; rank++) {
            remat_sampler *sampler =
                create((remat_sampler_config){.n = 4, .replicas = 2, .rank = rank, .shuffle = true}, epoch);
            for (int64_t k = 0; k < 2; k++)
                ck_assert_int_eq(remat_sampler_at(sampler, k) + 1, expected[epoch][rank][k]);
            remat_sampler_free(sampler);
        }
}
END_TEST

/* Setting an earlier epoch gives its order again, as resuming needs. */
START_TEST(epochs_can_be_revisited) {
    remat_sampler *sampler = create((remat_sampler_config){.n = 500, .replicas = 1, .seed = 3, .shuffle = true}, 5);
    int64_t first = remat_sampler_at(sampler, 0), last = remat_sampler_at(sampler, 499);
    remat_sampler_set_epoch(sampler, 6);
    ck_assert(remat_sampler_at(sampler, 0) != first || remat_sampler_at(sampler, 499) != last);
    remat_sampler_set_epoch(sampler, 5);
    ck_assert_int_eq(remat_sampler_at(sampler, 0), first);
    ck_assert_int_eq(remat_sampler_at(sampler, 499), last);
    remat_sampler_free(sampler);
}
END_TEST

/* With drop_last no sample is seen twice; without it every sample is seen. */
START_TEST(ranks_share_the_data) {
    for (int drop_last = 0; drop_last < 2; drop_last++) {
        int seen[23] = {0};
        int64_t total = 0;
        for (int64_t rank = 0; rank < 4; rank++) {
            remat_sampler_config config = {
                .n = 23, .replicas = 4, .rank = rank, .shuffle = true, .drop_last = drop_last};
            remat_sampler *sampler = create(config, 1);
            for (int64_t k = 0; k < remat_sampler_count(sampler); k++, total++) seen[remat_sampler_at(sampler, k)]++;
            remat_sampler_free(sampler);
        }
        ck_assert_int_eq(total, drop_last ? 20 : 24);
        for (int i = 0; i < 23; i++) ck_assert(drop_last ? seen[i] <= 1 : seen[i] >= 1);
    }
}
END_TEST

START_TEST(invalid_configs_are_refused) {
    static const remat_sampler_config bad[] = {
        {.n = 0, .replicas = 1}, {.n = -5, .replicas = 1},           {.n = (int64_t)1 << 32, .replicas = 1},
        {.n = 4, .replicas = 0}, {.n = 4, .replicas = 2, .rank = 2}, {.n = 4, .replicas = 2, .rank = -1}};
    remat_sampler *sampler;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        remat_sampler_config config = bad[i];
        config.struct_bytes = sizeof config;
        ck_assert_int_eq(remat_sampler_create(&config, &sampler), REMAT_INVALID);
        ck_assert_ptr_null(sampler);
        ck_assert_ptr_null(strstr(remat_last_error(), "struct_bytes"));
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("sampler");
    tcase_add_loop_test(tests, orders_match_pytorch, 0, ORDERS);
    tcase_add_loop_test(tests, batches_match_pytorch, 0, CUTS);
    tcase_add_test(tests, four_samples_on_two_ranks_match_pytorch);
    tcase_add_test(tests, epochs_can_be_revisited);
    tcase_add_test(tests, ranks_share_the_data);
    tcase_add_test(tests, invalid_configs_are_refused);
    return run_cases("dist/sampler", tests);
}
