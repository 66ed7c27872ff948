/* test_cuda_product.c: matrix products of the CUDA device (engine/cuda/product.c) on the fake
 * (tests/engine/fake_cuda), with an adversarial cuBLASLt. The products are right, a row has the same bits for every
 * number of rows, nothing is allocated or tried twice, and a fault at any call gives one message.
 *
 * NVIDIA's cuBLASLt is tested in tests/gpu. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CUDA_HEADERS

#include "tests/engine/fake_cuda/expect.h"
#include "tests/engine/fake_cuda/stand_ins.h"
#include "tests/says.h"
#include "tests/suite.h"

/* ---- A device and three matrices on it -------------------------------------------------------------------------- */

enum { MOST = 1 << 14 }; /* numbers in each */

typedef struct {
    rm_device *device;
    rm_block *block;
    rm_queue *queue;
    float *on_gpu[3], host[3][MOST]; /* A, B, C */
} bench;

static const rm_device_api *const api = &rm_device_cuda;

static remat_status open_bench(bench *b) {
    *b = (bench){.device = NULL};
    TRY(api->open(1, &b->device));
    TRY(api->block_create(b->device, sizeof b->host, &b->block));
    TRY(api->queue_create(b->device, &b->queue));
    uint64_t random = 1;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < MOST; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            b->host[i][k] = (float)(int32_t)(random >> 32) * 0x1p-31f;
        }
        b->on_gpu[i] = api->claim(b->block, (uint64_t)i * sizeof b->host[i], sizeof b->host[i]);
        api->copy_in(b->queue, b->on_gpu[i], b->host[i], sizeof b->host[i]);
    }
    return api->synchronize(b->queue);
}

static void close_bench(bench *b) {
    if (!b->device) return;
    api->queue_free(b->queue);
    api->block_free(b->block);
    api->close(b->device);
}

/* Copies C from the host, multiplies, and copies C back. Each matrix starts `offset` numbers into its buffer. */
static remat_status multiply(bench *b, rm_cuda_product p, int offset, float *c) {
    p.a = b->on_gpu[0] + offset, p.b = b->on_gpu[1] + offset, p.c = b->on_gpu[2] + offset;
    api->copy_in(b->queue, b->on_gpu[2], b->host[2], sizeof b->host[2]);
    rm_cuda_multiply((const rm_cuda_queue *)b->queue, &p);
    api->copy_out(b->queue, c, b->on_gpu[2], sizeof b->host[2]);
    return api->synchronize(b->queue);
}

static rm_cuda_product tight(int64_t m, int64_t n, int64_t k) {
    return (rm_cuda_product){.m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n};
}

/* ---- Right numbers ---------------------------------------------------------------------------------------------- */

static double expected(const bench *b, const rm_cuda_product *p, int offset, int64_t i, int64_t j) {
    const float *a = b->host[0] + offset, *w = b->host[1] + offset;
    double sum = p->add ? (double)b->host[2][offset + i * p->ldc + j] : 0;
    for (int64_t t = 0; t < p->k; t++)
        sum += (double)a[p->transpose_a ? t * p->lda + i : i * p->lda + t] *
               (double)w[p->transpose_b ? j * p->ldb + t : t * p->ldb + j];
    return sum;
}

static void expect_right(const bench *b, const rm_cuda_product *p, int offset, const float *c) {
    for (int64_t at = 0; at < MOST; at++) {
        int64_t i = (at - offset) / p->ldc, j = (at - offset) % p->ldc;
        bool inside = at >= offset && i < p->m && j < p->n;
        double right = inside ? expected(b, p, offset, i, j) : (double)b->host[2][at];
        ck_assert_msg(fabs((double)c[at] - right) <= (inside ? 1e-6 * (double)(p->k + 1) : 0),
                      "(%lld,%lld,%lld), %lld: %.9g, not %.9g", (long long)p->m, (long long)p->n, (long long)p->k,
                      (long long)at, (double)c[at], right);
    }
}

