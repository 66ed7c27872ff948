/* test_tags.c: a target at each timestep, a class or numbers. Losses and gradients match PyTorch's for a
 * bidirectional LSTM; `remat eval` scores what `remat predict` writes; unsuitable labels are refused; timesteps
 * after the end of a row (--lengths) change no bit.
 *
 * Tolerance, in units of 2^-24 times an array's largest magnitude: PyTorch's own float run stays within 8 of its run
 * in double (make_tags.py prints it); the limit is 24. */
#include "train/tasks/task.h"
#include "train/data/loader.h"
#include "train/models/model.h"

#include "tests/golden/golden.h"
#include "tests/train/train_test.h"

#include <math.h>

/* ---- Comparison with PyTorch ------------------------------------------------------------------------------------ */

#define LIMIT 24
enum { ROWS = 4, STEPS = 6, K = 4, ARRAYS = 2 * 2 * 4 + 2, PLANS = 4, MOST = 512 };

/* A loss of the golden file, and its flags. */
typedef struct {
    const char *name;
    bool lengths;
    bool weighted;       /* class weights, and one ignored class */
    const char *answers; /* the file's array of numbers; NULL: "labels" */
} question;
static const question questions[] = {{.name = "whole"},
                                     {.name = "classes", .lengths = true},
                                     {.name = "weighted", .lengths = true, .weighted = true},
                                     {.name = "mse", .lengths = true, .answers = "values"},
                                     {.name = "mae", .lengths = true, .answers = "values"},
                                     {.name = "huber", .lengths = true, .answers = "values"},
                                     {.name = "bce", .lengths = true, .answers = "shares"}};
enum { QUESTIONS = sizeof questions / sizeof *questions };

typedef struct {
    golden *file;
    rm_dataset *dataset;
    rm_batch batch;
    rm_model model;
    remat_session *session;
} fixture;

/* An array of the golden file as .npy. spoilt: everything after the ends of rows is `filler`. */
static const char *file_of(const fixture *f, const char *name, const char *shape, bool spoilt, const void *filler) {
    const golden_array *a = golden_find(f->file, name, NULL);
    const int32_t *lengths = golden_find(f->file, "lengths", NULL)->data;
    int64_t row = a->count / ROWS;
    char path[64];
    snprintf(path, sizeof path, "%s.npy", name);
    for (int64_t i = 0; i < a->count && spoilt; i++)
        if (i % row / (row / STEPS) >= lengths[i / row]) memcpy((float *)a->data + i, filler, sizeof(float));
    return make_npy(path, strcmp(a->dtype, "i32") ? "<f4" : "<i4", shape, a->data, 4 * (size_t)a->count);
}

static void open_data(fixture *f, const question *q, bool spoilt) {
    const float nan = NAN;
    const int32_t none = 255;
    const char *labels =
        q->answers ? file_of(f, q->answers, "(4, 6, 4)", spoilt, &nan) : file_of(f, "labels", "(4, 6)", spoilt, &none);
    rm_data_source source = {.data = file_of(f, "input", "(4, 6, 3)", spoilt, &nan),
                             .labels = labels,
                             .lengths = q->lengths ? file_of(f, "lengths", "(4,)", false, NULL) : NULL,
                             .yes_or_no = !strcmp(q->name, "bce"),
                             .ignores = q->weighted,
                             .ignored = 2};
    ck_ok(rm_task_open(q->answers ? "regress" : "classify", &source, &f->dataset));
    ck_assert(f->dataset->shape.every_step && rm_data_outputs(&f->dataset->shape) == K && f->dataset->count == ROWS);
    ck_ok(rm_batch_create(f->dataset, ROWS, &f->batch));
    for (int i = 0; i < ROWS; i++) ck_ok(rm_batch_put(&f->batch, i, i));
}

