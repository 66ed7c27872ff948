/* test_kernels.c: the CUDA kernels, executed on the CPU (shim.h): every promise that rm_op_check_again tests, with CUDA
 * kernels in the CPU's column; the same bits for every order of threads and blocks; optimizers, norms and hashes
 * compared with the CPU's; and the errors that the emulation must find. No GPU is used. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ops/cuda/bf16.h"
#include "ops/layers/attention.h"
#include "ops/layers/conv.h"
#include "tests/cases.h"
#include "tests/cuda/emulated_op.h"
#include "tests/cuda/emulation.h"
#include "tests/cuda/mutants.h"
#include "tests/sanitized.h"
#include "tests/says.h"
#include "tests/suite.h"
#include "ops/check/op_check.h"

START_TEST(every_op_has_kernels) {
    const remat_op *op = rm_ops[_i];
    ck_assert_msg(op->on[REMAT_ON_CUDA].forward && (op->on[REMAT_ON_CUDA].backward || op->constant),
                  "%s lacks CUDA kernels", op->name);
    ck_assert_msg(!op->on[REMAT_ON_CUDA].rebuild == !op->on[REMAT_ON_CPU].rebuild, "%s has no rebuild kernel",
                  op->name);
}
END_TEST

/* Under AddressSanitizer, the tests of orders and shapes call the same kernels. */
START_TEST(kernels_pass_the_op_check) {
    if (SANITIZED) return;
    remat_op op = emulated(rm_ops[_i]);
    remat_op_report report;
    int64_t before = rm_emulated_launches() + rm_emulated_products();
    ck_assert_msg(!rm_op_check_again(&op, rm_op_find_f64(op.name), &report), "%s", remat_last_error());
    ck_assert_int_gt(rm_emulated_launches() + rm_emulated_products(), before); /* a kernel may be products alone */
    printf("%-22s float kernels at %4.1f %% of what is allowed\n", op.name, 100 * report.float_error);
    fflush(stdout);
}
END_TEST

static void run(const remat_op *op, int sample, int64_t tau, rm_op_outputs *out) {
    rm_op_setup setup = {.op = op, .sample = sample, .threads = 1, .tau = tau};
    rm_op_inputs in;
    rm_op_inputs_make(&setup, 21, &in);
    const char *wrong = rm_op_run(&setup, &in, out);
    rm_op_inputs_free(&in);
    ck_assert_msg(!wrong, "%s: %s", op->name, wrong);
}

/* Under AddressSanitizer, one run of each sample calls the same kernels. */
static void check_in_parts(const remat_op *op) {
    if (!SANITIZED) ck_assert_msg(!rm_op_check_again(op, rm_op_find_f64(op->name), NULL), "%s", remat_last_error());
    for (int sample = 0; sample < op->n_samples; sample++) {
        rm_op_outputs out;
        run(op, sample, 0, &out);
        rm_op_outputs_free(&out);
    }
}

/* Parts that end within an image or a row. */
START_TEST(convolutions_are_computed_in_parts) {
    static const char *const name[] = {"conv", "conv_transpose"};
    remat_op op = emulated(rm_op_find(name[_i]));
    rm_conv_most_columns = 7;
    check_in_parts(&op);
    rm_conv_most_columns = 1 << 15;
}
END_TEST

/* Some heads, or a single one, at a time. */
START_TEST(attention_is_computed_in_parts) {
    remat_op op = emulated(rm_op_find("attention"));
    const int64_t most = rm_attention_most_floats;
    rm_attention_most_floats = _i ? 1 : 100;
    check_in_parts(&op);
    rm_attention_most_floats = most;
}
END_TEST

/* ---- Orders ----------------------------------------------------------------------------------------------------- */

static void compare_array(const rm_op_array *a, const rm_op_array *b, const char *op, const char *what) {
    ck_assert_int_eq(a->count, b->count);
    if (!a->count) return;
    ck_assert_msg(!memcmp(a->value, b->value, (size_t)a->count * sizeof *a->value), "%s: %s has different bits", op,
                  what);
}

static void compare_outputs(const rm_op_outputs *a, const rm_op_outputs *b, const char *op) {
    compare_array(&a->y, &b->y, op, "y");
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) {
        compare_array(&a->dx[i], &b->dx[i], op, "a gradient");
        compare_array(&a->buffer[i], &b->buffer[i], op, "a buffer");
    }
}

