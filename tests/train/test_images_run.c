/* test_images_run.c: the program on images: a resnet's bits under every plan and split, after a resume, and on ranks
 * with synchronised batch norm; a class for each pixel; weights with a new head; plans without data. */
#include "tests/sanitized.h"
#include "tests/train/train_test.h"

#include <jansson.h>
#include <math.h>

enum { N = 24, SIDE = 8, MOST_STEPS = 8 };

/* Noise, brighter or darker depending on the class. */
static void make_data(void) {
    static uint8_t images[128 + N * 3 * SIDE * SIDE] = "\x93NUMPY\1\0\x76\0";
    uint8_t labels[8 + N] = {0, 0, 8, 1, 0, 0, 0, N};
    uint32_t draw = 1;
    int n = snprintf((char *)images + 10, 118, "{'descr': '|u1', 'fortran_order': False, 'shape': (%d, 3, %d, %d), }",
                     N, SIDE, SIDE);
    memset(images + 10 + n, ' ', (size_t)(118 - n));
    for (int i = 0; i < N * 3 * SIDE * SIDE; i++) {
        draw = draw * 1664525u + 1013904223u;
        images[128 + i] = (uint8_t)((draw >> 25) + (i / (3 * SIDE * SIDE) % 3) * 60);
    }
    for (int i = 0; i < N; i++) labels[8 + i] = (uint8_t)(i % 3);
    make_file("x.npy", images, sizeof images);
    make_file("y", labels, sizeof labels);
}

/* The flags of all runs on these images. */
static const char *data(void) {
    static char text[600];
    snprintf(text, sizeof text,
             "--data=%s --labels=%s --eval-data=%s --eval-labels=%s --threads=1 --batch=4 --normalize=0.5:0.25",
             in_scratch("x.npy"), in_scratch("y"), in_scratch("x.npy"), in_scratch("y"));
    return text;
}

#define RESNET "--model=resnet18 --stem=cifar --optimizer=sgd --momentum=0.9 --lr=0.01 --augment=crop:1,flip "

typedef struct {
    double loss[MOST_STEPS + 1]; /* by step, from 1 */
    double evaluated;
    json_int_t planned, peak;
    uint8_t *weights; /* the final file of weights */
    size_t size;
} outcome;

static outcome read_metrics(const char *path) {
    outcome out = {.evaluated = NAN};
    char line[1 << 14];
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        json_t *event = json_loads(line, 0, NULL);
        const char *kind = json_string_value(json_object_get(event, "event"));
        json_int_t step = json_integer_value(json_object_get(event, "step"));
        double loss = json_number_value(json_object_get(event, "loss"));
        if (!strcmp(kind, "step") && step <= MOST_STEPS) out.loss[step] = loss;
        if (!strcmp(kind, "eval")) out.evaluated = loss;
        if (!strcmp(kind, "plan")) out.planned = json_integer_value(json_object_get(event, "planned_peak_bytes"));
        if (!strcmp(kind, "end")) out.peak = json_integer_value(json_object_get(event, "arena_peak_bytes"));
        json_decref(event);
    }
    fclose(file);
    return out;
}

static void read_weights(const char *path, outcome *out) {
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "there is no %s", path);
    fseek(file, 0, SEEK_END);
    out->size = (size_t)ftell(file);
    rewind(file);
    out->weights = malloc(out->size);
    ck_assert_uint_eq(fread(out->weights, 1, out->size, file), out->size);
    fclose(file);
}

/* Trains up to step `steps`; states and final weights are saved in `name`. */
static outcome train(const char *name, int steps, const char *flags) {
    char weights[80];
    const char *metrics = in_scratch("metrics.jsonl");
    unlink(metrics);
    ck_runs("train %s --steps=%d --save=%s --keep=0 --save-every=4 --metrics=%s", flags, steps, in_scratch(name),
            metrics);
    outcome out = read_metrics(metrics);
    snprintf(weights, sizeof weights, "%s/step-%08d/model.safetensors", name, steps);
    read_weights(in_scratch(weights), &out);
    return out;
}

/* Trains without saving. */
static outcome watch(int steps, const char *flags) {
    const char *metrics = in_scratch("metrics.jsonl");
    unlink(metrics);
    ck_runs("train %s --steps=%d --metrics=%s", flags, steps, metrics);
    return read_metrics(metrics);
}