static void open_session(fixture *f, const question *q, int plan) {
    rm_model_spec spec = {.name = "lstm", .layers = 2, .hidden = 5, .embed = 5, .bidirectional = true};
    spec.data = f->dataset->shape;
    spec.ignores = spec.data.weighted = q->weighted;
    spec.loss = q->answers ? q->name : NULL;
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = plan == 2 ? 2 : 1;
    config.strategy = plan == 1 ? "segments" : plan == 2 ? "lean" : plan == 3 ? "sqrt" : "none";
    config.segments = plan == 1 ? 3 : 0;
    config.tile = 2;
    ck_ok(rm_model_build(&spec, ROWS, true, &f->model));
    ck_ok(remat_session_create(f->model.graph, f->model.loss, &config, &f->session));
    for (int64_t i = 0; i < remat_count(f->session, REMAT_PARAM); i++) {
        remat_array info;
        ck_ok(remat_array_info(f->session, REMAT_PARAM, i, &info));
        const golden_array *from = golden_find(f->file, "parameter", info.name);
        ck_assert_uint_eq(info.bytes, 4 * (uint64_t)from->count);
        ck_ok(remat_write(f->session, REMAT_PARAM, i, from->data, info.bytes));
    }
}

static void start(fixture *f, const question *q, int plan, bool spoilt) {
    static const float weights[K] = {0.5f, 2, 1, 1.5f};
    *f = (fixture){.file = golden_open("tags")};
    open_data(f, q, spoilt);
    open_session(f, q, plan);
    ck_ok(rm_batch_write(&f->batch, rm_batch_whole(&f->batch), f->session));
    int64_t at = remat_find(f->session, REMAT_INPUT, "class_weights");
    if (q->weighted) ck_ok(remat_write(f->session, REMAT_INPUT, at, weights, sizeof weights));
}

static void done(fixture *f) {
    remat_session_free(f->session);
    rm_model_free(&f->model);
    rm_batch_free(&f->batch);
    rm_dataset_close(f->dataset);
    golden_close(f->file);
}

/* The loss, followed by each gradient. */
static void run(const fixture *f, float out[1 + ARRAYS][MOST]) {
    remat_step_result r;
    ck_ok(remat_gradients(f->session, &r));
    out[0][0] = (float)r.loss;
    ck_assert_int_eq(remat_count(f->session, REMAT_GRADIENT), ARRAYS);
    for (int64_t i = 0; i < ARRAYS; i++) {
        remat_array info;
        ck_ok(remat_array_info(f->session, REMAT_GRADIENT, i, &info));
        ck_assert_uint_le(info.bytes, MOST * sizeof(float));
        ck_ok(remat_read(f->session, REMAT_GRADIENT, i, out[1 + i], info.bytes));
    }
}

START_TEST(losses_and_gradients_match_pytorch) {
    static float plain[1 + ARRAYS][MOST], planned[1 + ARRAYS][MOST];
    const question *q = &questions[_i];
    for (int plan = 0; plan < PLANS; plan++) {
        fixture f;
        start(&f, q, plan, false);
        run(&f, plan ? planned : plain);
        if (!plan) golden_compare(golden_find(f.file, q->name, "loss"), plain[0], LIMIT);
        for (int64_t i = 0; i < ARRAYS && !plan; i++) {
            remat_array info;
            ck_ok(remat_array_info(f.session, REMAT_GRADIENT, i, &info));
            golden_compare(golden_find(f.file, q->name, info.name), plain[1 + i], LIMIT);
        }
        ck_assert_msg(!plan || !memcmp(plain, planned, sizeof plain), "plan %d has other bits", plan);
        done(&f);
    }
}
END_TEST

START_TEST(padding_of_tags_changes_no_bit) {
    static float clean[1 + ARRAYS][MOST], other[1 + ARRAYS][MOST];
    for (int spoilt = 0; spoilt < 2; spoilt++) {
        fixture f;
        start(&f, &questions[1 + _i / PLANS], _i % PLANS, spoilt);
        run(&f, spoilt ? other : clean);
        done(&f);
    }
    ck_assert(isfinite(clean[0][0]) && !memcmp(clean, other, sizeof clean));
}
END_TEST

/* ---- The program ------------------------------------------------------------------------------------------------ */

enum { N = 7, T = 6, F = 3, CLASSES = 3 };
#define SMALL "--task=classify --hidden=5 --layers=1 --threads=1 --batch=4 --seed=2 "

static float features[N][T][F];
static int32_t labels[N][T];
static const int32_t whole[N] = {T, T, T, T, T, T, T}, uneven[N] = {4, 1, 6, 2, 3, 6, 1};
static const char *x_path, *y_path, *l_path;

