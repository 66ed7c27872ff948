/* test_loader.c: the samples of each rank. Ranks get the samples of PyTorch's DistributedSampler and BatchSampler;
 * shards have the same samples on any number of ranks; a run resumed on other ranks repeats and skips nothing. */
#include "train/data/loader.h"

#include "tests/train/train_test.h"

/* A data set whose samples are their own numbers. */
static remat_status fill_number(rm_dataset *d, int64_t index, int64_t column, int64_t batch, void *input,
                                void *target) {
    (void)d, (void)batch;
    ck_assert(index >= 0 && index < d->count);
    ((int32_t *)input)[column] = ((int32_t *)target)[column] = (int32_t)index;
    return REMAT_OK;
}

static int64_t length_of(const rm_dataset *d, int64_t index) {
    (void)d;
    return 1 + index * 7919 % 101 * (index % 3);
}

static int64_t all_alike(const rm_dataset *d, int64_t index) { return (void)d, (void)index, 1; }

static const rm_data_kind long_and_short = {.fill = fill_number, .length = length_of},
                          of_one_length = {.fill = fill_number, .length = all_alike},
                          without_length = {.fill = fill_number};

static rm_dataset numbers(int64_t n) {
    return (rm_dataset){
        .kind = &long_and_short, .count = n, .shape = {.timesteps = 1, .vocabulary = 1 << 20, .classes = 1 << 20}};
}

static const int32_t *next(rm_loader *l) {
    ck_ok(rm_loader_next(l));
    return l->batch.data[RM_INPUT];
}

static uint64_t state = 1;
static int64_t random_in(int64_t low, int64_t high) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((state >> 33) % (uint64_t)(high - low + 1));
}

/* ---- PyTorch's ---- */

static void compare_epoch(rm_loader *l, remat_sampler *theirs, int64_t epoch) {
    int64_t batch = l->config.batch;
    remat_sampler_set_epoch(theirs, epoch);
    int64_t batches = rm_batch_count(remat_sampler_count(theirs), batch, true);
    ck_assert_int_eq(l->per_epoch, batches);
    for (int64_t k = 0; k < batches; k++) {
        const int32_t *ours = next(l);
        ck_assert_int_eq(l->epoch, epoch);
        for (int64_t i = 0; i < batch; i++) ck_assert_int_eq(ours[i], remat_sampler_at(theirs, k * batch + i));
    }
}

START_TEST(ranks_get_the_samples_of_pytorch) {
    for (int i = 0; i < 400; i++) {
        int64_t size = random_in(1, 9), batch = random_in(1, 6), rank = random_in(0, size - 1);
        rm_dataset d = numbers(random_in(size * batch, size * batch * 5));
        rm_loader_config config = {.batch = batch, .seed = random_in(0, 1 << 20), .shuffle = i % 5 != 0};
        config.pad = i % 2;
        config.rank = rank;
        config.size = size;
        rm_loader l;
        remat_sampler *theirs;
        remat_sampler_config order = {sizeof order, d.count, size, rank, config.shuffle, !config.pad, config.seed};
        ck_ok(rm_loader_create(&d, &config, &l));
        ck_ok(remat_sampler_create(&order, &theirs));
        for (int64_t epoch = 0; epoch < 3; epoch++) compare_epoch(&l, theirs, epoch);
        remat_sampler_free(theirs);
        rm_loader_free(&l);
    }
}
END_TEST

/* Micro steps without shards are consecutive batches; an epoch ends with a whole update. */
START_TEST(micro_steps_are_the_next_batches) {
    for (int i = 0; i < 200; i++) {
        int64_t size = random_in(1, 4), batch = random_in(1, 4), micro = random_in(2, 5);
        rm_dataset d = numbers(random_in(size * batch * micro, size * batch * micro * 3));
        rm_loader_config config = {.batch = batch, .seed = i, .shuffle = true, .size = size, .rank = size - 1};
        rm_loader one, some;
        ck_ok(rm_loader_create(&d, &config, &one));
        config.micro_steps = micro;
        ck_ok(rm_loader_create(&d, &config, &some));
        ck_assert_int_eq(some.per_epoch, one.per_epoch / micro);
        for (int64_t k = 0; k < some.per_epoch * micro; k++)
            ck_assert(!memcmp(next(&one), next(&some), (size_t)batch * sizeof(int32_t)));
        ck_assert(some.micro == 0 && some.consumed == some.per_epoch * some.global);
        rm_loader_free(&one);
        rm_loader_free(&some);
    }
}
END_TEST