START_TEST(bits_do_not_depend_on_the_order_of_threads) {
    remat_op op = emulated(rm_ops[_i]);
    for (int sample = 0; sample < op.n_samples; sample++) {
        rm_op_outputs first, other;
        rm_emulate_in(RM_IN_ORDER);
        run(&op, sample, 0, &first);
        for (int order = 1; order < RM_ORDERS; order++) {
            rm_emulate_in((rm_emulated_order)order);
            run(&op, sample, 0, &other);
            compare_outputs(&first, &other, op.name);
            rm_op_outputs_free(&other);
        }
        rm_op_outputs_free(&first);
        rm_emulate_in(RM_IN_ORDER);
    }
}
END_TEST

/* A cell of one shape, in tiles. Lean and full saving give gradients with the same bits, and aux is rebuilt (rm_op_run
 * checks it). in 0: the embedding is folded. Odd layers have resets. */
static void try_shape(const remat_op *cell, int64_t gates, int64_t steps, int64_t batch, int64_t in, int64_t hidden) {
    int64_t wide = gates * hidden;
    remat_op op = emulated(cell);
    remat_sample sample = {.name = "a shape", .sequence = true};
    sample.x[0] = in ? rm_desc_make(REMAT_F32, 3, (int64_t[]){steps, batch, in})
                     : rm_desc_make(REMAT_I32, 2, (int64_t[]){steps, batch});
    sample.x[1] = rm_desc_make(REMAT_F32, 2, in ? (int64_t[]){wide, in} : (int64_t[]){3, wide});
    sample.x[2] = rm_desc_make(REMAT_F32, 2, (int64_t[]){wide, hidden});
    sample.x[3] = sample.x[4] = rm_desc_make(REMAT_F32, 1, (int64_t[]){wide});
    sample.x[5] = hidden % 2 ? rm_desc_make(REMAT_F32, 2, sample.x[0].dim) : (remat_desc){.rank = -1};
    op.samples = &sample, op.n_samples = 1;
    rm_op_setup setup = {.op = &op, .threads = 1, .tau = 5, .with_states = batch % 2};
    rm_op_inputs inputs;
    rm_op_outputs out[2];
    rm_op_inputs_make(&setup, 3, &inputs);
    for (int lean = 0; lean < 2; lean++) {
        setup.lean = lean;
        const char *wrong = rm_op_run(&setup, &inputs, &out[lean]);
        ck_assert_msg(!wrong, "%s, T %d B %d C %d H %d: %s", op.name, (int)steps, (int)batch, (int)in, (int)hidden,
                      wrong);
    }
    compare_outputs(&out[0], &out[1], op.name);
    rm_op_outputs_free(&out[0]), rm_op_outputs_free(&out[1]), rm_op_inputs_free(&inputs);
}

/* With clusters the alignment of rows does not matter, so a few shapes suffice (test_persistent.c has larger ones). */
START_TEST(every_shape_is_rebuilt) {
    static const int64_t batches[] = {1, 2, 3, 4, 7}, hiddens[] = {1, 2, 3, 4, 8, 13}, ins[] = {0, 1, 4, 6};
    const int by = rm_op_queue == &rm_emulated_clusters_queue ? 2 : 1;
    for (int b = 0; b < 5; b += by)
        for (int h = 0; h < 6; h += by)
            for (int c = 0; c < 4; c++)
                for (int64_t steps = 1; steps <= 8; steps += 7)
                    try_shape(rm_op_find(_i ? "gru" : "lstm"), _i ? 3 : 4, steps, batches[b], ins[c], hiddens[h]);
}
END_TEST

/* If each element is computed alone, or summed in the CPU's order, the bits equal the CPU's, above all dropout's
 * mask. */
START_TEST(some_ops_have_the_bits_of_the_cpu) {
    static const char *const name[] = {
        "dropout",        "embedding", "add",   "mul",     "scale",   "relu",        "last_step",
        "mean_over_time", "concat",    "slice", "reverse", "step_at", "running_max", "pick"};
    const remat_op *cpu = rm_op_find(name[_i]);
    remat_op cuda = emulated(cpu);
    for (int sample = 0; sample < cpu->n_samples; sample++)
        for (int64_t tau = 0; tau < 3; tau++) {
            rm_op_outputs a, b;
            run(cpu, sample, tau, &a);
            run(&cuda, sample, tau, &b);
            compare_outputs(&a, &b, cpu->name);
            rm_op_outputs_free(&a), rm_op_outputs_free(&b);
        }
}
END_TEST

/* Rows are added in their order: a table's gradient has the bits of the CPU's plain loop, also if tokens are searched
 * in several parts, or if a block has several rows of the table. */
