/* 10_your_own_cell.c: a recurrent layer that the library lacks, built from its equations.
 *
 * It introduces remat_scan: a small graph, the body, describes one timestep of a minimal gated unit (Zhou et al.
 * 2016),
 *
 *     f = sigmoid(x W_f^T + b_f + h U_f^T)
 *     n = tanh(x W_n^T + (f h) U_n^T)          h' = h + f (n - h)
 *
 * and the engine runs it along time, forward and backward. It gets the same guarantees as the built-in cells:
 * bit-identical results when stages are recomputed or kept lean, in less memory, which is known in advance.
 */
#include "common.h"

enum { T = 64, BATCH = 2, HIDDEN = 16, STEPS = 60 };
enum { W_F, B_F, U_F, W_N, U_N, WEIGHTS };
static const char *const weight_name[] = {"w_f", "b_f", "u_f", "w_n", "u_n"};
static const int weight_rank[] = {2, 1, 2, 2, 2};
static const int64_t weight_dim[][2] = {{HIDDEN, 1}, {HIDDEN, 1}, {HIDDEN, HIDDEN}, {HIDDEN, 1}, {HIDDEN, HIDDEN}};

/* The leaves of the body are inputs without a time axis. Parameters belong to the outer graph and enter the body as
 * weights. */
static remat_value gated_unit(remat_graph *g, remat_value sequence) {
    remat_graph *b;
    remat_value in[WEIGHTS], weights[WEIGHTS];
    check(remat_graph_create(&b));
    remat_value x = remat_input(b, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){BATCH, 1});
    remat_value h = remat_input(b, "h", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){BATCH, HIDDEN});
    for (int i = 0; i < WEIGHTS; i++) {
        in[i] = remat_input(b, weight_name[i], REMAT_F32, REMAT_STATIC, weight_rank[i], weight_dim[i]);
        weights[i] = remat_param(g, weight_name[i], weight_rank[i], weight_dim[i], remat_init_uniform(0.25));
    }
    remat_value of_x = remat_linear(b, x, in[W_F], in[B_F]), of_h = remat_linear(b, h, in[U_F], REMAT_NONE);
    remat_value f = remat_sigmoid(b, remat_add(b, of_x, of_h));
    remat_value fh = remat_linear(b, remat_mul(b, f, h), in[U_N], REMAT_NONE);
    remat_value n = remat_tanh(b, remat_add(b, remat_linear(b, x, in[W_N], REMAT_NONE), fh));
    remat_value next = remat_add(b, h, remat_mul(b, f, remat_add(b, n, remat_scale(b, h, -1))));
    remat_cell cell = {.struct_bytes = sizeof cell,
                       .name = "gated_unit",
                       .body = b,
                       .inputs = &x,
                       .n_inputs = 1,
                       .weights = in,
                       .n_weights = WEIGHTS,
                       .states = &h,
                       .next_states = &next,
                       .n_states = 1,
                       .output = next};
    remat_value y = remat_scan(g, &cell, &sequence, weights);
    remat_graph_free(b); /* remat_scan copied it */
    return y;
}

static remat_value network(remat_graph *g) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, BATCH, 1});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, BATCH, 1});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){1, HIDDEN}, remat_init_uniform(0.25));
    return remat_mse(g, remat_linear(g, gated_unit(g, x), w, REMAT_NONE), target);
}

/* The target is the wave four timesteps ago. */
static void feed(remat_session *s) {
    float x[T][BATCH], target[T][BATCH];
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < T; t++) {
            x[t][b] = t / (4 + 3 * b) % 2 ? -1 : 1;
            target[t][b] = t < 4 ? 0 : x[t - 4][b];
        }
    check(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    check(remat_write(s, REMAT_INPUT, 1, target, sizeof target));
}

/* Returns the loss of the last step; *first gets that of the first step, *activations the bytes of activations. */
static double train(const char *strategy, double *first, uint64_t *activations) {
    remat_graph *graph;
    remat_session *s;
    remat_step_result result = {0};
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = strategy;
    config.segments = 4;
    config.tile = 8;
    config.optimizer = "adam";
    check(remat_graph_create(&graph));
    check(remat_session_create(graph, network(graph), &config, &s));
    feed(s);
    for (int step = 0; step < STEPS; step++) {
        check(remat_step(s, 0.02, &result));
        if (step == 0) *first = result.loss;
    }
    remat_plan_summary plan;
    check(remat_session_plan(s, &plan));
    *activations = plan.activations_peak_bytes;
    remat_session_free(s);
    remat_graph_free(graph);
    return result.loss;
}

int main(void) {
    double first;
    uint64_t everything, segments, lean;
    double loss = train("none", &first, &everything);
    printf("%s\n", loss < first / 2 ? "it learns" : "it does not learn");
    bool same = train("segments", &first, &segments) == loss && train("lean", &first, &lean) == loss;
    printf("everything kept, in 4 segments, and lean: %s\n",
           same ? "the same loss, to the last bit" : "different losses");
    printf("%s\n", segments < everything && lean < everything ? "each time in fewer bytes" : "in no fewer bytes");
    return 0;
}

/* Expected output:
it learns
everything kept, in 4 segments, and lean: the same loss, to the last bit
each time in fewer bytes
*/