/* ---- Shards ---- */

static int64_t reversed(int64_t t, int64_t n) {
    int64_t j = 0;
    for (int64_t bit = 1; bit < n; bit *= 2) j = 2 * j + ((t & bit) != 0);
    return j;
}

/* Micro step t of rank r of W gets the samples of rank r + W j of V, where j is t reversed; for three epochs. */
static void compare_shards(rm_dataset *d, int64_t shards, int64_t size, int64_t part, bool pad) {
    rm_loader l, whole;
    int64_t micro = shards / size, rank = random_in(0, size - 1);
    rm_loader_config config = {part * micro, 3, true, pad, rank, size, micro, shards, false, 0, false};
    ck_ok(rm_loader_create(d, &config, &l));
    ck_assert(l.batch.batch == part && l.global == part * shards);
    for (int64_t t = 0; t < micro; t++) {
        rm_loader_config alone = {part,   3,     true, pad,  rank + size * reversed(t, micro), shards, 1,
                                  shards, false, 0,    false};
        ck_ok(rm_loader_create(d, &alone, &whole));
        ck_ok(rm_loader_seek(&l, 0, 0));
        for (int64_t k = 0; k < 3 * whole.per_epoch; k++) {
            const int32_t *theirs = next(&whole);
            for (int64_t u = 0; u < micro; u++) {
                const int32_t *ours = next(&l);
                if (u == t) ck_assert(!memcmp(ours, theirs, (size_t)part * sizeof *ours));
            }
            ck_assert(whole.epoch == l.epoch && whole.consumed == l.consumed);
        }
        rm_loader_free(&whole);
    }
    rm_loader_free(&l);
}

START_TEST(shards_do_not_depend_on_ranks) {
    for (int64_t shards = 1; shards <= 16; shards *= 2)
        for (int64_t size = 1; size <= shards; size *= 2)
            for (int64_t part = 1; part <= 3; part++) {
                rm_dataset d = numbers(random_in(shards * part, 4 * shards * part));
                compare_shards(&d, shards, size, part, (size + part) % 2);
            }
}
END_TEST

/* ---- Streams ---- */

/* Row r + W i reads the i-th of equal parts, sample after sample, the same in every epoch. Only its start resets
 * states. */
static void compare_stream(rm_loader *l, int64_t n) {
    const rm_loader_config *c = &l->config;
    int64_t rows = c->size * c->batch, length = n / rows;
    for (int64_t epoch = 0; epoch < 2; epoch++)
        for (int64_t k = 0; k < l->per_epoch * c->micro_steps; k++) {
            const int32_t *ours = next(l);
            ck_assert(l->begins == (k == 0) && l->epoch == epoch);
            for (int64_t i = 0; i < c->batch; i++) ck_assert_int_eq(ours[i], (c->rank + c->size * i) * length + k);
        }
}

START_TEST(stateful_rows_continue_where_they_ended) {
    for (int i = 0; i < 200; i++) {
        int64_t size = random_in(1, 4), batch = random_in(1, 4), micro = random_in(1, 3);
        rm_dataset d = numbers(random_in(size * batch * micro, size * batch * micro * 5));
        rm_loader_config config = {.batch = batch, .shuffle = true, .stateful = true, .size = size};
        rm_loader l, again;
        config.micro_steps = micro;
        config.rank = random_in(0, size - 1);
        ck_ok(rm_loader_create(&d, &config, &l));
        ck_ok(rm_loader_create(&d, &config, &again));
        compare_stream(&l, d.count);
        ck_ok(rm_loader_seek(&l, 1, l.global * random_in(0, l.per_epoch - 1)));
        ck_ok(rm_loader_seek(&again, 0, 0));
        while (again.consumed < l.consumed) next(&again);
        ck_assert(!memcmp(next(&l), next(&again), (size_t)batch * sizeof(int32_t)) && l.begins == again.begins);
        rm_loader_free(&l);
        rm_loader_free(&again);
    }
}
END_TEST