/* All transpositions, with and without adding; padded rows; any start offset. */
START_TEST(products_match_the_definition) {
    static const int64_t size[][3] = {{1, 1, 1}, {5, 7, 3}, {16, 8, 32}, {1, 20, 9}, {33, 1, 12}, {12, 64, 16}};
    static bench b;
    static float c[MOST];
    stand_in_reset((uint64_t)_i);
    ck_assert(!open_bench(&b));
    for (size_t s = 0; s < sizeof size / sizeof *size; s++)
        for (int offset = 0; offset < 5; offset++) {
            rm_cuda_product p = tight(size[s][0], size[s][1], size[s][2]);
            p.transpose_a = _i & 1, p.transpose_b = _i >> 1 & 1, p.add = _i >> 2 & 1;
            p.lda = (p.transpose_a ? p.m : p.k) + (offset == 3), p.ldb = (p.transpose_b ? p.k : p.n) + 2 * (offset > 3);
            p.ldc = p.n + offset;
            ck_assert_msg(!multiply(&b, p, offset, c), "%s", remat_last_error());
            expect_right(&b, &p, offset, c);
        }
    close_bench(&b);
    expect_clean("products");
}
END_TEST

/* All transpositions and adding; A, B or neither shared by the batch; C interleaved or one after the other; with and
 * without cuBLASLt. No algorithm that needs a trial is used: a batch has none. */
START_TEST(batches_match_the_definition) {
    enum { BATCH = 3, M = 5, N = 7, K = 6 };
    static bench b;
    static float c[MOST];
    stand_in_reset((uint64_t)_i);
    fake_lt_is(_i & 8 ? FAKE_LT_KNOWS_NOTHING : 0);
    ck_assert(!open_bench(&b));
    for (int shared = 0; shared < 3; shared++)
        for (int side_by_side = 0; side_by_side < 2; side_by_side++) {
            rm_cuda_product p = tight(M, N, K);
            p.transpose_a = _i & 1, p.transpose_b = _i >> 1 & 1, p.add = _i >> 2 & 1;
            p.lda = p.transpose_a ? M : K, p.ldb = p.transpose_b ? K : N;
            p.ldc = side_by_side ? BATCH * N : N;
            p.batch = BATCH;
            p.stride_a = shared == 1 ? 0 : M * K, p.stride_b = shared == 2 ? 0 : N * K;
            p.stride_c = side_by_side ? N : M * N;
            ck_assert_msg(!multiply(&b, p, 0, c), "%s", remat_last_error());
            for (int64_t i = 0; i < BATCH; i++)
                for (int64_t at = 0; at < M * N; at++) {
                    int64_t row = at / N, column = at % N, from = i * p.stride_c + row * p.ldc + column;
                    double right = p.add ? (double)b.host[2][from] : 0;
                    for (int64_t t = 0; t < K; t++)
                        right += (double)b.host[0][i * p.stride_a + (p.transpose_a ? t * M + row : row * K + t)] *
                                 (double)b.host[1][i * p.stride_b + (p.transpose_b ? column * K + t : t * N + column)];
                    ck_assert_msg(fabs((double)c[from] - right) <= 1e-5, "product %d, (%d,%d): %g, not %g", (int)i,
                                  (int)row, (int)column, (double)c[from], right);
                }
            for (int64_t at = BATCH * M * N; at < MOST; at++) ck_assert(c[at] == b.host[2][at]);
        }
    ck_assert_int_eq(fake_lt_counted().splits, 0);
    ck_assert_int_eq(fake_lt_counted().batches, _i & 8 ? 0 : fake_lt_counted().products);
    close_bench(&b);
    expect_clean("batches");
}
END_TEST

/* cuBLASLt has no algorithm for more than 65,535 matrices: a few calls of it compute them, not a call of cuBLAS for each. */
START_TEST(large_batches_are_split) {
    enum { BATCH = 66000 };
    static float host[3][BATCH], c[BATCH];
    rm_device *device;
    rm_block *block;
    rm_queue *queue;
    rm_products known;
    stand_in_reset(1);
    ck_assert(!api->open(1, &device) && !api->block_create(device, sizeof host, &block));
    ck_assert(!api->queue_create(device, &queue));
    float *there = api->claim(block, 0, sizeof host);
    for (int i = 0; i < 3 * BATCH; i++) host[i / BATCH][i % BATCH] = (float)(i % 1009 - 500);
    api->copy_in(queue, there, host, sizeof host);
    rm_cuda_product p = tight(1, 1, 1);
    p.a = there, p.b = there + BATCH, p.c = there + 2 * BATCH;
    p.batch = BATCH, p.stride_a = p.stride_b = p.stride_c = 1, p.add = true;
    rm_cuda_multiply((const rm_cuda_queue *)queue, &p);
    api->copy_out(queue, c, p.c, sizeof c);
    ck_assert(!api->synchronize(queue));
    for (int i = 0; i < BATCH; i++) ck_assert(c[i] == host[2][i] + host[0][i] * host[1][i]);
    api->products(device, &known);
    ck_assert_int_eq(known.by_cublas, 0);
    ck_assert_int_eq(fake_lt_counted().products, 3);
    api->queue_free(queue), api->block_free(block), api->close(device);
    expect_clean("a large batch");
}
END_TEST