START_TEST(embedding_gradients_add_rows_in_order) {
    static const int64_t shape[][4] = {
        {350, 3, 7, 5}, {512, 1, 3, 130}, {103, 5, 1000, 2}, {1, 1, 1, 1}, {32, 33, 2, 129}};
    const int64_t *d = shape[_i]; /* T, B, V, C */
    remat_op cpu = *rm_op_find("embedding"), cuda = emulated(&cpu);
    remat_sample sample = {.name = "a shape", .sequence = true};
    sample.x[0] = rm_desc_make(REMAT_I32, 2, d), sample.x[1] = rm_desc_make(REMAT_F32, 2, d + 2);
    for (int i = 2; i < REMAT_MAX_INPUTS; i++) sample.x[i].rank = -1;
    cpu.samples = cuda.samples = &sample, cpu.n_samples = cuda.n_samples = 1;
    rm_op_outputs a, b;
    run(&cpu, 0, 0, &a);
    for (int order = 0; order < RM_ORDERS; order++) {
        rm_emulate_in((rm_emulated_order)order);
        run(&cuda, 0, 0, &b);
        compare_outputs(&a, &b, "embedding");
        rm_op_outputs_free(&b);
    }
    rm_emulate_in(RM_IN_ORDER);
    rm_op_outputs_free(&a);
}
END_TEST

/* ---- Recorded launches ------------------------------------------------------------------------------------------ */

/* The key of the last launcher that asked whether its launches are recorded. The answer is yes, so it makes none. */
static unsigned char asked[1024];
static size_t asked_bytes;
static bool keep_key(const rm_cuda_queue *queue, const void *key, size_t bytes) {
    (void)queue;
    ck_assert_uint_le(bytes, sizeof asked);
    memcpy(asked, key, asked_bytes = bytes);
    return false;
}
static void do_not(void *stream, void (*work)(void *), const void *context, size_t bytes) {
    (void)stream, (void)work, (void)context, (void)bytes;
}
static void do_not_multiply(const rm_cuda_queue *queue, const rm_cuda_product *product) { (void)queue, (void)product; }

static bool ask_alike(remat_kernel *one, remat_kernel *another, const remat_call *a, const remat_call *b) {
    unsigned char first[sizeof asked];
    one(a);
    size_t bytes = asked_bytes;
    memcpy(first, asked, bytes);
    another(b);
    return bytes == asked_bytes && !memcmp(first, asked, bytes);
}
static bool asks_alike(remat_kernel *kernel, const remat_call *a, const remat_call *b) {
    return ask_alike(kernel, kernel, a, b);
}

/* A cell's call, whose data are not read. All addresses differ. */
static remat_call call_of(int64_t gates, bool folded, const rm_cuda_queue *queue) {
    static char memory[64];
    remat_call c = {
        .queue = (void *)(uintptr_t)queue, .t_total = 3, .aux = memory, .scratch = memory + 1, .fixed = memory + 17};
    int64_t wide = gates * 4;
    c.x[0].desc =
        folded ? rm_desc_make(REMAT_I32, 2, (int64_t[]){3, 2}) : rm_desc_make(REMAT_F32, 3, (int64_t[]){3, 2, 4});
    c.x[1].desc = c.x[2].desc = rm_desc_make(REMAT_F32, 2, (int64_t[]){wide, 4});
    if (folded) c.x[1].desc = rm_desc_make(REMAT_F32, 2, (int64_t[]){5, wide});
    c.x[3].desc = c.x[4].desc = rm_desc_make(REMAT_F32, 1, (int64_t[]){wide});
    c.x[5].desc.rank = -1;
    for (int i = 0; i < 5; i++) c.x[i].data = memory + 2 + i;
    c.y.data = memory + 7, c.dy.data = memory + 8;
    for (int k = 0; k < REMAT_MAX_STATES; k++) {
        c.state_in[k].data = memory + 9 + k, c.state_out[k].data = memory + 11 + k;
        c.dstate_in[k].data = memory + 13 + k, c.dstate_out[k].data = memory + 15 + k;
    }
    return c;
}

static const struct {
    const char *name;
    int64_t gates;
} cells[] = {{"lstm", 4}, {"gru", 3}, {"rnn_tanh", 1}, {"rnn_relu", 1}};
enum { CELLS = sizeof cells / sizeof *cells };

/* Recorded timesteps are launched again for a call with the same key. The key must differ if anything differs on which
 * the launches depend. It must be equal if only the tile differs: its place in memory, and its time. */