START_TEST(without_streams_every_batch_resets) {
    rm_dataset d = numbers(20);
    rm_loader l;
    ck_ok(rm_loader_create(&d, &(rm_loader_config){.batch = 3}, &l));
    for (int k = 0; k < 8; k++) ck_assert(next(&l) && l.begins);
    rm_loader_free(&l);
}
END_TEST

/* ---- Positions ---- */

/* All ranks make `updates` updates from a position, and count their samples. Returns the new position. */
static rm_loader run(rm_dataset *d, rm_loader_config config, int64_t epoch, int64_t consumed, int64_t updates,
                     int *seen) {
    rm_loader l = {0};
    for (config.rank = 0; config.rank < config.size; config.rank++) {
        ck_ok(rm_loader_create(d, &config, &l));
        ck_ok(rm_loader_seek(&l, epoch, consumed));
        for (int64_t k = 0; k < updates * l.config.micro_steps; k++) {
            const int32_t *ours = next(&l);
            for (int64_t i = 0; i < l.batch.batch; i++) seen[ours[i]]++;
        }
        rm_loader_free(&l);
    }
    return l;
}

static rm_loader_config random_ranks(int64_t n, bool by_length) {
    for (;;) {
        bool sharded = random_in(0, 1);
        int64_t size = sharded ? 1 << random_in(0, 3) : random_in(1, 7), micro = 1 << random_in(0, 2);
        int64_t batch = random_in(1, 4) * (sharded ? micro : 1);
        rm_loader_config c = {batch, 7, true, false, 0, size, micro, sharded ? size * micro : 0, false, 0, by_length};
        if (size * batch * (sharded ? 1 : micro) <= n) return c;
    }
}

/* Jobs with different numbers of ranks each process a part of the epoch. Together they see every sample once, except
 * for a remainder too small for the last job. */
START_TEST(resume_on_other_ranks_repeats_and_skips_nothing) {
    for (int i = 0; i < 300; i++) {
        int seen[RM_POOL + 400] = {0};
        rm_dataset d = numbers(random_in(40, 400) + (i % 20 ? 0 : RM_POOL));
        int64_t consumed = 0, last = 0;
        for (;;) {
            rm_loader_config config = random_ranks(d.count, i % 2);
            int64_t here = config.batch * config.size * (config.shards ? 1 : config.micro_steps);
            int64_t left = (d.count - consumed) / here, updates = random_in(0, 1) ? left : random_in(0, left);
            last = here;
            rm_loader l = run(&d, config, 2, consumed, updates, seen);
            ck_assert(updates == 0 || (l.epoch == 2 && l.consumed == consumed + updates * here));
            consumed += updates * here;
            if (updates == left) break;
        }
        int64_t dropped = 0;
        for (int64_t k = 0; k < d.count; k++) {
            ck_assert_int_le(seen[k], 1);
            dropped += !seen[k];
        }
        ck_assert_int_lt(dropped, last);
        ck_assert_int_eq(dropped, d.count - consumed);
    }
}
END_TEST

/* With and without padding: starting at any position of a run gives the same samples as the run from there. */
START_TEST(resume_on_the_same_ranks_continues) {
    for (int i = 0; i < 100; i++) {
        rm_dataset d = numbers(random_in(20, 60));
        rm_loader_config config = random_ranks(d.count, i % 3 == 0);
        rm_loader l, again;
        config.pad = i % 2;
        config.rank = config.size - 1;
        ck_ok(rm_loader_create(&d, &config, &l));
        ck_ok(rm_loader_create(&d, &config, &again));
        for (int64_t update = 0; update < 3 * l.per_epoch + 2; update++) {
            ck_assert_int_le(l.consumed, d.count);
            ck_ok(rm_loader_seek(&again, l.epoch, l.consumed));
            for (int64_t t = 0; t < l.config.micro_steps; t++)
                ck_assert(!memcmp(next(&l), next(&again), (size_t)l.batch.batch * sizeof(int32_t)));
            ck_assert(l.epoch == again.epoch && l.consumed == again.consumed);
        }
        rm_loader_free(&l);
        rm_loader_free(&again);
    }
}
END_TEST