static void make_data(void) {
    for (int i = 0; i < N; i++)
        for (int t = 0; t < T; t++) {
            for (int k = 0; k < F; k++) features[i][t][k] = sinf(0.37f * (float)((i * T + t) * F + k));
            labels[i][t] = (i * 5 + t * t) % CLASSES;
        }
    x_path = make_npy("x.npy", "<f4", "(7, 6, 3)", features, sizeof features);
    y_path = make_npy("y.npy", "<i4", "(7, 6)", labels, sizeof labels);
}

/* Files without information after the ends of rows. */
static void make_uneven_data(void) {
    make_data();
    for (int i = 0; i < N; i++)
        for (int t = uneven[i]; t < T; t++) {
            for (int k = 0; k < F; k++) features[i][t][k] = NAN;
            labels[i][t] = t % 2 ? -7 : 255;
        }
    x_path = make_npy("nan.npy", "<f4", "(7, 6, 3)", features, sizeof features);
    y_path = make_npy("255.npy", "<i4", "(7, 6)", labels, sizeof labels);
    l_path = make_npy("l.npy", "<i4", "(7,)", uneven, sizeof uneven);
}

static double number_after(const char *label) {
    const char *at = strstr(program_output, label);
    ck_assert_msg(at, "no %s in %s", label, program_output);
    return strtod(at + strlen(label), NULL);
}

/* Computed from the probabilities in program_output, a row for each sample; 0 after its end. */
static void judge(double *loss, double *accuracy, const int32_t *lengths, int ignored) {
    const char *at = program_output;
    int counted = 0, right = 0;
    double sum = 0;
    for (int i = 0; i < N; i++)
        for (int t = 0; t < T; t++) {
            double p[CLASSES], total = 0;
            for (int k = 0; k < CLASSES; k++) {
                char *end;
                p[k] = strtod(at, &end);
                ck_assert_msg(end > at && *end == (t == T - 1 && k == CLASSES - 1 ? '\n' : ','), "%.60s", at);
                total += p[k], at = end + 1;
            }
            double expected = t < lengths[i];
            ck_assert_msg(fabs(total - expected) < 1e-6 * expected || total == expected, "sample %d, timestep %d: %g",
                          i, t, total);
            if (t >= lengths[i] || labels[i][t] == ignored) continue;
            bool first = true;
            for (int k = 0; k < CLASSES; k++) first = first && p[k] <= p[labels[i][t]];
            sum -= log(p[labels[i][t]]), counted++, right += first;
        }
    ck_assert_int_eq(*at, 0);
    *loss = sum / counted, *accuracy = 100.0 * right / counted;
}

static void check_header(const char *state) {
    char header[128], *npy = in_scratch("p.npy");
    ck_runs("predict --resume=%s --data=%s --out=%s", state, x_path, npy);
    FILE *in = fopen(npy, "rb");
    ck_assert_uint_eq(fread(header, 1, sizeof header, in), sizeof header);
    fclose(in);
    header[127] = 0;
    ck_assert_msg(strstr(header + 10, "(7, 6, 3)"), "%s", header + 10);
}

/* The last batch of 4 is short, and 6 timesteps are not a multiple of the tile of 4. */
START_TEST(eval_scores_predicted_tags) {
    static const char *const models[] = {"lstm --bidirectional", "gru", "mingru", "lstm --ignore-index=1"};
    double loss, accuracy;
    make_data();
    const char *state = in_scratch("st");
    ck_runs("train " SMALL "--model=%s --data=%s --labels=%s --tile=4 --checkpoint-segments=2 --lr=0.01 --steps=5 "
            "--class-weights=1,2,0.5 --save=%s",
            models[_i], x_path, y_path, state);
    ck_runs("eval --resume=%s --data=%s --labels=%s", state, x_path, y_path);
    double eval_loss = number_after("loss "), eval_accuracy = number_after("accuracy ");
    ck_says_all(program_output, "(7 samples)");
    ck_runs("predict --resume=%s --data=%s", state, x_path);
    judge(&loss, &accuracy, whole, _i == 3 ? 1 : -1);
    ck_assert_msg(fabs(loss - eval_loss) < 1e-6 * (1 + loss), "%.9g, not %.9g", eval_loss, loss);
    ck_assert_msg(fabs(accuracy - eval_accuracy) < 0.006, "%g %%, not %g", eval_accuracy, accuracy); /* two digits */
    check_header(state);
    ck_runs("eval --resume=%s --data=%s --labels=%s --json", state, x_path, y_path);
    ck_says_all(program_output, "\"confusion\":[[");
}
END_TEST