static void same(const outcome *a, const outcome *b) {
    for (int i = 1; i <= MOST_STEPS; i++)
        ck_assert_msg(!b->loss[i] || a->loss[i] == b->loss[i], "step %d: %.9g, not %.9g", i, b->loss[i], a->loss[i]);
    ck_assert_msg(a->evaluated == b->evaluated, "evaluated: %.9g, not %.9g", b->evaluated, a->evaluated);
    ck_assert(a->size == b->size && (!a->size || !memcmp(a->weights, b->weights, a->size)));
}

static const char *flags(const char *more) {
    static char text[1024];
    snprintf(text, sizeof text, RESNET "%s %s", data(), more);
    return text;
}

START_TEST(image_models_have_the_same_bits_in_every_plan) {
    static const char *const plans[] = {"--checkpoint=sqrt", "--checkpoint-segments=7",
                                        "--checkpoint=lean --loader-threads=2"};
    make_data();
    outcome kept = watch(3, flags(""));
    ck_assert(kept.loss[1] > 0 && kept.loss[3] > 0 && kept.planned == kept.peak);
    for (int i = 0; i < 3; i++) {
        outcome other = watch(3, flags(plans[i]));
        same(&kept, &other);
        ck_assert_int_eq(other.planned, other.peak);
    }
}
END_TEST

/* A state restores parameters, momentum, running statistics, and the random transforms of images. */
START_TEST(resumed_image_run_has_the_same_bits) {
    if (rm_release_only(_i, 2)) return;
    char again[400];
    make_data();
    outcome whole = train("whole", 6, flags(_i ? "--devices=cpu:2" : ""));
    snprintf(again, sizeof again, "--resume=%s/step-00000004 %s --loader-threads=2", in_scratch("whole"),
             _i ? "--devices=cpu:2" : "");
    outcome part = train("part", 6, again);
    ck_assert(part.loss[4] == 0 && part.loss[5] > 0);
    same(&whole, &part);
    free(whole.weights);
    free(part.weights);
}
END_TEST

/* Two ranks that share statistics match one rank with all samples, up to rounding, whatever they recompute. */
START_TEST(sync_batchnorm_matches_one_rank) {
    char whole[1024];
    make_data();
    outcome kept = watch(3, flags("--devices=cpu:2 --sync-batchnorm"));
    outcome dropped = watch(3, flags("--devices=cpu:2 --sync-batchnorm --checkpoint=sqrt"));
    same(&kept, &dropped);
    snprintf(whole, sizeof whole, "%s --batch=8", flags(""));
    outcome one = watch(3, whole), apart = watch(3, flags("--devices=cpu:2"));
    for (int i = 1; i <= 3; i++) ck_assert_double_eq_tol(kept.loss[i], one.loss[i], 2e-4 * one.loss[i]);
    /* Rounding may flip a ReLU of a backward pass, and so change the next update. Without `sync` 5 % and more differ. */
    ck_assert_double_eq_tol(kept.evaluated, one.evaluated, 2e-3 * one.evaluated);
    ck_assert(fabs(apart.loss[1] - one.loss[1]) > 1e-3 * one.loss[1]); /* the statistics of its own 4 samples differ */
    ck_refuses(2, "running statistics|--model=resnet18|rank", "train %s --steps=1", flags("--deterministic-world=2"));
}
END_TEST

/* Classes: bright and dark pixels, and some ignored ones. */
static const char *pixels(const char *more) {
    static uint8_t labels[128 + N * SIDE * SIDE] = "\x93NUMPY\1\0\x76\0";
    static char text[1200];
    FILE *file = fopen(in_scratch("x.npy"), "rb");
    static uint8_t images[128 + N * 3 * SIDE * SIDE];
    ck_assert(file && fread(images, 1, sizeof images, file) == sizeof images && !fclose(file));
    int n = snprintf((char *)labels + 10, 118, "{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d, %d), }", N,
                     SIDE, SIDE);
    memset(labels + 10 + n, ' ', (size_t)(118 - n));
    for (int i = 0; i < N; i++)
        for (int k = 0; k < SIDE * SIDE; k++) {
            const uint8_t value = images[128 + i * 3 * SIDE * SIDE + k];
            labels[128 + i * SIDE * SIDE + k] = k % 11 == 3 ? 255 : value > 128;
        }
    make_file("p.npy", labels, sizeof labels);
    snprintf(
        text, sizeof text,
        "--model=unet --layers=2 --hidden=4 --lr=0.01 --threads=1 --batch=4 --ignore-index=255 --data=%s --labels=%s "
        "--eval-data=%s --eval-labels=%s %s",
        in_scratch("x.npy"), in_scratch("p.npy"), in_scratch("x.npy"), in_scratch("p.npy"), more);
    return text;
}