START_TEST(recording_keys_contain_all_dependencies) {
    static const size_t depends[] = {offsetof(remat_call, x[2].data),        offsetof(remat_call, x[3].data),
                                     offsetof(remat_call, x[4].data),        offsetof(remat_call, fixed),
                                     offsetof(remat_call, x[0].desc.dim[0]), offsetof(remat_call, x[0].desc.dim[1])};
    static const size_t differs[] = {offsetof(remat_call, x[0].data),
                                     offsetof(remat_call, y.data),
                                     offsetof(remat_call, aux),
                                     offsetof(remat_call, scratch),
                                     offsetof(remat_call, state_in[0].data),
                                     offsetof(remat_call, state_in[1].data),
                                     offsetof(remat_call, state_out[0].data),
                                     offsetof(remat_call, state_out[1].data),
                                     offsetof(remat_call, dy.data),
                                     offsetof(remat_call, dstate_in[0].data),
                                     offsetof(remat_call, dstate_in[1].data),
                                     offsetof(remat_call, dstate_out[0].data),
                                     offsetof(remat_call, dstate_out[1].data),
                                     offsetof(remat_call, t0),
                                     offsetof(remat_call, key.step)};
    const rm_cuda_queue queue = {.multiply = do_not_multiply, .begin = keep_key};
    const remat_op *op = rm_op_find(cells[_i / 4].name);
    bool folded = _i % 2, back = _i / 2 % 2;
    remat_kernel *kernel = rm_op_kernel(op, REMAT_ON_CUDA, back ? REMAT_BACKWARD : REMAT_FORWARD);
    remat_call call = call_of(cells[_i / 4].gates, folded, &queue), other = call;
    rm_emulate_by(do_not);
    for (size_t i = 0; i < sizeof depends / sizeof *depends; i++) {
        other = call;
        *(uint64_t *)((char *)&other + depends[i]) += 1;
        ck_assert_msg(!asks_alike(kernel, &call, &other), "%s, %d: the key does not depend on member %d of the call",
                      op->name, _i % 4, (int)depends[i]);
    }
    for (size_t i = 0; i < sizeof differs / sizeof *differs; i++) {
        other = call;
        *(uint64_t *)((char *)&other + differs[i]) += 64;
        ck_assert_msg(asks_alike(kernel, &call, &other), "%s, %d: the key depends on member %d of the call", op->name,
                      _i % 4, (int)differs[i]);
    }
    for (int i = 0; i < CELLS; i++) {
        remat_kernel *of_other =
            rm_op_kernel(rm_op_find(cells[i].name), REMAT_ON_CUDA, back ? REMAT_BACKWARD : REMAT_FORWARD);
        if (of_other == kernel || cells[i].gates != cells[_i / 4].gates) continue;
        ck_assert_msg(!ask_alike(kernel, of_other, &call, &call), "%s has the keys of %s", op->name, cells[i].name);
    }
    other = call; /* no product without a state, or without a needed gradient of it */
    *(back ? &other.dstate_in[0].data : &other.state_in[0].data) = NULL;
    ck_assert_msg(!asks_alike(kernel, &call, &other), "%s, %d: the key does not depend on the presence of a state",
                  op->name, _i % 4);
    other = call;
    other.x[1].data = &other;
    ck_assert_msg(asks_alike(kernel, &call, &other) == !folded, "%s, %d: the table", op->name, _i % 4);
    other = call;
    other.aux = other.dstate_in[1].data = NULL; /* dropping */
    if (!back) ck_assert_msg(asks_alike(kernel, &call, &other), "%s, %d: the key depends on keeping", op->name, _i % 4);
    rm_emulate_by(NULL);
}
END_TEST

/* ---- Optimizers ------------------------------------------------------------------------------------------------- */

static const rm_update configurations[] = {
    {.momentum_factor = 1, .trust_coefficient = 1e-3},
    {.momentum = 0.9, .weight_decay = 0.1, .adapt = true, .trust_coefficient = 1e-3, .momentum_factor = 0.5},
    {.momentum = 0.9, .nesterov = true, .weight_decay = 0.1, .trust_coefficient = 1e-3, .momentum_factor = 1},
    {.adapt = true, .trust_coefficient = 1e-3, .momentum_factor = 1, .norm_limit = 2},
};
enum { CONFIGURATIONS = sizeof configurations / sizeof *configurations, STEPS = 3 };

/* The parameters, followed by both states, 3 n floats, after some steps on the CPU or emulated. The caller frees
 * them. */