/* If cuBLASLt has no algorithm, cuBLAS computes the product. */
START_TEST(cublas_replaces_a_missing_algorithm) {
    static bench b;
    static float c[MOST];
    stand_in_reset(1);
    fake_lt_is(FAKE_LT_KNOWS_NOTHING);
    ck_assert(!open_bench(&b));
    rm_cuda_product p = tight(12, 9, 10);
    p.rows_like = 3, p.add = true;
    ck_assert_msg(!multiply(&b, p, 0, c), "%s", remat_last_error());
    expect_right(&b, &p, 0, c);
    ck_assert_int_eq(fake_lt_counted().products, 0);
    close_bench(&b);
    expect_clean("without an algorithm");
}
END_TEST

/* Widely spaced rows use the algorithm of contiguous rows, which must accept them. */
START_TEST(widely_spaced_rows_are_multiplied) {
    static bench b;
    static float close[MOST], apart[MOST];
    stand_in_reset(1);
    fake_lt_is(FAKE_LT_REFUSES_FAR);
    ck_assert(!open_bench(&b));
    rm_cuda_product p = tight(12, 8, 40), far = p;
    p.rows_like = far.rows_like = _i ? 4 : 0;
    far.lda *= 4, far.ldb *= 4, far.ldc *= 4;
    ck_assert_msg(!multiply(&b, p, 0, close), "%s", remat_last_error());
    expect_right(&b, &p, 0, close);
    ck_assert_msg(!multiply(&b, far, 0, apart), "%s", remat_last_error());
    expect_right(&b, &far, 0, apart);
    ck_assert_int_eq(fake_lt_counted().searches, 1);
    close_bench(&b);
    expect_clean("far apart");
}
END_TEST

/* ---- The same bits ---------------------------------------------------------------------------------------------- */

/* Computes the product of all rows at once, and in groups of `rows`, into two arrays. */
static void make_both(bench *b, rm_cuda_product p, int64_t rows, float *whole, float *parts) {
    rm_cuda_product part = p;
    p.rows_like = rows;
    part.m = rows;
    ck_assert_msg(!multiply(b, p, 0, whole), "%s", remat_last_error());
    memcpy(parts, b->host[2], sizeof b->host[2]);
    for (int64_t row = 0; row < p.m; row += rows) {
        part.a = b->on_gpu[0] + row * p.lda, part.b = b->on_gpu[1], part.c = b->on_gpu[2] + row * p.ldc;
        api->copy_in(b->queue, b->on_gpu[2], b->host[2], sizeof b->host[2]);
        rm_cuda_multiply((const rm_cuda_queue *)b->queue, &part);
        api->copy_out(b->queue, parts + row * p.ldc, b->on_gpu[2] + row * p.ldc,
                      (uint64_t)(rows * p.ldc) * sizeof(float));
        ck_assert_msg(!api->synchronize(b->queue), "%s", remat_last_error());
    }
}

static const struct {
    unsigned whims;
    rm_cuda_way way;
} moods[] = {
    {0, RM_CUDA_WHOLE},
    {FAKE_LT_OTHER_WHOLE, RM_CUDA_BATCHED},
    {FAKE_LT_OTHER_WHOLE | FAKE_LT_OTHER_BATCHED, RM_CUDA_BLOCKS},
    {FAKE_LT_REFUSES_OTHERS, RM_CUDA_BLOCKS},
    {FAKE_LT_REFUSES_LATE, RM_CUDA_WHOLE},
    {FAKE_LT_NEVER_MULTIPLIES, RM_CUDA_BLOCKS},
    {FAKE_LT_NEVER_REPEATS, RM_CUDA_WHOLE},
    {FAKE_LT_SELDOM_REPEATS, RM_CUDA_WHOLE},
};
enum { MOODS = sizeof moods / sizeof *moods };

