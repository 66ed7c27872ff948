/* 01_fit_a_line.c: the smallest complete program: describe, plan, run.
 *
 * It introduces graphs, sessions, writing inputs, steps, and reading parameters. There is no time axis and
 * nothing to recompute yet: the program recovers y = 3 x0 - 2 x1 + 1 from 64 points.
 */
#include "common.h"

enum { POINTS = 64 };

static void make_points(float x[POINTS][2], float y[POINTS][1]) {
    for (int i = 0; i < POINTS; i++) {
        x[i][0] = (float)(i % 8) / 4 - 1;
        x[i][1] = (float)(i / 8) / 4 - 1;
        y[i][0] = 3 * x[i][0] - 2 * x[i][1] + 1;
    }
}

int main(void) {
    /* Describe. Builders return values. The graph remembers the first mistake and reports it when it is used. */
    remat_graph *g;
    check(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){POINTS, 2});
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){POINTS, 1});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){1, 2}, remat_init_uniform(1));
    remat_value b = remat_param(g, "b", 1, (int64_t[]){1}, remat_init_zero());
    remat_value loss = remat_mse(g, remat_linear(g, x, w, b), y);

    /* Plan. The session owns one block of memory; from here on its size is known. */
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "sgd";
    remat_session *s;
    check(remat_session_create(g, loss, &config, &s));

    /* Run. Inputs keep their values until they are written again. */
    float points[POINTS][2], heights[POINTS][1];
    make_points(points, heights);
    check(remat_write(s, REMAT_INPUT, 0, points, sizeof points));
    check(remat_write(s, REMAT_INPUT, 1, heights, sizeof heights));
    remat_step_result result;
    for (int step = 0; step < 100; step++) check(remat_step(s, 0.3, &result));

    float weight[2], bias;
    check(remat_read(s, REMAT_PARAM, remat_find(s, REMAT_PARAM, "w"), weight, sizeof weight));
    check(remat_read(s, REMAT_PARAM, remat_find(s, REMAT_PARAM, "b"), &bias, sizeof bias));
    printf("y = %.3f x0 %+.3f x1 %+.3f\n", weight[0], weight[1], bias);

    remat_session_free(s);
    remat_graph_free(g);
    return 0;
}

/* Expected output:
y = 3.000 x0 -2.000 x1 +1.000
*/