static float *train(const rm_optimizer *o, rm_update u, int64_t n, bool cuda) {
    float *all = calloc((size_t)(4 * n + 1), sizeof *all), *g = all + 3 * n, *state[] = {all + n, all + 2 * n};
    ck_assert_ptr_nonnull(all);
    u.lr = 0.1, u.beta1 = 0.9, u.beta2 = 0.99, u.epsilon = 1e-6, u.gradient_scale = 0.75, u.threads = 1;
    for (int64_t i = 0; i < n; i++) all[i] = (float)(i % 19 - 9) / 8;
    for (u.step = 1; u.step <= STEPS; u.step++) {
        for (int64_t i = 0; i < n; i++) g[i] = (float)((i * 7 + u.step * 13) % 23 - 11) / 8;
        memset(u.sum, 0, sizeof u.sum);
        if (o->measure && cuda) {
            u.sum[0] = u.sum[1] = NAN; /* overwritten, not added to */
            double sum[RM_MAX_OPTIMIZER_SUMS] = {NAN, NAN};
            o->measure_cuda(&rm_emulated_queue, &u, n, all, g, state, sum);
            memcpy(u.sum, sum, sizeof sum);
        } else if (o->measure) {
            double sum[RM_MAX_OPTIMIZER_SUMS] = {0};
            o->measure(&u, n, all, g, state, sum);
            memcpy(u.sum, sum, sizeof sum);
        }
        if (cuda)
            o->update_cuda(&rm_emulated_queue, &u, n, all, g, state);
        else
            o->update(&u, n, all, g, state);
    }
    return all;
}

/* The results may differ by a few roundings per step: compilers may fuse operations, and norms are summed in another
 * order. */
START_TEST(optimizers_match_the_cpu) {
    const rm_optimizer *o = rm_optimizers[_i];
    ck_assert_msg(o->update_cuda && !o->measure == !o->measure_cuda, "%s has no CUDA kernels", o->name);
    static const int64_t length[] = {0, 1, 255, 4096, 20000};
    for (size_t k = 0; k < sizeof length / sizeof *length; k++)
        for (int c = 0; c < CONFIGURATIONS; c++) {
            int64_t n = length[k];
            float *cpu = train(o, configurations[c], n, false), *cuda = train(o, configurations[c], n, true);
            for (int64_t i = 0; i < 3 * n; i++)
                ck_assert_msg(fabsf(cpu[i] - cuda[i]) <= 2e-6f * (1 + fabsf(cpu[i])),
                              "%s, configuration %d, %lld: %.9g on the CPU, %.9g emulated", o->name, c, (long long)i,
                              (double)cpu[i], (double)cuda[i]);
            free(cpu), free(cuda);
        }
}
END_TEST

START_TEST(sums_of_squares_have_double_precision) {
    static const int64_t length[] = {0, 1, 255, 256, 4097, 70000};
    for (size_t k = 0; k < sizeof length / sizeof *length; k++) {
        int64_t n = length[k];
        float *x = calloc((size_t)n + 1, sizeof *x);
        ck_assert_ptr_nonnull(x);
        for (int64_t i = 0; i < n; i++) x[i] = (float)((i * 2654435761u) % 2000) / 1000 - 1;
        double sum = NAN, expected = rm_sum_of_squares(x, n, 1);
        rm_sum_of_squares_cuda(&rm_emulated_queue, x, n, &sum);
        ck_assert_msg(fabs(sum - expected) <= 1e-13 * expected, "%lld: %.17g, not %.17g", (long long)n, sum, expected);
        for (int order = 1; order < RM_ORDERS; order++) {
            double other = NAN;
            rm_emulate_in((rm_emulated_order)order);
            rm_sum_of_squares_cuda(&rm_emulated_queue, x, n, &other);
            ck_assert_mem_eq(&sum, &other, sizeof sum);
        }
        if (n) x[n - 1] = NAN;
        rm_sum_of_squares_cuda(&rm_emulated_queue, x, n, &sum);
        ck_assert(n ? isnan(sum) : sum == 0);
        free(x);
    }
    rm_emulate_in(RM_IN_ORDER);
}
END_TEST

/* ---- Comparing states ------------------------------------------------------------------------------------------- */

/* The definition of compare.h, written independently. */
static uint64_t hash_of(const uint32_t *word, int64_t n, uint64_t seed) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < n; i += 2) {
        uint64_t x = word[i] | (i + 1 < n ? (uint64_t)word[i + 1] << 32 : 0);
        x ^= seed + (uint64_t)(i / 2 + 1) * 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        hash += x ^ (x >> 31);
    }
    return hash;
}

/* Lengths: twice one round of all blocks, shorter ones, and 0. */
static const int64_t compared[] = {0, 1, 2, 3, 255, 512, 513, 4097, 70001, 4 * 1024 * 1024 + 1};
enum { COMPARED = sizeof compared / sizeof *compared };