/* Batches of 4 samples and a remainder, with a row of one timestep and a row of full length. */
START_TEST(lengths_are_used_everywhere) {
    static const char *const models[] = {"lstm --bidirectional --layers=2", "gru --bucket-by-length", "minlstm",
                                         "lstm --ignore-index=1"};
    double loss, accuracy;
    make_uneven_data();
    const char *state = in_scratch("st");
    ck_runs("train " SMALL "--model=%s --data=%s --labels=%s --lengths=%s --tile=2 --lr=0.01 --steps=5 --save=%s "
            "--eval-data=%s --eval-labels=%s --eval-lengths=%s --eval-every=5",
            models[_i], x_path, y_path, l_path, state, x_path, y_path, l_path);
    double trained = strtod(strstr(strstr(program_output, "eval      5"), "loss ") + 5, NULL);
    ck_runs("eval --resume=%s --data=%s --labels=%s --lengths=%s", state, x_path, y_path, l_path);
    double eval_loss = number_after("loss "), eval_accuracy = number_after("accuracy ");
    ck_assert_msg(trained == eval_loss, "%.9g, then %.9g", trained, eval_loss);
    ck_runs("predict --resume=%s --data=%s --lengths=%s", state, x_path, l_path);
    judge(&loss, &accuracy, uneven, _i == 3 ? 1 : -1);
    ck_assert_msg(fabs(loss - eval_loss) < 1e-6 * (1 + loss), "%.9g, not %.9g", eval_loss, loss);
    ck_assert_msg(fabs(accuracy - eval_accuracy) < 0.006, "%g %%, not %g", eval_accuracy, accuracy);
    ck_refuses(2, "--data|--lengths=FILE", "eval --resume=%s --data=%s --labels=%s", state, x_path, y_path);
}
END_TEST

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

enum { V = 2 };
static const char *const losses[] = {"mse", "mae", "huber", "bce"};
static float numbers[N][T][V];

/* NaN after the ends; values between 0 and 1 for bce. */
static const char *make_numbers(bool shares) {
    for (int i = 0; i < N; i++)
        for (int t = 0; t < T; t++)
            for (int v = 0; v < V; v++) {
                float value = 2 * cosf(0.91f * (float)((i * T + t) * V + v));
                numbers[i][t][v] = t >= uneven[i] ? NAN : !shares ? value : value > 0;
            }
    return make_npy("n.npy", "<f4", "(7, 6, 2)", numbers, sizeof numbers);
}

static double loss_of(int loss, double y, double target) {
    double d = fabs(y - target);
    if (loss == 3) return -log(1 - d); /* the output is a probability */
    return loss == 0 ? d * d : loss == 1 ? d : d <= 1 ? d * d / 2 : d - 0.5;
}

/* Computed from the values in program_output, which are empty (0) after the ends. */
static double loss_of_rows(int loss) {
    const char *at = program_output;
    double sum = 0;
    int counted = 0;
    for (int i = 0; i < N; i++)
        for (int t = 0; t < T; t++)
            for (int v = 0; v < V; v++) {
                char *end;
                double y = strtod(at, &end);
                ck_assert_msg(end > at && *end == (t == T - 1 && v == V - 1 ? '\n' : ','), "%.60s", at);
                at = end + 1;
                ck_assert_msg(t < uneven[i] || y == 0, "sample %d, timestep %d: %g", i, t, y);
                if (t < uneven[i]) sum += loss_of(loss, y, numbers[i][t][v]), counted++;
            }
    ck_assert_int_eq(*at, 0);
    return sum / counted;
}