START_TEST(rows_have_the_same_bits_for_every_count) {
    static bench b;
    static float whole[MOST], parts[MOST];
    static const int64_t size[][4] = {{12, 8, 40, 4}, {15, 7, 33, 5}, {30, 64, 61, 1}, {8, 5, 90, 2}};
    bool add = _i % 2, turned = _i / 2 % 2;
    stand_in_reset((uint64_t)_i);
    fake_lt_is(moods[_i / 4].whims);
    ck_assert(!open_bench(&b));
    for (int s = 0; s < 4; s++) {
        rm_cuda_product p = tight(size[s][0], size[s][1], size[s][2]);
        p.add = add, p.transpose_b = turned;
        if (turned) p.ldb = p.k;
        make_both(&b, p, size[s][3], whole, parts);
        expect_right(&b, &p, 0, whole);
        ck_assert_msg(!memcmp(whole, parts, sizeof whole), "shape %d: a row of %lld has different bits", s,
                      (long long)p.m);
    }
    for (rm_cuda_way way = RM_CUDA_WHOLE; way < RM_CUDA_WAYS; way++) {
        int64_t large = way == moods[_i / 4].way ? 4 : 0, small = way == RM_CUDA_BLOCKS ? 4 : 0;
        ck_assert_int_eq(rm_cuda_products_made(b.device->products, way), large + small);
    }
    close_bench(&b);
    expect_clean("rows");
}
END_TEST

/* If there is no memory to try all rows at once, they are multiplied in parts, and the remainder one by one. */
START_TEST(rows_are_multiplied_in_parts_when_memory_is_short) {
    static bench b;
    static float whole[MOST], parts[MOST];
    bool some = false;
    for (int i = 1; i <= 12; i++) {
        stand_in_reset((uint64_t)i);
        fake_lt_is(i % 2 ? FAKE_LT_OTHER_WHOLE : 0);
        ck_assert(!open_bench(&b));
        b.device->products->trial_bytes = (uint64_t)i * 8192;
        rm_cuda_product p = tight(62, 64, 61);
        p.add = true;
        make_both(&b, p, 2, whole, parts);
        ck_assert_msg(!memcmp(whole, parts, sizeof whole), "%d: other bits", i);
        int64_t before = fake_lt_counted().products;
        p.rows_like = 2;
        ck_assert(!multiply(&b, p, 0, whole) && !memcmp(whole, parts, sizeof whole));
        int64_t calls = fake_lt_counted().products - before;
        ck_assert(calls >= 1 && calls <= 31);
        some = some || (calls > 2 && calls < 16);
        close_bench(&b);
        expect_clean("parts");
    }
    ck_assert(some);
}
END_TEST

/* A sum is split if that is cuBLASLt's first choice and its bits repeat; not if they differ, if it is too large to try,
 * or if a switch forbids it. */
START_TEST(sums_are_split_only_if_their_bits_repeat) {
    static const struct {
        unsigned whims;
        const char *off;
        uint64_t trial_bytes;
        bool splits;
    } cases[] = {
        {0, NULL, 0, true},     {FAKE_LT_NEVER_REPEATS, NULL, 0, false}, {FAKE_LT_SELDOM_REPEATS, NULL, 0, false},
        {0, NULL, 1000, false}, {0, "REMAT_CUDA_SPLIT_K", 0, false},     {0, "REMAT_CUDA_WORKSPACE", 0, false}};
    static bench b;
    static float first[MOST], again[MOST];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rm_products known;
        stand_in_reset(i);
        fake_lt_is(cases[i].whims);
        if (cases[i].off) setenv(cases[i].off, "OFF", 1);
        ck_assert(!open_bench(&b));
        if (cases[i].off) unsetenv(cases[i].off);
        if (cases[i].trial_bytes) b.device->products->trial_bytes = cases[i].trial_bytes;
        rm_cuda_product p = tight(12, 9, 70);
        p.transpose_a = p.add = true, p.lda = p.m;
        ck_assert_msg(!multiply(&b, p, 0, first), "%s", remat_last_error());
        expect_right(&b, &p, 0, first);
        int64_t splits = fake_lt_counted().splits;
        api->products(b.device, &known);
        ck_assert_msg(!strstr(known.latest, "4 splits") == !cases[i].splits, "case %d: %s", (int)i, known.latest);
        for (int times = 0; times < 4; times++)
            ck_assert(!multiply(&b, p, 0, again) && !memcmp(first, again, sizeof first));
        ck_assert_int_eq(fake_lt_counted().splits, splits + (cases[i].splits ? 4 : 0));
        close_bench(&b);
        expect_clean("splits");
    }
}
END_TEST

/* Checks the tests above: without rows_like the bits differ. */
START_TEST(without_rows_like_the_bits_differ) {
    static bench b;
    static float whole[MOST], parts[MOST], alone[MOST];
    stand_in_reset(1);
    ck_assert(!open_bench(&b));
    rm_cuda_product p = tight(12, 8, 40);
    make_both(&b, p, 4, whole, parts);
    ck_assert(!multiply(&b, p, 0, alone) && memcmp(alone, parts, sizeof alone));
    close_bench(&b);
}
END_TEST

