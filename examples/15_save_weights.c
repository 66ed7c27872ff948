/* 15_save_weights.c: weights in a safetensors file, which PyTorch opens with safetensors.torch.load_file.
 *
 * It introduces remat_save and remat_load. One session trains and saves; another, for inference, loads.
 */
#include "common.h"

enum { ROWS = 8 };

/* PyTorch's nn.Linear(1, 1) as "fc": its state_dict has the same names and shapes. */
static remat_session *make(remat_graph **g, bool inference) {
    check(remat_graph_create(g));
    remat_value x = remat_input(*g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, 1});
    remat_value y = remat_input(*g, "y", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, 1});
    remat_value w = remat_param(*g, "fc.weight", 2, (int64_t[]){1, 1}, remat_init_zero());
    remat_value b = remat_param(*g, "fc.bias", 1, (int64_t[]){1}, remat_init_zero());
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = inference ? NULL : "sgd";
    config.inference = inference;
    remat_session *s;
    check(remat_session_create(*g, remat_mse(*g, remat_linear(*g, x, w, b), y), &config, &s));
    float points[ROWS], line[ROWS];
    for (int i = 0; i < ROWS; i++) points[i] = (float)i / ROWS, line[i] = 3 * points[i] - 1;
    check(remat_write(s, REMAT_INPUT, 0, points, sizeof points));
    check(remat_write(s, REMAT_INPUT, 1, line, sizeof line));
    return s;
}

int main(void) {
    remat_graph *graph, *other_graph;
    remat_step_result result;
    remat_session *teacher = make(&graph, false), *other = make(&other_graph, true);
    for (int step = 0; step < 300; step++) check(remat_step(teacher, 0.5, NULL));
    check(remat_save(teacher, "line.safetensors", REMAT_WEIGHTS));

    check(remat_evaluate(other, &result));
    printf("before: loss %.4f\n", result.loss);
    check(remat_load(other, "line.safetensors", REMAT_WEIGHTS));
    check(remat_evaluate(other, &result));
    printf("loaded: loss %.4f\n", result.loss);
    remove("line.safetensors");

    remat_session_free(teacher);
    remat_session_free(other);
    remat_graph_free(graph);
    remat_graph_free(other_graph);
    return 0;
}

/* Expected output:
before: loss 0.8359
loaded: loss 0.0000
*/
