/* 12_residual_network.c: a residual network on images, with an external op in every block, in half the memory.
 *
 *     ./12_residual_network                             on generated images: horizontal, vertical or diagonal bars
 *     ./12_residual_network IMAGES.npy LABELS.npy       on yours: float32 (N,C,H,W) and int32 (N), as numpy.save writes
 *     them
 *
 * It introduces convolutions and images, a network that is cut into stages by depth (there is no time axis), and shows
 * that an external op is dropped and recomputed like any other. The op is the soft threshold of Zhao et al. 2020, "Deep
 * Residual Shrinkage Networks": it moves all values towards 0 by a limit, and sets those within the limit to 0.
 */
#include <string.h>

#include "common.h"
#include <remat_op.h>

enum { BATCH = 16, BLOCKS = 6, WIDTH = 8, STEPS = 40 };

/* ---- The op ------------------------------------------------------------------------------------------------------ */

typedef struct {
    double limit;
} threshold;

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    out->flops = 2 * (double)remat_desc_count(y);
    out->moved_bytes = (pass == REMAT_BACKWARD ? 3 : 2) * (double)remat_desc_bytes(y);
}

static void forward(const remat_call *call) {
    const float limit = (float)((const threshold *)call->attr)->limit, *x = call->x[0].data;
    float *y = call->y.data;
    for (int64_t i = 0; i < remat_desc_count(&call->y.desc); i++)
        y[i] = x[i] > limit ? x[i] - limit : x[i] < -limit ? x[i] + limit : 0;
}

static void backward(const remat_call *call) {
    const float limit = (float)((const threshold *)call->attr)->limit, *x = call->x[0].data, *dy = call->dy.data;
    float *dx = call->dx[0].data;
    for (int64_t i = 0; dx && i < remat_desc_count(&call->dy.desc); i++)
        dx[i] = x[i] > limit || x[i] < -limit ? dy[i] : 0;
}

static const remat_op shrink = {
    .struct_bytes = sizeof(remat_op),
    .name = "shrink",
    .n_in = 1,
    .attr_bytes = sizeof(threshold),
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1},
    .cheap = true,
    .infer = infer,
    .cost = cost,
    .on = {{.forward = forward, .backward = backward}},
};

/* ---- The network ------------------------------------------------------------------------------------------------- */

static remat_value parameter(remat_graph *g, int block, const char *what, int rank, const int64_t *dim,
                             remat_init init) {
    char name[48];
    snprintf(name, sizeof name, "blocks.%d.%s", block, what);
    return remat_param(g, name, rank, dim, init);
}

/* A 3 x 3 convolution and batch norm. */
static remat_value convolved(remat_graph *g, remat_value x, int block, char which, int64_t in, int64_t out,
                             int64_t stride) {
    char w[8], gain[8], bias[8], mean[48], variance[48];
    const int64_t one[] = {1, 1}, by[] = {stride, stride};
    snprintf(w, sizeof w, "%c.w", which), snprintf(gain, sizeof gain, "%c.g", which),
        snprintf(bias, sizeof bias, "%c.b", which);
    snprintf(mean, sizeof mean, "blocks.%d.%c.mean", block, which);
    snprintf(variance, sizeof variance, "blocks.%d.%c.variance", block, which);
    remat_value filters = parameter(g, block, w, 4, (int64_t[]){out, in, 3, 3}, remat_init_normal(0.15));
    return remat_batch_norm(g, remat_conv2d(g, x, filters, REMAT_NONE, by, one, NULL, 1),
                            parameter(g, block, gain, 1, &out, remat_init_constant(1)),
                            parameter(g, block, bias, 1, &out, remat_init_zero()),
                            remat_buffer(g, mean, 1, &out, remat_init_zero()),
                            remat_buffer(g, variance, 1, &out, remat_init_constant(1)), 0.1, 1e-5, false);
}

/* x + threshold(two convolutions of x). */
static remat_value residual(remat_graph *g, remat_value x, int block) {
    remat_value y = remat_relu(g, convolved(g, x, block, 'a', WIDTH, WIDTH, 1));
    y = convolved(g, y, block, 'b', WIDTH, WIDTH, 1);
    check(remat_apply(g, &shrink, &y, 1, &(threshold){0.1}, &y));
    return remat_relu(g, remat_add(g, y, x));
}

static remat_value network(remat_graph *g, const int64_t image[3], int64_t classes) {
    remat_value x =
        remat_input(g, "images", REMAT_F32, REMAT_STATIC, 4, (int64_t[]){BATCH, image[0], image[1], image[2]});
    remat_value label = remat_input(g, "labels", REMAT_I32, REMAT_STATIC, 1, (int64_t[]){BATCH});
    remat_value y = remat_relu(g, convolved(g, x, 0, 's', image[0], WIDTH, 2));
    for (int block = 0; block < BLOCKS; block++) y = residual(g, y, block);
    remat_value w = remat_param(g, "head.w", 2, (int64_t[]){classes, WIDTH}, remat_init_normal(0.3));
    remat_value b = remat_param(g, "head.b", 1, &classes, remat_init_zero());
    return remat_softmax_cross_entropy(g, remat_linear(g, remat_mean(g, y, 2), w, b), label);
}

/* ---- The images -------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t dim[4], rank; /* (N,C,H,W), or (N) */
    void *data;
} array;

static int64_t count(const array *a) {
    int64_t n = 1;
    for (int d = 0; d < a->rank; d++) n *= a->dim[d];
    return n;
}