/* The first call allocates and tries algorithms; later calls only multiply. */
START_TEST(algorithms_are_chosen_once) {
    static bench b;
    static float c[MOST];
    stand_in_reset(1);
    ck_assert(!open_bench(&b));
    rm_cuda_product p = tight(12, 8, 40);
    p.rows_like = 4;
    ck_assert(!multiply(&b, p, 0, c));
    int64_t taken = fake_cuda_allocations(), live = fake_cuda_live();
    fake_lt_count before = fake_lt_counted();
    ck_assert(before.searches == 1 && before.products > 1);
    for (int i = 0; i < 5; i++) ck_assert(!multiply(&b, p, 0, c));
    ck_assert_int_eq(fake_cuda_allocations(), taken);
    ck_assert_int_eq(fake_cuda_live(), live);
    ck_assert_int_eq(fake_lt_counted().searches, 1);
    ck_assert_int_eq(fake_lt_counted().products, before.products + 5);
    close_bench(&b);
    expect_clean("twice");
}
END_TEST

/* Algorithms cannot be tried while launches are recorded. The rows are right nevertheless, and the shape is decided
 * later. */
START_TEST(recording_postpones_the_choice) {
    static bench b;
    static float whole[MOST], parts[MOST], c[MOST];
    const int key = 7;
    stand_in_reset(1);
    ck_assert(!open_bench(&b));
    rm_cuda_product p = tight(12, 8, 40);
    make_both(&b, p, 4, whole, parts);
    rm_cuda_products_precision(b.device->products, RM_TF32);
    rm_cuda_products_precision(b.device->products, RM_FP32); /* forgets all shapes */
    const rm_cuda_queue *queue = (const rm_cuda_queue *)b.queue;
    p.a = b.on_gpu[0], p.b = b.on_gpu[1], p.c = b.on_gpu[2], p.rows_like = 4;
    api->copy_in(b.queue, b.on_gpu[2], b.host[2], sizeof b.host[2]);
    for (int sight = 0; sight < 2; sight++)
        if (rm_cuda_begin(queue, &key, sizeof key)) {
            if (sight) rm_cuda_multiply(queue, &p);
            rm_cuda_end(queue);
        }
    ck_assert_int_eq(rm_cuda_products_made(b.device->products, RM_CUDA_UNDECIDED), 1);
    api->copy_out(b.queue, c, b.on_gpu[2], sizeof c);
    ck_assert_msg(!api->synchronize(b.queue), "%s", remat_last_error());
    ck_assert(!memcmp(c, parts, sizeof c));
    ck_assert(!multiply(&b, p, 0, c) && !memcmp(c, parts, sizeof c));
    ck_assert_int_eq(rm_cuda_products_made(b.device->products, RM_CUDA_WHOLE), 1);
    close_bench(&b);
    expect_clean("recorded");
}
END_TEST

/* ---- Precision -------------------------------------------------------------------------------------------------- */

static double error_of(bench *b, rm_precision precision) {
    static float c[MOST];
    rm_cuda_product p = tight(16, 16, 64);
    double most = 0;
    rm_cuda_products_precision(b->device->products, precision);
    ck_assert_msg(!multiply(b, p, 0, c), "%s", remat_last_error());
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t j = 0; j < p.n; j++) {
            double error = fabs((double)c[i * p.ldc + j] - expected(b, &p, 0, i, j));
            ck_assert(isfinite(error));
            most = fmax(most, error);
        }
    return most;
}

START_TEST(requested_precision_is_used) {
    static bench b;
    stand_in_reset(1);
    ck_assert(!open_bench(&b));
    double fp32 = error_of(&b, RM_FP32), tf32 = error_of(&b, RM_TF32), bf16 = error_of(&b, RM_BF16);
    ck_assert_msg(fp32 < 1e-5 && 10 * fp32 < tf32 && 2 * tf32 < bf16 && bf16 < 1, "errors %g, %g, %g", fp32, tf32,
                  bf16);
    ck_assert(error_of(&b, RM_FP32) == fp32);
    fake_lt_is(FAKE_LT_NO_TENSOR_CORES); /* then fp32 is used */
    ck_assert(error_of(&b, RM_TF32) == fp32 && error_of(&b, RM_BF16) == fp32);
    close_bench(&b);
    expect_clean("precision");
}
END_TEST

