/* test_model_image.c: the image models match PyTorch's and torchvision's, the unet milesial's: names, shapes, loss,
 * gradients, two training steps, running statistics, evaluation (tests/golden/make_images.py explains the two
 * numbers that stand for each array).
 *
 * Tolerance, relative to an array's norm: PyTorch's own float run stays within 4e-5 of its double run, as
 * make_images.py prints it; Remat's run, with another order of sums, within 2e-4. If another processor's rounding
 * changes the sign at one relu of a hundred thousand, gradients move by a few thousandths, so the limit for the
 * resnets is 5e-3. Real errors are larger. */
#include "train/models/model.h"

#include "tests/golden/golden.h"
#include "tests/train/train_test.h"

#include <math.h>
#include <zlib.h>

#define RATE 0.01

static const struct {
    const char *file;
    rm_model_spec spec;
    int64_t batch, channels, side, classes;
    const char *input;
    double limit;
} cases[] = {
    {"mlp", {.name = "mlp", .layers = 2, .hidden = 9}, 4, 2, 5, 3, "input0", 1e-5},
    {"cnn", {.name = "cnn"}, 4, 1, 14, 5, "input0", 1e-5},
    {"resnet18", {.name = "resnet18"}, 3, 3, 64, 10, "input1", 5e-3},
    {"resnet18_small", {.name = "resnet18", .small_stem = true}, 4, 3, 16, 10, "input0", 5e-3},
    {"resnet34", {.name = "resnet34", .small_stem = true}, 4, 3, 16, 7, "input3", 5e-3},
    {"resnet50", {.name = "resnet50", .small_stem = true}, 4, 3, 16, 7, "input1", 5e-3},
    {"unet", {.name = "unet", .layers = 2, .hidden = 6}, 2, 3, 16, 3, "input0", 1e-4},
    {"unet_transposed", {.name = "unet", .layers = 2, .hidden = 6, .transposed = true}, 2, 3, 16, 3, "input0", 1e-4}};
enum { CASES = sizeof cases / sizeof *cases };

static double noise(uint32_t key, uint32_t i) {
    uint32_t x = i * 0x9E3779B1u ^ key;
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return (double)(x ^ x >> 16) * 0x1p-31 - 1;
}

static uint32_t key_of(const char *prefix, const char *name) {
    uLong key = crc32_z(0, (const uint8_t *)prefix, strlen(prefix));
    return (uint32_t)crc32_z(key, (const uint8_t *)name, strlen(name));
}

static bool ends(const char *name, const char *with) {
    return strlen(name) >= strlen(with) && !strcmp(name + strlen(name) - strlen(with), with);
}

static float *array_memory(const remat_array *info) {
    float *data = malloc(info->bytes);
    ck_assert_ptr_nonnull(data);
    return data;
}

static void start_parameters(remat_session *s) {
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) {
        remat_array info;
        ck_ok(remat_array_info(s, REMAT_PARAM, i, &info));
        float *data = array_memory(&info);
        uint32_t key = key_of("", info.name);
        double gain = ends(info.name, "bn3.weight") ? 0.2 : ends(info.name, "weight");
        double scale = sqrt(6.0 * (double)info.dim[0] / (double)info.count);
        for (int64_t k = 0; k < info.count; k++)
            data[k] = (float)(info.rank == 1 ? 0.1 * noise(key, (uint32_t)k) + gain : scale * noise(key, (uint32_t)k));
        ck_ok(remat_write(s, REMAT_PARAM, i, data, info.bytes));
        free(data);
    }
}

static void write_batch(remat_session *s, const char *name, int64_t batch, int64_t classes) {
    remat_array info, answers;
    int32_t target[1024];
    ck_ok(remat_array_info(s, REMAT_INPUT, 0, &info));
    float *data = array_memory(&info);
    for (int64_t k = 0; k < info.count; k++) data[k] = (float)(0.5 + 0.5 * noise(key_of("", name), (uint32_t)k));
    ck_ok(remat_array_info(s, REMAT_INPUT, 1, &answers));
    for (int64_t i = 0; i < answers.count; i++)
        target[i] = (int32_t)((answers.count == batch ? i * 3 : i * 7 / 3) % classes);
    ck_ok(remat_write(s, REMAT_INPUT, 0, data, info.bytes));
    ck_ok(remat_write(s, REMAT_INPUT, 1, target, answers.bytes));
    free(data);
}