static uint32_t *words_of(int64_t n) {
    uint32_t *word = aligned_alloc(64, ((size_t)n + 16) / 16 * 64);
    ck_assert_ptr_nonnull(word);
    for (int64_t i = 0; i < n; i++) word[i] = (uint32_t)i * 2654435761u >> i % 5;
    return word;
}

START_TEST(hashes_match_the_definition) {
    int64_t n = compared[_i];
    uint32_t *word = words_of(n);
    uint64_t expected = hash_of(word, n, 7), kept = 1;
    rm_difference first = {.found = 0};
    rm_comparison c = {
        .state = word, .bytes = (uint64_t)n * 4, .seed = 7, .kept = &kept, .first = &first, .keeps = true};
    for (int order = 0; order < RM_ORDERS; order++) {
        rm_emulate_in((rm_emulated_order)order);
        c.keeps = true;
        kept = 1;
        rm_compare_cuda(&rm_emulated_queue, &c);
        ck_assert_uint_eq(kept, expected);
        c.keeps = false;
        rm_compare_cuda(&rm_emulated_queue, &c);
        ck_assert(!first.found);
    }
    rm_emulate_in(RM_IN_ORDER);
    free(word);
}
END_TEST

/* Flips any bit of any word of short arrays, and of some words of long ones, including the first and the last. The
 * first difference is reported. */
START_TEST(every_bit_is_compared) {
    int64_t n = compared[_i], apart = n > 513 ? n / 3 : n > 3 ? 31 : 1;
    uint32_t *word = words_of(n);
    uint64_t kept;
    rm_difference first;
    rm_comparison c = {
        .state = word, .bytes = (uint64_t)n * 4, .seed = 9, .kept = &kept, .first = &first, .keeps = true};
    rm_compare_cuda(&rm_emulated_queue, &c);
    c.keeps = false, c.again = true;
    for (int64_t i = n - 1; i >= 0; i -= apart)
        for (int bit = 0; bit < (n > 100000 ? 2 : 32); bit += rm_cases(1, 5)) {
            first = (rm_difference){.found = 0};
            c.line = i, c.piece = bit;
            word[i] ^= 1u << bit;
            rm_compare_cuda(&rm_emulated_queue, &c);
            ck_assert_msg(first.found && first.line == i && first.piece == bit && first.again == 1,
                          "%d words: the flip of bit %d of word %d is not found", (int)n, bit, (int)i);
            ck_assert_uint_eq(first.now, hash_of(word, n, 9));
            ck_assert_uint_eq(first.before, kept);
            word[i] ^= 1u << bit;
            word[0] ^= 1; /* a second difference */
            c.line = -1;
            rm_compare_cuda(&rm_emulated_queue, &c);
            ck_assert_int_eq(first.line, i);
            word[0] ^= 1;
        }
    free(word);
}
END_TEST

/* ---- Numbers in bf16 -------------------------------------------------------------------------------------------- */

/* Of the two numbers in bf16 around x, the nearer; of two equally near, the one whose last bit is 0. */
static uint32_t nearest_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t below = bits >> 16, rest = bits & 0xffff;
    if (isnan(x)) return below | 64;
    return rest > 0x8000 || (rest == 0x8000 && below % 2) ? below + 1 : below;
}

/* Any bits of a float, in matrices of any alignment; gaps between rows and what follows stay as they are. */
START_TEST(numbers_are_rounded_to_bf16) {
    enum { MOST_NUMBERS = 4096 };
    static const float special[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, 0x1.01p0f, 0x1.03p0f, 0x1.fffp127f};
    static float from[MOST_NUMBERS];
    static _Alignas(8) uint16_t to[MOST_NUMBERS];
    uint64_t random = (uint64_t)_i + 1;
    for (int i = 0; i < MOST_NUMBERS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const uint32_t bits = (uint32_t)(random >> 32);
        memcpy(&from[i], &bits, sizeof bits);
        if (i % 7 == 0) from[i] = special[i / 7 % 9];
    }
    for (int64_t rows = 1; rows < 6; rows += 2)
        for (int64_t columns = 1; columns < 70; columns += columns < 12 ? 1 : 19)
            for (int gaps = 0; gaps < 2; gaps++) {
                const int64_t ld = columns + (gaps ? _i : 0), to_ld = gaps ? (columns + 7) / 8 * 8 : columns;
                if (rows > 1 && to_ld % 4) continue;
                memset(to, 0x5a, sizeof to);
                rm_round_cuda(&rm_emulated_queue, rows, columns, ld, from + _i, to_ld, to);
                for (int64_t i = 0; i < MOST_NUMBERS; i++) {
                    const int64_t row = i / to_ld, column = i % to_ld;
                    const bool inside = row < rows && column < columns;
                    ck_assert_uint_eq(to[i], inside ? nearest_bf16(from[_i + row * ld + column]) : 0x5a5a);
                }
            }
}
END_TEST