static array give_up(const char *path, const char *why) {
    fprintf(stderr, "%s: %s\n", path, why);
    exit(1);
}

/* The format: ten bytes, the last two of which are the length of a text with type and shape; this text; the numbers. */
static array read_npy(const char *path, const char *type, int rank) {
    unsigned char head[10];
    char text[65536];
    array a = {.rank = rank};
    FILE *file = fopen(path, "rb");
    if (!file) return give_up(path, "cannot be opened");
    if (fread(head, 1, 10, file) != 10 || memcmp(head, "\x93NUMPY\1", 7)) return give_up(path, "is not a .npy file");
    size_t length = (size_t)head[8] + 256 * (size_t)head[9];
    if (fread(text, 1, length, file) != length) return give_up(path, "ends too early");
    text[length] = 0;
    const char *at = strstr(text, "'shape': (");
    if (!strstr(text, type) || strstr(text, "True") || !at)
        return give_up(path, "does not have the expected type in C order");
    at += strlen("'shape': (");
    for (int d = 0; d < rank; d++) {
        char *end;
        a.dim[d] = strtoll(at, &end, 10);
        if (end == at || a.dim[d] < 1 || a.dim[d] > 1 << 20) return give_up(path, "has unexpected dimensions");
        at = *end == ',' ? end + 1 : end;
    }
    if (*at != ')') return give_up(path, "has unexpected dimensions");
    a.data = malloc((size_t)count(&a) * 4);
    if (!a.data || fread(a.data, 4, (size_t)count(&a), file) != (size_t)count(&a))
        return give_up(path, "ends too early");
    fclose(file);
    return a;
}

/* Bars on a grey background. Class 0: horizontal; 1: vertical; 2: diagonal. */
static void draw(array *images, array *labels) {
    enum { N = 96, SIDE = 16 };
    *images = (array){.dim = {N, 1, SIDE, SIDE}, .rank = 4, .data = malloc(N * SIDE * SIDE * 4)};
    *labels = (array){.dim = {N}, .rank = 1, .data = malloc(N * 4)};
    if (!images->data || !labels->data) exit(1);
    uint32_t state = 1;
    for (int i = 0; i < N; i++) {
        float *pixel = (float *)images->data + i * SIDE * SIDE;
        int kind = i % 3, place = 2 + i * 5 % 12;
        ((int32_t *)labels->data)[i] = kind;
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                state = state * 1664525 + 1013904223;
                int across = kind == 0 ? y : kind == 1 ? x : (x + y) % SIDE;
                pixel[y * SIDE + x] = (across / 2 == place / 2 ? 1 : 0) + (float)(state >> 8) * 0x1p-24f;
            }
    }
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

/* Fills in the losses of all steps. Budget 0: no limit. */
static remat_plan_summary train(const array *images, const array *labels, int64_t classes, uint64_t budget,
                                double loss[STEPS]) {
    remat_graph *g;
    remat_session *s;
    remat_step_result result;
    check(remat_graph_create(&g));
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "adam";
    config.strategy = "optimal";
    config.memory_budget = budget;
    config.threads = 1;
    check(remat_session_create(g, network(g, images->dim + 1, classes), &config, &s));
    int64_t batches = images->dim[0] / BATCH, each = count(images) / images->dim[0];
    for (int step = 0; step < STEPS; step++) {
        int64_t first = step % batches * BATCH;
        check(remat_write(s, REMAT_INPUT, 0, (float *)images->data + first * each, (uint64_t)(BATCH * each) * 4));
        check(remat_write(s, REMAT_INPUT, 1, (int32_t *)labels->data + first, BATCH * 4));
        check(remat_step(s, 0.01, &result));
        loss[step] = result.loss;
    }
    remat_plan_summary plan;
    check(remat_session_plan(s, &plan));
    printf("%s: final loss %.2f, stages recomputed: %s, peak bytes as planned: %s\n",
           budget ? "half the memory " : "no recomputation", loss[STEPS - 1],
           result.recomputed_stages ? "some" : "none",
           result.arena_peak_bytes == plan.planned_peak_bytes ? "yes" : "NO");
    remat_session_free(s);
    remat_graph_free(g);
    return plan;
}

int main(int argc, char **argv) {
    array images, labels;
    double kept[STEPS], again[STEPS];
    if (argc == 3)
        images = read_npy(argv[1], "'<f4'", 4), labels = read_npy(argv[2], "'<i4'", 1);
    else
        draw(&images, &labels);
    if (images.dim[0] < BATCH || labels.dim[0] != images.dim[0])
        return fprintf(stderr, "there must be at least %d images, and as many labels\n", BATCH), 1;
    int64_t classes = 2;
    for (int64_t i = 0; i < labels.dim[0]; i++)
        if (((int32_t *)labels.data)[i] >= classes) classes = ((int32_t *)labels.data)[i] + 1;
    remat_plan_summary all = train(&images, &labels, classes, 0, kept);
    train(&images, &labels, classes, all.budgeted_bytes - all.activations_peak_bytes / 2, again);
    printf("losses, bit by bit: %s\n", memcmp(kept, again, sizeof kept) ? "DIFFERENT" : "the same");
    free(images.data), free(labels.data);
    return 0;
}

/* Expected output:
no recomputation: final loss 0.00, stages recomputed: none, peak bytes as planned: yes
half the memory : final loss 0.00, stages recomputed: some, peak bytes as planned: yes
losses, bit by bit: the same
*/