/* Compares all arrays of a kind, and their shapes, with the file's under this folder. Returns their number. */
static int64_t compare(const golden *file, double limit, const char *folder, remat_session *s, remat_kind kind) {
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        double square = 0, product = 0;
        ck_ok(remat_array_info(s, kind, i, &info));
        const golden_array *expected = golden_find(file, folder, info.name);
        const double *want = expected->data;
        ck_assert_int_eq(expected->count, 2 + info.rank);
        for (int d = 0; d < info.rank; d++) ck_assert_int_eq((int64_t)want[2 + d], info.dim[d]);
        float *data = array_memory(&info);
        ck_ok(remat_read(s, kind, i, data, info.bytes));
        for (int64_t k = 0; k < info.count; k++) {
            square += (double)data[k] * (double)data[k];
            product += (double)data[k] * noise(key_of("*", info.name), (uint32_t)k);
        }
        free(data);
        bool close = fabs(sqrt(square) - want[0]) <= limit * want[0] && fabs(product - want[1]) <= limit * want[0];
        ck_assert_msg(close, "%s %s: norm %.9g, product %.9g; PyTorch says %.9g, %.9g", folder, info.name, sqrt(square),
                      product, want[0], want[1]);
    }
    return remat_count(s, kind);
}

static int64_t count_of(const golden *file, const char *folder) {
    int64_t n = 0;
    for (int i = 0; i < file->count; i++) n += !strncmp(file->array[i].name, folder, strlen(folder));
    return n;
}

static void check_loss(const golden *file, double limit, int which, double loss) {
    double want = ((double *)golden_find(file, "loss", NULL)->data)[which];
    ck_assert_msg(fabs(loss - want) <= limit * fabs(want), "loss %d is %.9g; PyTorch says %.9g", which, loss, want);
}

START_TEST(image_models_match_pytorch) {
    golden *file = golden_open(cases[_i].file);
    rm_model_spec spec = cases[_i].spec;
    const int64_t C = cases[_i].channels, side = cases[_i].side, B = cases[_i].batch;
    rm_model model;
    remat_session *s;
    remat_step_result r;
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "sgd";
    config.strategy = _i % 2 ? "sqrt" : "none";
    spec.data = rm_image_shape(C, side, side, cases[_i].classes, !strcmp(spec.name, "unet"));
    ck_ok(rm_model_build(&spec, B, true, &model));
    ck_ok(remat_session_create(model.graph, model.loss, &config, &s));
    start_parameters(s);
    write_batch(s, cases[_i].input, B, cases[_i].classes);
    ck_ok(remat_gradients(s, &r));
    check_loss(file, cases[_i].limit, 0, r.loss);
    ck_assert_int_eq(compare(file, cases[_i].limit, "gradient", s, REMAT_GRADIENT), count_of(file, "gradient/"));
    ck_ok(remat_update(s, RATE, &r));
    ck_ok(remat_step(s, RATE, &r));
    check_loss(file, cases[_i].limit, 1, r.loss);
    int64_t n = compare(file, cases[_i].limit, "after", s, REMAT_PARAM) +
                compare(file, cases[_i].limit, "after", s, REMAT_BUFFER);
    ck_assert_int_eq(n, count_of(file, "after/"));
    ck_ok(remat_evaluate(s, &r));
    check_loss(file, cases[_i].limit, 2, r.loss);
    remat_session_free(s);
    rm_model_free(&model);
    golden_close(file);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("model_image");
    tcase_add_loop_test(tests, image_models_match_pytorch, 0, CASES);
    return run_suite("model_image", tests);
}