START_TEST(regression_targets_end_with_their_samples) {
    const char *flags = "--task=regress --hidden=5 --layers=1 --threads=1 --batch=4 --seed=2 --tile=2 --lr=0.01";
    make_uneven_data();
    const char *y = make_numbers(_i == 3), *state = in_scratch("st"), *files = "--data=%s --labels=%s --lengths=%s";
    char run[900];
    snprintf(run, sizeof run, files, x_path, y, l_path);
    ck_runs("train %s --loss=%s %s --bidirectional --steps=5 --save=%s --metrics=%s", flags, losses[_i], run, state,
            in_scratch("a.jsonl"));
    ck_runs("train %s --loss=%s %s --bidirectional --steps=5 --metrics=%s --checkpoint-segments=2", flags, losses[_i],
            run, in_scratch("b.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
    ck_runs("eval --resume=%s %s", state, run);
    double eval = number_after("loss ");
    ck_says_all(program_output, "(7 samples)");
    ck_runs("predict --resume=%s --data=%s --lengths=%s", state, x_path, l_path);
    double ours = loss_of_rows(_i);
    ck_assert_msg(fabs(ours - eval) < 1e-6 * (1 + eval), "%s: %.9g, not %.9g", losses[_i], eval, ours);
    numbers[2][5][1] = NAN; /* the last timestep of a sample of full length */
    ck_refuses(2, "number 1|timestep 5|sample 2|nan", "train %s --data=%s --labels=%s --lengths=%s", flags, x_path,
               make_npy("n.npy", "<f4", "(7, 6, 2)", numbers, sizeof numbers), l_path);
}
END_TEST

static long long held(const char *flags) {
    const char *words = "the program's own data and batches take ";
    ck_assert_int_eq(run_program("train --task=regress --hidden=5 --threads=1 --batch=4 --memory-budget=1 %s", flags),
                     2);
    ck_says_all(program_errors, words);
    return strtoll(strstr(program_errors, words) + strlen(words), NULL, 10);
}

/* Memory for each sample's length, and for each row of a batch its end, twice, and two marks per timestep. */
START_TEST(masks_count_in_the_budget) {
    char with[600], without[400];
    make_uneven_data();
    make_numbers(false);
    memset(numbers, 0, sizeof numbers);
    memset(features, 0, sizeof features);
    snprintf(without, sizeof without, "--data=%s --labels=%s",
             make_npy("x.npy", "<f4", "(7, 6, 3)", features, sizeof features),
             make_npy("n.npy", "<f4", "(7, 6, 2)", numbers, sizeof numbers));
    snprintf(with, sizeof with, "%s --lengths=%s", without, l_path);
    ck_assert_int_eq(held(with) - held(without), 4 * N + 4 * (2 * 4 + 2 * T * 4));
}
END_TEST

/* ---- Plans and ranks -------------------------------------------------------------------------------------------- */

/* Different plans, and buckets, which change the order. */
START_TEST(lengths_have_the_same_bits_in_every_plan) {
    static const char *const ways[] = {"", "--bidirectional", "--bucket-by-length --bidirectional --model=gru"};
    char run[800];
    make_uneven_data();
    snprintf(run, sizeof run, SMALL "--data=%s --labels=%s --lengths=%s --tile=2 --steps=4 %s", x_path, y_path, l_path,
             ways[_i]);
    ck_runs("train %s --metrics=%s", run, in_scratch("a.jsonl"));
    ck_runs("train %s --metrics=%s --checkpoint-segments=3", run, in_scratch("b.jsonl"));
    ck_runs("train %s --metrics=%s --checkpoint=lean", run, in_scratch("c.jsonl"));
    ck_runs("report --require-identical %s %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"), in_scratch("c.jsonl"));
}
END_TEST

/* Timesteps after the longest sample of a batch have no effect. */
START_TEST(short_tagged_samples_match_short_arrays) {
    static const int32_t three[N] = {3, 1, 2, 3, 3, 2, 1};
    float x[N][3][F];
    int32_t y[N][3];
    make_data();
    for (int i = 0; i < N; i++) memcpy(x[i], features[i], sizeof x[i]), memcpy(y[i], labels[i], sizeof y[i]);
    const char *l = make_npy("l.npy", "<i4", "(7,)", three, sizeof three);
    const char *run = "train " SMALL "--bidirectional --layers=2 --tile=2 --steps=4 --data=%s --labels=%s --lengths=%s "
                      "--metrics=%s";
    ck_runs(run, x_path, y_path, l, in_scratch("a.jsonl"));
    ck_runs(run, make_npy("sx.npy", "<f4", "(7, 3, 3)", x, sizeof x), make_npy("sy.npy", "<i4", "(7, 3)", y, sizeof y),
            l, in_scratch("b.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
}
END_TEST

/* Samples `first` and `first` + 2 of the first four as separate files. Returns what a run reports for its first
 * step. */
static double loss_of_half(int first) {
    float x[2][T][F];
    int32_t y[2][T], l[2];
    for (int i = 0; i < 2; i++) {
        memcpy(x[i], features[first + 2 * i], sizeof x[i]);
        memcpy(y[i], labels[first + 2 * i], sizeof y[i]);
        l[i] = uneven[first + 2 * i];
    }
    ck_runs("train " SMALL "--batch=2 --classes=3 --steps=1 --no-shuffle --data=%s --labels=%s --lengths=%s",
            make_npy("hx.npy", "<f4", "(2, 6, 3)", x, sizeof x), make_npy("hy.npy", "<i4", "(2, 6)", y, sizeof y),
            make_npy("hl.npy", "<i4", "(2,)", l, sizeof l));
    return number_after("loss ");
}

/* Two ranks with 10 and 3 timesteps: the mean covers all 13, or is the mean of two means, as in PyTorch's DDP. */
START_TEST(ranks_are_weighted_by_timesteps) {
    make_uneven_data();
    double first = loss_of_half(0), second = loss_of_half(1);
    double wanted = _i ? (first + second) / 2 : (10 * first + 3 * second) / 13;
    ck_runs("train " SMALL "--batch=2 --classes=3 --steps=1 --no-shuffle --devices=cpu:2 --data=%s --labels=%s "
            "--lengths=%s --loss-mean=%s",
            x_path, y_path, l_path, _i ? "parts" : "batch");
    double loss = number_after("loss ");
    ck_assert_msg(fabs(loss - wanted) < 1e-6 * wanted, "%.9g, not %.9g", loss, wanted);
}
END_TEST

/* The same bits with truncated windows, with targets at all timesteps or at the last one, and after a resume. */
START_TEST(taggers_have_the_same_bits_in_plans_and_resumes) {
    static const char *const ways[] = {"", "--bidirectional", "--tbptt=2", "--tbptt=4:2"};
    char run[800], command[600];
    make_data();
    const char *a = in_scratch("a"), *b = in_scratch("b");
    snprintf(run, sizeof run, SMALL "--data=%s --labels=%s --tile=2 %s", x_path, y_path, ways[_i]);
    ck_runs("train %s --steps=4 --save=%s", run, a);
    ck_runs("train %s --steps=2 --save=%s --checkpoint-segments=2", run, b);
    ck_runs("train --resume=%s --steps=4 --checkpoint=lean", b);
    snprintf(command, sizeof command, "cmp %s/step-00000004/model.safetensors %s/step-00000004/model.safetensors", a,
             b);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* A task that depends on one timestep's features alone is learned completely. */
START_TEST(a_local_pattern_is_learned) {
    static const char *const x = "eval    200  loss ";
    make_data();
    for (int i = 0; i < N; i++)
        for (int t = 0; t < T; t++) labels[i][t] = features[i][t][0] > 0;
    y_path = make_npy("y.npy", "<i4", "(7, 6)", labels, sizeof labels);
    ck_runs("train " SMALL "--data=%s --labels=%s --eval-data=%s --eval-labels=%s --lr=0.05 --steps=200", x_path,
            y_path, x_path, y_path);
    ck_assert_msg(number_after(x) < 0.05, "%s", program_output);
    ck_assert_msg(number_after("accuracy ") == 100, "%s", program_output);
}
END_TEST

START_TEST(unsuitable_tags_are_refused) {
    static const struct {
        const char *shape, *flags, *sentence;
        size_t count;
        int status;
    } wrong[] = {
        {"(6, 6)", "", "6 samples|7", 36, 2},
        {"(7, 5)", "", "5 timesteps|6|[N]", 35, 2},
        {"(7, 1, 6)", "", "3 dimensions|[N]|[N,T]", 42, 1},
        {"(7,)", "--every-step", "sample|model|timestep", 7, 2},
        {"(7,)", "--tbptt=3", "[N,T]", 7, 2},
        {"(7, 6)", "--classes=2", "label 2|sample 0|timestep 3|0..1", 42, 2},
    };
    make_data();
    labels[0][2] = 0, labels[0][3] = 2;
    for (int t = 0; t < 3; t++) labels[0][t] = 1;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_refuses(wrong[i].status, wrong[i].sentence, "train " SMALL "--data=%s --labels=%s %s", x_path,
                   make_npy("z.npy", "<i4", wrong[i].shape, labels, 4 * wrong[i].count), wrong[i].flags);
    labels[4][5] = -1;
    y_path = make_npy("y.npy", "<i4", "(7, 6)", labels, sizeof labels);
    ck_refuses(2, "label -1|sample 4|timestep 5|0..999999", "train " SMALL "--data=%s --labels=%s", x_path, y_path);
    ck_runs("train " SMALL "--data=%s --labels=%s --steps=1 --ignore-index=-1", x_path, y_path);
    ck_refuses(2, "--every-step|--model=mlp", "train " SMALL "--model=mlp --every-step --data=%s", x_path);
}
END_TEST

START_TEST(labels_are_checked_before_the_ends_only) {
    make_uneven_data();
    ck_refuses(2, "--eval-lengths=FILE",
               "train " SMALL "--data=%s --labels=%s --lengths=%s --eval-data=%s --eval-labels=%s", x_path, y_path,
               l_path, x_path, y_path);
    ck_refuses(2, "--tbptt=2|--lengths|window", "train " SMALL "--tbptt=2 --data=%s --labels=%s --lengths=%s", x_path,
               y_path, l_path);
    labels[3][1] = 5; /* the last counting timestep */
    y_path = make_npy("y.npy", "<i4", "(7, 6)", labels, sizeof labels);
    ck_refuses(2, "label 5|sample 3|timestep 1|0..2", "train " SMALL "--classes=3 --data=%s --labels=%s --lengths=%s",
               x_path, y_path, l_path);
    ck_runs("train " SMALL "--classes=3 --steps=1 --data=%s --labels=%s --lengths=%s --ignore-index=5", x_path, y_path,
            l_path);
}
END_TEST

/* Other labels must not change the kind of a saved model's outputs. */
START_TEST(tags_of_another_kind_are_refused) {
    make_data();
    const char *a = in_scratch("a"), *b = in_scratch("b"),
               *one = make_npy("one.npy", "<i4", "(7,)", (int32_t[]){0, 1, 2, 0, 1, 2, 0}, 28);
    ck_runs("train " SMALL "--data=%s --labels=%s --steps=1 --save=%s", x_path, y_path, a);
    ck_runs("train " SMALL "--data=%s --labels=%s --steps=1 --save=%s", x_path, one, b);
    ck_refuses(2, "sample|model|timestep", "eval --resume=%s --data=%s --labels=%s", a, x_path, one);
    ck_refuses(2, "timestep|model|sample", "eval --resume=%s --data=%s --labels=%s", b, x_path, y_path);
    ck_refuses(2, "sample|model|timestep", "train " SMALL "--data=%s --labels=%s --eval-data=%s --eval-labels=%s",
               x_path, y_path, x_path, one);
    char weights[300];
    snprintf(weights, sizeof weights, "--init=%s/step-00000001/model.safetensors", a);
    ck_runs("eval " SMALL "%s --data=%s --labels=%s", weights, x_path, y_path);
    labels[N - 1][T - 1] = 0;
    ck_refuses(2, "data|checksum", "train --resume=%s --steps=2 --labels=%s", a,
               make_npy("y.npy", "<i4", "(7, 6)", labels, sizeof labels));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("tags");
    tcase_add_loop_test(tests, losses_and_gradients_match_pytorch, 0, QUESTIONS);
    tcase_add_loop_test(tests, padding_of_tags_changes_no_bit, 0, (QUESTIONS - 1) * PLANS);
    tcase_add_loop_test(tests, eval_scores_predicted_tags, 0, 4);
    tcase_add_loop_test(tests, lengths_are_used_everywhere, 0, 4);
    tcase_add_loop_test(tests, regression_targets_end_with_their_samples, 0, 4);
    tcase_add_test(tests, masks_count_in_the_budget);
    tcase_add_loop_test(tests, lengths_have_the_same_bits_in_every_plan, 0, 3);
    tcase_add_test(tests, short_tagged_samples_match_short_arrays);
    tcase_add_loop_test(tests, ranks_are_weighted_by_timesteps, 0, 2);
    tcase_add_test(tests, labels_are_checked_before_the_ends_only);
    tcase_add_loop_test(tests, taggers_have_the_same_bits_in_plans_and_resumes, 0, 4);
    tcase_add_test(tests, a_local_pattern_is_learned);
    tcase_add_test(tests, unsuitable_tags_are_refused);
    tcase_add_test(tests, tags_of_another_kind_are_refused);
    return run_suite("train/tags", tests);
}