/* With enough samples for several pools, one of them incomplete: each epoch has each sample once, a bucket has similar
 * lengths, and buckets are shuffled. */
START_TEST(pools_give_buckets_of_similar_lengths) {
    rm_dataset d = numbers(2 * RM_POOL + 1000);
    rm_loader l;
    ck_ok(rm_loader_create(&d, &(rm_loader_config){.batch = 8, .seed = 3, .shuffle = true, .by_length = true}, &l));
    int *seen = calloc((size_t)d.count, sizeof *seen);
    for (int epoch = 0; epoch < 3; epoch++) {
        int64_t rises = 0, falls = 0, before = 0, least = 0, most = 0, spread = 0;
        for (int64_t k = 0; k < d.count; k++) {
            if (k % 8 == 0) next(&l);
            int32_t sample = ((const int32_t *)l.batch.data[RM_INPUT])[k % 8];
            int64_t length = length_of(&d, sample);
            seen[sample]++;
            if (k % RM_BUCKET == 0) rises += length > before, falls += length < before, least = most = before = length;
            least = length < least ? length : least;
            most = length > most ? length : most;
            if (k % RM_BUCKET == RM_BUCKET - 1) spread += most - least;
        }
        ck_assert_int_lt(spread, 35 * 30); /* about 35 x 200 without sorting */
        ck_assert(rises > 5 && falls > 5);
        for (int64_t k = 0; k < d.count; k++) ck_assert_int_eq(seen[k], epoch + 1);
    }
    free(seen);
    rm_loader_free(&l);
    d.kind = &without_length;
    ck_fails(rm_loader_create(&d, &(rm_loader_config){.batch = 8, .by_length = true}, &l), REMAT_INVALID,
             "--bucket-by-length|--lengths");
    rm_loader_free(&l);
}
END_TEST

/* 23 samples in one bucket; each epoch drops 3 of them. Every sample is seen sooner or later, also the longest. Batches
 * differ between epochs, for equal and for different lengths. */
START_TEST(buckets_drop_different_samples_each_epoch) {
    rm_dataset d = numbers(23);
    int seen[23] = {0}, same = 0;
    rm_loader l;
    ck_ok(rm_loader_create(&d, &(rm_loader_config){.batch = 5, .seed = 3, .shuffle = true, .by_length = true}, &l));
    int32_t first[5] = {0};
    for (int epoch = 0; epoch < 40; epoch++) {
        for (int batch = 0; batch < 4; batch++) {
            const int32_t *x = next(&l);
            for (int i = 0; i < 5; i++) seen[x[i]]++;
            if (batch) continue;
            same += !memcmp(first, x, sizeof first);
            memcpy(first, x, sizeof first);
        }
    }
    for (int i = 0; i < 23; i++) ck_assert_msg(seen[i] > 10 && seen[i] <= 40, "sample %d: %d times", i, seen[i]);
    ck_assert_int_lt(same, 10);
    rm_loader_free(&l);
}
END_TEST

START_TEST(samples_of_one_length_are_shuffled) {
    rm_dataset d = numbers(600);
    int mixed = 0;
    rm_loader l;
    d.kind = &of_one_length;
    ck_ok(rm_loader_create(&d, &(rm_loader_config){.batch = 20, .seed = 3, .shuffle = true, .by_length = true}, &l));
    for (int batch = 0; batch < 15; batch++) {
        const int32_t *x = next(&l);
        int low = 0;
        for (int i = 0; i < 20; i++) low += x[i] < 300;
        mixed += low > 0 && low < 20;
    }
    ck_assert_int_eq(mixed, 15);
    rm_loader_free(&l);
}
END_TEST

/* 15 samples on 2 ranks: 7 or 8 for each. */
START_TEST(pad_flag_pads_the_epoch) {
#define RUN "train --task=copy --samples=15 --batch=4 --hidden=4 --layers=1 --seq-len=21 --threads=1 --devices=cpu:2 "
    ck_runs(RUN "--epochs=3");
    ck_says_all(program_output, "done|step 3");
    ck_runs(RUN "--epochs=3 --pad");
    ck_says_all(program_output, "done|step 6");
}
END_TEST