static long long held_by(int batch) {
    const char *words = "the program's own data and batches take ";
    ck_assert_int_eq(run_program("train --model=unet --layers=2 --hidden=4 --data=%s --labels=%s --ignore-index=255 "
                                 "--memory-budget=1 --batch=%d",
                                 in_scratch("x.npy"), in_scratch("p.npy"), batch),
                     2);
    ck_says_all(program_errors, words);
    return strtoll(strstr(program_errors, words) + strlen(words), NULL, 10);
}

START_TEST(unet_predicts_a_class_per_pixel) {
    static const char *const ways[] = {"--checkpoint=sqrt", "--checkpoint=lean", "--checkpoint-segments=5",
                                       "--memory-budget=530KiB", "--verify-recompute --checkpoint=sqrt"};
    char path[300];
    make_data();
    outcome kept = train("kept", 8, pixels(""));
    ck_assert(kept.loss[8] < kept.loss[1] && kept.peak == kept.planned);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%zu", i);
        outcome other = train(name, 8, pixels(ways[i]));
        same(&kept, &other);
        ck_assert_int_eq(other.peak, other.planned);
        free(other.weights);
    }
    ck_runs("predict --resume=%s --data=%s --out=%s", in_scratch("kept"), in_scratch("x.npy"), in_scratch("out.npy"));
    snprintf(path, sizeof path, "%s", in_scratch("out.npy"));
    FILE *file = fopen(path, "rb");
    static float predicted[32 + N * SIDE * SIDE];
    ck_assert(file && fread(predicted, 1, sizeof predicted, file) == sizeof predicted && fgetc(file) == EOF &&
              !fclose(file));
    ck_assert_ptr_nonnull(strstr((char *)predicted + 10, "(24, 8, 8)"));
    for (int i = 0; i < N * SIDE * SIDE; i++) ck_assert(predicted[32 + i] == 0 || predicted[32 + i] == 1);
    outcome two = watch(4, pixels("--batch=2 --devices=cpu:2 --sync-batchnorm")), one = watch(4, pixels(""));
    for (int i = 1; i <= 4; i++) ck_assert(fabs(two.loss[i] - one.loss[i]) < 1e-4);
    /* one more sample: three channels, a label and two logits for each pixel, and its number */
    ck_assert_int_eq(held_by(5) - held_by(4), 4 * (3 + 1 + 2) * SIDE * SIDE + 4);
    ck_refuses(2, "(N,H,W) = (24,8,8)", "train %s --labels=%s", pixels(""), in_scratch("y"));
    ck_refuses(2, "multiple|16", "train %s --layers=4", pixels(""));
    ck_refuses(2, "even", "train %s --hidden=5", pixels(""));
    ck_refuses(2, "(N,H,W)", "train --model=unet --data=%s", in_scratch("x.npy"));
    free(kept.weights);
}
END_TEST

static json_int_t planned(const char *line, const char *name) {
    ck_runs("plan %s --json", line);
    json_t *plan = json_loads(program_output, 0, NULL);
    json_int_t bytes = json_integer_value(json_object_get(plan, name));
    json_decref(plan);
    return bytes;
}

/* The number of the optimizer's arrays in a training state, which must all belong to the last layer. */
static int count_of_the_head(const char *state) {
    char path[300], header[4096];
    uint64_t length;
    snprintf(path, sizeof path, "%s/step-00000002/optimizer.safetensors", in_scratch(state));
    FILE *file = fopen(path, "rb");
    ck_assert(file && fread(&length, sizeof length, 1, file) == 1 && length <= sizeof header);
    ck_assert_uint_eq(fread(header, 1, length, file), length);
    fclose(file);
    json_t *arrays = json_loadb(header, length, 0, NULL), *array;
    const char *name;
    int count = 0;
    json_object_foreach(arrays, name, array) count += !strncmp(name, "fc.", 3);
    json_decref(arrays);
    return count;
}

/* A new last layer, trained alone: all other parameters keep the file's values, and the optimizer has no arrays for
 * them. */