/* ---- Operands rounded beforehand -------------------------------------------------------------------------------- */

/* With so many bytes for operands. */
static void use_bf16(bench *b, int64_t bytes) {
    api->queue_free(b->queue);
    ck_assert(!api->set_precision(b->device, RM_FP32));
    b->device->products->rounded_bytes = (uint64_t)bytes;
    ck_assert(!api->set_precision(b->device, RM_BF16));
    ck_assert(!api->queue_create(b->device, &b->queue));
    b->device->products->rounded_terms = 100;
    b->device->products->rounded_edge = 2;
}

static void round_on_host(bench *b) {
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < MOST; k++) {
            uint32_t bits;
            memcpy(&bits, &b->host[i][k], sizeof bits);
            bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
            memcpy(&b->host[i][k], &bits, sizeof bits);
        }
}

/* The sums are those of operands rounded to nearest; the fake's tensor cores truncate. All transpositions, with and
 * without adding and cuBLASLt; padded rows; whole, and in parts where memory is short. Sums that are split are tried with
 * operands in bf16 first. */
START_TEST(large_operands_are_rounded_once) {
    static const int64_t size[][3] = {{20, 16, 9}, {33, 8, 40}, {250, 60, 7}, {7, 31, 5}};
    static bench b;
    static float c[MOST];
    rm_products known;
    stand_in_reset((uint64_t)_i);
    fake_lt_is(_i & 8 ? FAKE_LT_KNOWS_NOTHING : _i & 16 ? FAKE_LT_NEVER_REPEATS : 0);
    ck_assert(!open_bench(&b));
    round_on_host(&b);
    for (size_t s = 0; s < sizeof size / sizeof *size; s++)
        for (int offset = 0; offset < 4; offset++) {
            rm_cuda_product p = tight(size[s][0], size[s][1], size[s][2]);
            p.transpose_a = _i & 1, p.transpose_b = _i >> 1 & 1, p.add = _i >> 2 & 1;
            p.lda = (p.transpose_a ? p.m : p.k) + (offset == 3), p.ldb = (p.transpose_b ? p.k : p.n) + 2 * (offset > 2);
            p.ldc = p.n + offset;
            const bool parts = p.m == 250; /* 128 rows of A fit beside B */
            const int64_t beside = (p.transpose_b ? p.n * ((p.k + 7) / 8) : p.k * ((p.n + 7) / 8)) * 16;
            use_bf16(&b, parts ? (int64_t)rm_align_up((uint64_t)beside) + (p.transpose_a ? 252 * p.k : 200 * 8) * 2
                               : 1 << 20);
            const int64_t before = fake_lt_counted().products;
            ck_assert_msg(!multiply(&b, p, offset, c), "%s", remat_last_error());
            expect_right(&b, &p, offset, c);
            if (!(_i & 24) && offset == 0 && parts) ck_assert_int_ge(fake_lt_counted().products - before, 2);
        }
    api->products(b.device, &known);
    ck_assert_int_eq(known.in_fp32, 0);
    ck_assert_int_eq(known.by_cublas, _i & 8 ? known.shapes : 0);
    ck_assert_msg(strstr(known.latest, "in bf16"), "%s", known.latest);
    ck_assert_msg(!strstr(known.latest, "splits") == !!(_i & 24), "%s", known.latest);
    close_bench(&b);
    expect_clean("rounded operands");
}
END_TEST

/* A product of many rows that must have the bits of few, which are rounded. */
START_TEST(rounded_rows_have_the_same_bits_for_every_count) {
    static bench b;
    static float whole[MOST], parts[MOST];
    for (int turned = 0; turned < 2; turned++)
        for (int64_t rows = 1; rows < 24; rows += 11) { /* a single row is not rounded */
            stand_in_reset((uint64_t)rows);
            ck_assert(!open_bench(&b));
            use_bf16(&b, 1 << 20);
            rm_cuda_product p = tight(3 * rows, 24, 40);
            p.transpose_b = turned, p.add = true;
            if (turned) p.ldb = p.k;
            make_both(&b, p, rows, whole, parts);
            ck_assert_msg(!memcmp(whole, parts, sizeof whole), "rows of %lld", (long long)rows);
            close_bench(&b);
            expect_clean("rounded rows");
        }
}
END_TEST