START_TEST(updates_are_counted) {
    rm_dataset d = numbers(100);
    rm_loader_config config = {.batch = 3, .size = 4};
    rm_loader l;
    ck_ok(rm_loader_create(&d, &config, &l));
    ck_assert(l.global == 12 && l.per_epoch == 8);
    ck_assert_int_eq(rm_loader_left(&l, 3), 24);
    for (int64_t left = 24; left > 0; left--) {
        ck_assert_int_eq(rm_loader_left(&l, 3), left);
        next(&l);
    }
    ck_assert_int_eq(rm_loader_left(&l, 3), 0);
    ck_assert_int_eq(rm_loader_left(&l, 2), 0);
    ck_ok(rm_loader_seek(&l, 1, 50)); /* the position of another number of ranks */
    ck_assert_int_eq(rm_loader_left(&l, 2), 4);
    ck_assert_int_eq(rm_loader_left(&l, 4), 20);
    ck_assert_int_gt(rm_loader_left(&l, INT64_MAX), (int64_t)1 << 60);
    rm_loader_free(&l);
}
END_TEST

START_TEST(invalid_loader_settings_are_refused) {
    rm_dataset d = numbers(23);
    rm_loader l;
    ck_fails(rm_loader_create(&d, &(rm_loader_config){.batch = 24}, &l), REMAT_INVALID, "--batch=24");
    rm_loader_free(&l);
    ck_fails(rm_loader_create(&d, &(rm_loader_config){.batch = 3, .size = 4, .micro_steps = 2}, &l), REMAT_INVALID,
             "--batch=3|4 ranks|2 micro|24");
    rm_loader_free(&l);
    ck_ok(rm_loader_create(&d, &(rm_loader_config){.batch = 3, .size = 8, .pad = true},
                           &l)); /* 24 samples, one of them twice */
    rm_loader_free(&l);
    ck_fails(rm_loader_create(&d, &(rm_loader_config){.batch = 3, .size = 2, .micro_steps = 2, .shards = 4}, &l),
             REMAT_INVALID, "multiple of 2");
    rm_loader_free(&l);
    ck_fails(rm_loader_create(&d, &(rm_loader_config){.batch = 1, .size = 2, .rank = 2}, &l), REMAT_INVALID,
             "rank 2|2");
    rm_loader_free(&l);
    ck_fails(rm_loader_create(&d, &(rm_loader_config){.batch = INT64_MAX / 2, .size = 5}, &l), REMAT_INVALID, "batch");
    rm_loader_free(&l);
    ck_ok(rm_loader_create(&d, &(rm_loader_config){.batch = 2}, &l));
    ck_fails(rm_loader_seek(&l, 0, 24), REMAT_INVALID, "sample 24|epoch 0|23");
    ck_fails(rm_loader_seek(&l, -1, 0), REMAT_INVALID, "epoch -1");
    rm_loader_free(&l);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("loader");
    tcase_add_test(tests, ranks_get_the_samples_of_pytorch);
    tcase_add_test(tests, micro_steps_are_the_next_batches);
    tcase_add_test(tests, shards_do_not_depend_on_ranks);
    tcase_add_test(tests, stateful_rows_continue_where_they_ended);
    tcase_add_test(tests, without_streams_every_batch_resets);
    tcase_add_test(tests, resume_on_other_ranks_repeats_and_skips_nothing);
    tcase_add_test(tests, resume_on_the_same_ranks_continues);
    tcase_add_test(tests, pools_give_buckets_of_similar_lengths);
    tcase_add_test(tests, buckets_drop_different_samples_each_epoch);
    tcase_add_test(tests, samples_of_one_length_are_shuffled);
    tcase_add_test(tests, pad_flag_pads_the_epoch);
    tcase_add_test(tests, updates_are_counted);
    tcase_add_test(tests, invalid_loader_settings_are_refused);
    return run_suite("train/loader", tests);
}