/* ---- Mistakes that the emulation must find ---------------------------------------------------------------------- */

static bool depends_on_order(void (*launch)(float *)) {
    float first = 1;
    bool depends = false;
    launch(&first);
    for (int order = 1; order < RM_ORDERS; order++) {
        float other = 1;
        rm_emulate_in((rm_emulated_order)order);
        launch(&other);
        depends = depends || other != first;
    }
    rm_emulate_in(RM_IN_ORDER);
    return depends;
}

static void one_box(float *out) { rm_mutant_hands_on(out, RM_ONE_BOX); }
static void reads_early(float *out) { rm_mutant_hands_on(out, RM_READS_EARLY); }

START_TEST(races_change_the_bits) {
    ck_assert(depends_on_order(one_box));
    ck_assert(depends_on_order(reads_early));
    ck_assert(depends_on_order(rm_mutant_races));
    ck_assert(depends_on_order(rm_mutant_races_blocks));
    ck_assert(depends_on_order(rm_mutant_races_ahead));
    ck_assert(!depends_on_order(rm_mutant_waits));
}
END_TEST

static void run_the_first_alone(void *stream, void (*work)(void *), const void *context, size_t bytes) {
    rm_emulate_by(do_not);
    work((void *)(uintptr_t)context);
    (void)stream, (void)bytes;
}

/* The waiting thread runs the streams, while others launch (tests/engine/fake_cuda). */
START_TEST(launches_do_not_change_running_kernels) {
    float out = 0;
    rm_emulate_by(run_the_first_alone);
    rm_mutant_counts_its_grid(&out);
    rm_emulate_by(NULL);
    ck_assert_float_eq(out, 36);
}
END_TEST

/* Each of these aborts. */
START_TEST(waits_that_never_end_are_found) {
    static void (*const broken[])(float *) = {rm_mutant_returns_early, rm_mutant_waits_elsewhere,
                                              rm_mutant_leaves_its_warp, rm_mutant_waits_alone};
    float out = 0;
    broken[_i](&out);
}
END_TEST

/* The correct result of rm_mutant_hands_on. */
static float handed_on(void) {
    enum { N = RM_MUTANT_BLOCKS * RM_MUTANT_THREADS };
    float x[N], next[N];
    for (int n = 0; n < N; n++) x[n] = (float)(n % RM_MUTANT_THREADS + n / RM_MUTANT_THREADS + RM_MUTANT_BLOCKS);
    for (int step = 0; step < RM_MUTANT_STEPS; step++, memcpy(x, next, sizeof x))
        for (int n = 0; n < N; n++) {
            float sum = x[n / 32 * 32 + 7];
            for (int i = 0; i < N; i++) sum += (float)(i % 4) * x[i];
            next[n] = fmodf(sum, 61) + (float)(n % RM_MUTANT_THREADS);
        }
    return x[9];
}

START_TEST(blocks_of_a_cluster_exchange_values) {
    static const rm_mutant_mistake sound[] = {RM_SOUND, RM_EXPECTS_LATE};
    for (int order = 0; order < RM_ORDERS; order++) {
        float out = NAN;
        rm_emulate_in((rm_emulated_order)order);
        rm_mutant_hands_on(&out, sound[_i]);
        ck_assert_float_eq(out, handed_on());
    }
    rm_emulate_in(RM_IN_ORDER);
}
END_TEST

START_TEST(memory_is_filled_with_nan) {
    float out = 0;
    rm_mutant_hands_on(&out, RM_READS_NOTHING);
    ck_assert(isnan(out));
}
END_TEST