/* Their memory is counted, kept by the queue, and taken only at this precision. */
START_TEST(memory_for_rounded_operands_is_planned) {
    static const struct { size_t card, room; } cases[] = {{1, 32}, {24, 97}, {140, 256}};
    for (int off = 0; off < 2; off++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            rm_device *device;
            rm_queue *queue;
            stand_in_reset(1);
            fake_cuda_machine(1, 13000, cases[i].card << 30);
            if (off) setenv("REMAT_CUDA_ROUND", "OFF", 1);
            ck_assert(!api->open(1, &device));
            unsetenv("REMAT_CUDA_ROUND");
            const uint64_t before = api->overhead_bytes(device);
            const int64_t live = fake_cuda_live();
            for (int times = 0; times < 2; times++) {
                const uint64_t room = off ? 0 : (uint64_t)cases[i].room << 20;
                ck_assert(!api->set_precision(device, RM_BF16) && !api->set_precision(device, RM_BF16));
                const uint64_t more = api->overhead_bytes(device) - before;
                ck_assert_msg(more >> 20 == room >> 20, "%llu", (unsigned long long)more);
                ck_assert_int_eq(fake_cuda_live() - live, !off);
                ck_assert(!api->queue_create(device, &queue));
                ck_assert_int_eq(fake_cuda_live() - live, !off);
                api->queue_free(queue);
                ck_assert(!api->set_precision(device, RM_TF32));
                ck_assert_uint_eq(api->overhead_bytes(device), before);
                ck_assert_int_eq(fake_cuda_live(), live);
            }
            api->close(device);
            expect_clean("room for operands");
        }
}
END_TEST

/* Products that stay in fp32 although a lower precision was requested are counted, for any reason. */
START_TEST(products_left_in_fp32_are_counted) {
    static const unsigned reasons[] = {FAKE_LT_NO_TENSOR_CORES, FAKE_LT_FASTER_IN_FP32, FAKE_LT_KNOWS_NOTHING};
    static bench b;
    rm_products known;
    stand_in_reset(1);
    ck_assert(!open_bench(&b));
    api->products(b.device, &known);
    ck_assert(known.shapes == 0 && known.in_fp32 == 0 && !*known.latest);
    double fp32 = error_of(&b, RM_FP32);
    api->products(b.device, &known);
    ck_assert(known.shapes == 1 && known.in_fp32 == 0 && strstr(known.latest, "in fp32"));
    (void)error_of(&b, RM_BF16);
    api->products(b.device, &known);
    ck_assert_msg(known.shapes == 1 && known.in_fp32 == 0 && strstr(known.latest, "in bf16"), "%s", known.latest);
    for (int i = 0; i < 3; i++) {
        fake_lt_is(reasons[i]);
        (void)error_of(&b, RM_FP32); /* another precision forgets all shapes */
        ck_assert(fabs(error_of(&b, RM_TF32)) <= 2 * fp32);
        api->products(b.device, &known);
        ck_assert_msg(known.shapes == 1 && known.in_fp32 == 1, "%d: %lld of %lld, %s", i, (long long)known.in_fp32,
                      (long long)known.shapes, known.latest);
        ck_assert_msg(!!strstr(known.latest, i < 2 ? "in fp32" : "cublasGemmEx"), "%s", known.latest);
    }
    close_bench(&b);
    expect_clean("counted");
}
END_TEST

/* 1/256 of a large GPU would be more than the parts need. (300 MiB of the fake's GPU are not free.) */
START_TEST(memory_for_trials_is_bounded) {
    static const struct { size_t card, room; } cases[] = {{1, 64}, {24, 97}, {32, 128}, {140, 128}, {288, 128}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rm_device *device;
        stand_in_reset(1);
        fake_cuda_machine(1, 13000, cases[i].card << 30);
        ck_assert(!api->open(1, &device));
        uint64_t room = device->products->trial_bytes >> 20;
        ck_assert_msg(room == cases[i].room, "%zu GiB: %llu MiB", cases[i].card, (unsigned long long)room);
        api->close(device);
        expect_clean("room");
    }
}
END_TEST