START_TEST(init_head_trains_a_new_head) {
    char line[1024], init[300];
    make_data();
    outcome before = train("before", 2, flags("--classes=5"));
    snprintf(init, sizeof init, "--init=%s/step-00000002/model.safetensors", in_scratch("before"));
    snprintf(line, sizeof line, "%s %s --classes=3 --init-head=new --train-only=fc.", flags(""), init);
    outcome after = train("after", 2, line);
    ck_says_all(program_output, "fc.*");
    json_t *theirs = json_loadb((char *)before.weights + 8, *(uint64_t *)before.weights, 0, NULL), *array;
    json_t *ours = json_loadb((char *)after.weights + 8, *(uint64_t *)after.weights, 0, NULL);
    const char *name;
    int compared = 0, changed = 0;
    json_object_foreach(ours, name, array) {
        json_t *at = json_object_get(array, "data_offsets"),
               *other = json_object_get(json_object_get(theirs, name), "data_offsets");
        size_t begin = (size_t)json_integer_value(json_array_get(at, 0)),
               end = (size_t)json_integer_value(json_array_get(at, 1));
        if (!at || !strncmp(name, "fc.", 3)) continue;
        bool alike =
            !memcmp(after.weights + 8 + *(uint64_t *)after.weights + begin,
                    before.weights + 8 + *(uint64_t *)before.weights + json_integer_value(json_array_get(other, 0)),
                    end - begin);
        bool statistic = strstr(name, "running_");
        ck_assert_msg(alike != statistic, "%s: %s", name, alike ? "has not moved" : "has moved");
        compared++, changed += statistic;
    }
    ck_assert(compared == 60 + 40 && changed == 40);
    json_decref(ours);
    json_decref(theirs);
    free(before.weights), free(after.weights);
    ck_assert_int_eq(count_of_the_head("after"), 2); /* weight and bias */
    ck_refuses(2, "--train-only", "train --resume=%s/step-00000002 --steps=3 --train-only=fc.bias",
               in_scratch("after"));
    ck_refuses(2, "--train-only", "train --resume=%s/step-00000002 --steps=3 --train-only=fc.,conv1.",
               in_scratch("after"));
    const char *plan = "--model=resnet18 --stem=cifar --optimizer=adam --image-size=8 --classes=3 --device=null ";
    snprintf(line, sizeof line, "%s --train-only=fc.", plan);
    ck_assert_int_eq(planned(line, "gradients_bytes"), 4 * (3 * 512 + 16)); /* aligned to 64 bytes */
    ck_assert_int_eq(planned(line, "optimizer_bytes"), 2 * 4 * (3 * 512 + 16));
    ck_assert_int_lt(2 * planned(line, "activations_peak_bytes"), planned(plan, "activations_peak_bytes"));
    snprintf(line, sizeof line, "%s %s --classes=3", flags(""), init);
    ck_refuses(2, "--init-head=new", "train %s --steps=1", line);
    ck_refuses(2, "--init-head|--init", "train %s --steps=1 --init-head=new", flags(""));
}
END_TEST

/* torchvision's resnet50 has 25,557,032 parameters; buckets are padded. A plan from flags equals one from data. */
START_TEST(plans_need_no_data) {
    char line[1024];
    make_data();
    json_int_t bytes = planned("--model=resnet50 --image-size=224 --channels=3 --classes=1000 --batch=32 --device=null",
                               "params_bytes");
    ck_assert(bytes >= 4 * 25557032 && bytes < 4 * 25557032 + 4096);
    bytes = planned("--model=unet --layers=4 --hidden=64 --image-size=32 --classes=2 --batch=1 --device=null",
                    "params_bytes");
    ck_assert(bytes >= 4 * 17263042 &&
              bytes < 4 * 17263042 + 4096); /* the number of milesial's UNet(3, 2, bilinear=True) */
    snprintf(line, sizeof line, "%s --device=null", flags("--image-size=8"));
    const char *without = "--model=resnet18 --stem=cifar --optimizer=sgd --momentum=0.9 --threads=1 --batch=4 "
                          "--image-size=8 --classes=3 --device=null";
    ck_assert_int_eq(planned(line, "planned_peak_bytes"), planned(without, "planned_peak_bytes"));
    ck_runs("plan %s --checkpoint-segments=3", without);
    ck_says_all(program_output, " layers ");
    ck_says_all(program_output, " conv1 .. ");
    ck_says_all(program_output, " .. fc ");
    ck_assert_int_eq(planned(without, "batch"), 4);
    ck_runs("plan %s --pareto", without);
    ck_says_all(program_output, "Memory against time: batch 4, ");
    ck_runs("plan %s --json", without);
    ck_says_all(program_output, "\"layer\": \"layer3.0.downsample.0\"");
    ck_refuses(2, "--image-size=S|--classes=N", "plan --model=cnn");
    ck_refuses(2, "--model=cnn|3 x 3|6 x 6", "plan --model=cnn --image-size=3 --classes=2");
}
END_TEST