static const struct {
    rm_mutant_mistake mistake;
    const char *is_said;
} misuse[] = {
    {RM_NOT_SENT, "mailbox|4 bytes|missing"},
    {RM_SENT_TWICE, "mailbox|phase"},
    {RM_NOT_OPENED, "mailbox|not open"},
    {RM_OPENED_TWICE, "opens|mailbox"},
    {RM_NOT_EXPECTED, "mailbox|expects"},
    {RM_EXPECTED_TWICE, "twice"},
    {RM_EXPECTS_LESS, "mailbox|phase"},
    {RM_EXPECTS_NOTHING, "expects|nothing"},
    {RM_EXPECTS_MUCH, "1048575 bytes"},
    {RM_PHASE_TWO, "phase|0|1"},
    {RM_NO_SUCH_RANK, "rank|cluster"},
    {RM_SLOT_OUTSIDE, "block's memory"},
    {RM_BOX_OUTSIDE, "block's memory"},
    {RM_BOX_BETWEEN, "aligned"},
    {RM_RETURNS, "returning"},
    {RM_SYNCS_IN_PART, "thread 40|64|returned|rm_cluster_sync"},
    {RM_LAUNCHED_APART, "RM_LAUNCH_CLUSTERS"},
    {RM_LAUNCHED_ALONE, "RM_LAUNCH_CLUSTERS"},
    {RM_TOO_LARGE, "clusters"},
    {RM_NO_CLUSTER, "clusters"},
};
enum { MISUSES = sizeof misuse / sizeof *misuse };

/* In every order. */
START_TEST(misuse_of_clusters_is_found) {
    for (int order = 0; order < RM_ORDERS; order++) {
        char said[1024] = "";
        int end[2], status;
        ck_assert_int_eq(pipe(end), 0);
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (!child) {
            float out;
            dup2(end[1], STDERR_FILENO);
            rm_emulate_in((rm_emulated_order)order);
            rm_mutant_hands_on(&out, misuse[_i].mistake);
            _exit(0);
        }
        close(end[1]);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_ge(read(end[0], said, sizeof said - 1), 0);
        close(end[0]);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "order %d: not found", order);
        ck_assert_msg(says_all(said, misuse[_i].is_said), "order %d: %s", order, said);
    }
}
END_TEST

/* A GPU without clusters, for which recurrent layers have other kernels (ops/recurrent/persistent.cuh). */
static void take_no_clusters(void) { rm_op_queue = &rm_emulated_queue; }
static void take_clusters(void) { rm_op_queue = &rm_emulated_clusters_queue; }

int main(void) {
    take_clusters();
    TCase *ops = tcase_create("ops"), *rest = tcase_create("optimizers"), *mutants = tcase_create("mutants");
    TCase *cells = tcase_create("no clusters");
    tcase_add_checked_fixture(cells, take_no_clusters, take_clusters);
    for (int i = 0; i < rm_n_ops; i++) {
        if (rm_ops[i]->time != REMAT_TIME_RECURRENT) continue;
        tcase_add_loop_test(cells, kernels_pass_the_op_check, i, i + 1);
        tcase_add_loop_test(cells, bits_do_not_depend_on_the_order_of_threads, i, i + 1);
    }
    tcase_add_loop_test(cells, every_shape_is_rebuilt, 0, 2);
    tcase_add_loop_test(ops, every_op_has_kernels, 0, rm_n_ops);
    tcase_add_loop_test(ops, kernels_pass_the_op_check, 0, rm_n_ops);
    tcase_add_loop_test(ops, bits_do_not_depend_on_the_order_of_threads, 0, rm_n_ops);
    tcase_add_loop_test(ops, convolutions_are_computed_in_parts, 0, 2);
    tcase_add_loop_test(ops, attention_is_computed_in_parts, 0, 2);
    tcase_add_loop_test(ops, some_ops_have_the_bits_of_the_cpu, 0, 14);
    tcase_add_loop_test(ops, embedding_gradients_add_rows_in_order, 0, 5);
    tcase_add_loop_test(ops, every_shape_is_rebuilt, 0, 2);
    tcase_add_loop_test(ops, recording_keys_contain_all_dependencies, 0, 4 * CELLS);
    tcase_add_loop_test(rest, numbers_are_rounded_to_bf16, 0, 5);
    tcase_add_loop_test(rest, optimizers_match_the_cpu, 0, rm_n_optimizers);
    tcase_add_test(rest, sums_of_squares_have_double_precision);
    tcase_add_loop_test(rest, hashes_match_the_definition, 0, COMPARED);
    tcase_add_loop_test(rest, every_bit_is_compared, 0, COMPARED);
    tcase_add_test(mutants, races_change_the_bits);
    tcase_add_test(mutants, launches_do_not_change_running_kernels);
    tcase_add_loop_test_raise_signal(mutants, waits_that_never_end_are_found, SIGABRT, 0, 4);
    tcase_add_loop_test(mutants, blocks_of_a_cluster_exchange_values, 0, 2);
    tcase_add_test(mutants, memory_is_filled_with_nan);
    tcase_add_loop_test(mutants, misuse_of_clusters_is_found, 0, MISUSES);
    return run_cases("kernels", ops, cells, rest, mutants);
}