START_TEST(unknown_precisions_are_refused) {
    static const struct {
        const rm_device_api *api;
        const char *name;
        remat_status status;
        rm_precision precision;
    } cases[] = {{&rm_device_cpu, NULL, REMAT_OK, RM_FP32},        {&rm_device_cpu, "fp32", REMAT_OK, RM_FP32},
                 {&rm_device_cpu, "tf32", REMAT_MISSING, RM_TF32}, {&rm_device_cpu, "fp16", REMAT_INVALID, 0},
                 {&rm_device_null, "bf16", REMAT_OK, RM_BF16},     {&rm_device_cuda, "bf16", REMAT_OK, RM_BF16}};
    static bench b;
    rm_device *cpu;
    stand_in_reset(1);
    ck_assert(!open_bench(&b));
    ck_assert(!rm_device_cpu.open(1, &cpu));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rm_precision p;
        rm_device *device = cases[i].api == api ? b.device : cases[i].api == &rm_device_cpu ? cpu : NULL;
        ck_assert_int_eq(rm_device_set_precision(cases[i].api, device, cases[i].name, &p), cases[i].status);
        if (!cases[i].status) ck_assert_int_eq(p, cases[i].precision);
        if (cases[i].status) ck_says_all(remat_last_error(), "precision");
    }
    rm_device_cpu.close(cpu);
    b.device->major = 7; /* Turing's tensor cores support neither */
    rm_precision p;
    ck_assert_int_eq(rm_device_set_precision(api, b.device, "tf32", &p), REMAT_MISSING);
    ck_says_all(remat_last_error(), "Ampere");
    ck_assert_int_eq(rm_device_set_precision(api, b.device, "fp32", &p), REMAT_OK);
    close_bench(&b);
    expect_clean("precisions by name");
}
END_TEST

/* ---- Faults ----------------------------------------------------------------------------------------------------- */

static remat_status run_all(bench *b, float *c) {
    rm_cuda_product p = tight(12, 8, 40);
    TRY(open_bench(b));
    p.rows_like = 4;
    TRY(multiply(b, p, 0, c));
    api->queue_free(b->queue);
    b->queue = NULL;
    TRY(api->set_precision(b->device, RM_BF16));
    TRY(api->queue_create(b->device, &b->queue));
    b->device->products->rounded_terms = b->device->products->rounded_edge = 1;
    return multiply(b, p, 0, c);
}

/* A failing trial is not an error: the rows are then multiplied in another way. */
START_TEST(a_fault_at_any_call_of_a_product_gives_one_message) {
    static bench b;
    static float right[MOST], c[MOST];
    static const cudaError_t errors[] = {cudaErrorMemoryAllocation, cudaErrorUnknown};
    stand_in_reset(1);
    fake_lt_is(moods[_i].whims);
    ck_assert(!run_all(&b, right));
    close_bench(&b);
    int64_t calls = fake_cuda_calls();
    for (int64_t call = 1; call <= 2 * calls; call++) {
        char what[64];
        snprintf(what, sizeof what, "a fault at call %lld", (long long)call / 2);
        stand_in_reset((uint64_t)call);
        fake_lt_is(moods[_i].whims);
        fake_cuda_fail_at(call / 2, errors[call % 2]);
        remat_status status = run_all(&b, c);
        fake_cuda_fail_at(0, 0);
        ck_assert_msg(status || !memcmp(c, right, sizeof c), "%s: other bits", what);
        ck_assert_msg(!status || strlen(remat_last_error()) > 20, "%s: no message", what);
        close_bench(&b);
        expect_clean(what);
    }
}
END_TEST

int main(void) {
    TCase *c = tcase_create("cuda_product");
    tcase_add_loop_test(c, products_match_the_definition, 0, 8);
    tcase_add_loop_test(c, batches_match_the_definition, 0, 16);
    tcase_add_test(c, large_batches_are_split);
    tcase_add_test(c, cublas_replaces_a_missing_algorithm);
    tcase_add_loop_test(c, widely_spaced_rows_are_multiplied, 0, 2);
    tcase_add_loop_test(c, rows_have_the_same_bits_for_every_count, 0, 4 * MOODS);
    tcase_add_test(c, rows_are_multiplied_in_parts_when_memory_is_short);
    tcase_add_test(c, sums_are_split_only_if_their_bits_repeat);
    tcase_add_loop_test(c, large_operands_are_rounded_once, 0, 32);
    tcase_add_test(c, rounded_rows_have_the_same_bits_for_every_count);
    tcase_add_test(c, memory_for_rounded_operands_is_planned);
    tcase_add_test(c, without_rows_like_the_bits_differ);
    tcase_add_test(c, algorithms_are_chosen_once);
    tcase_add_test(c, recording_postpones_the_choice);
    tcase_add_test(c, requested_precision_is_used);
    tcase_add_test(c, products_left_in_fp32_are_counted);
    tcase_add_test(c, memory_for_trials_is_bounded);
    tcase_add_test(c, unknown_precisions_are_refused);
    tcase_add_loop_test(c, a_fault_at_any_call_of_a_product_gives_one_message, 0, MOODS);
    return run_cases("cuda_product", c);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