START_TEST(evaluations_report_accuracy_and_confusion) {
    make_data();
    outcome run = train("cnn", 4, flags("--model=cnn --stem=imagenet --loader-threads=2 --classes=6"));
    free(run.weights);
    ck_runs("eval --resume=%s --data=%s --labels=%s --json", in_scratch("cnn"), in_scratch("x.npy"), in_scratch("y"));
    json_t *event = json_loads(program_output, 0, NULL), *rows = json_object_get(event, "confusion");
    double right = 0, all = 0;
    ck_assert(json_array_size(rows) == 6 && json_number_value(json_object_get(event, "loss")) == run.evaluated);
    for (size_t i = 0; i < 6; i++)
        for (size_t k = 0; k < 6; k++) {
            double n = json_number_value(json_array_get(json_array_get(rows, i), k));
            all += n;
            right += i == k ? n : 0;
            ck_assert(i < 3 || n == 0);
        }
    ck_assert(all == N && fabs(right / N - json_number_value(json_object_get(event, "accuracy"))) < 1e-9);
    ck_assert(json_number_value(json_object_get(event, "top5_accuracy")) >= right / N);
    json_decref(event);
    ck_refuses(2, "--normalize=0:1", "eval --resume=%s --data=%s --labels=%s --normalize=0:1", in_scratch("cnn"),
               in_scratch("x.npy"), in_scratch("y"));
}
END_TEST

/* As PyTorch's "Expected more than 1 value per channel when training". An evaluation uses the running statistics. */
START_TEST(batch_norm_of_one_value_is_refused) {
    make_data();
    outcome run = train("resnet", 1, flags("--stem=imagenet"));
    free(run.weights);
    ck_refuses(2, "layer2.0.bn1|one value per channel|f32 (1,128,1,1)", "train %s", flags("--stem=imagenet --batch=1"));
    ck_refuses(2, "layer2.0.bn1", "plan %s", flags("--stem=imagenet --batch=1"));
    ck_runs("eval --resume=%s --data=%s --labels=%s --batch=1", in_scratch("resnet"), in_scratch("x.npy"),
            in_scratch("y"));
    ck_refuses(2, "down3.maxpool_conv.1.double_conv.1|one value per channel",
               "plan --model=unet --layers=3 --hidden=4 --image-size=8 --classes=2 --batch=1");
    ck_runs("plan --model=unet --layers=3 --hidden=4 --image-size=8 --classes=2 --batch=2");
}
END_TEST

START_TEST(invalid_image_flags_are_refused) {
    make_data();
    ck_refuses(2, "--augment|--model=lstm", "train --data=%s --augment=flip", in_scratch("x.npy"));
    ck_refuses(2, "--model=cnn|--task=lm", "train --model=cnn --task=lm --data=%s", in_scratch("x.npy"));
    ck_refuses(2, "--stem|--model=cnn", "train --model=cnn --stem=cifar --data=%s", in_scratch("x.npy"));
    ck_refuses(2, "'turn'", "train %s", flags("--augment=turn"));
    char line[1024];
    snprintf(line, sizeof line, "%s --image-size=9", flags("--steps=1"));
    ck_runs("train %s", line);
    ck_says_all(program_output, "24 samples of 3 x 9 x 9, 3 classes");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("images_run");
    tcase_add_test(tests, image_models_have_the_same_bits_in_every_plan);
    tcase_add_loop_test(tests, resumed_image_run_has_the_same_bits, 0, 2);
    tcase_add_test(tests, sync_batchnorm_matches_one_rank);
    tcase_add_test(tests, unet_predicts_a_class_per_pixel);
    tcase_add_test(tests, init_head_trains_a_new_head);
    tcase_add_test(tests, plans_need_no_data);
    tcase_add_test(tests, evaluations_report_accuracy_and_confusion);
    tcase_add_test(tests, batch_norm_of_one_value_is_refused);
    tcase_add_test(tests, invalid_image_flags_are_refused);
    return run_suite("images_run", tests);
}
