/* consumer.c: a user's program, built against an installed Remat. */
#include <remat.h>
#include <stdio.h>

int main(void) {
    remat_graph *g;
    if (remat_graph_create(&g)) return 1;
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){4, 3});
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){4, 2});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){2, 3}, remat_init_uniform(1));
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    remat_step_result r;
    remat_build_info build;
    remat_status status = remat_session_create(g, remat_mse(g, remat_linear(g, x, w, REMAT_NONE), y), &config, &s);
    const float points[4][3] = {{1, 2, 3}, {4, 5, 6}}, targets[4][2] = {{1, 0}, {0, 1}};
    if (!status) status = remat_write(s, REMAT_INPUT, 0, points, sizeof points);
    if (!status) status = remat_write(s, REMAT_INPUT, 1, targets, sizeof targets);
    if (!status) status = remat_gradients(s, &r);
    if (!status) status = remat_build(&build);
    if (status) return fprintf(stderr, "%s\n", remat_last_error()), 1;
    printf("Remat %s: loss %g\n", build.version, r.loss);
    remat_session_free(s);
    remat_graph_free(g);
    return 0;
}
