/* test_seq2seq.c: --task=seq2seq: pairs of lines; the model matches PyTorch's, whose encoder reads packed sequences;
 * padding, plans and the number of ranks change no bit; `remat eval` counts exactly what `remat sample` writes; beam
 * search.
 *
 * Tolerance, in units of 2^-24 times an array's largest magnitude: PyTorch's own float run stays within 84 of its
 * run in double (make_seq2seq.py prints it); the limit is 100. */
#include "train/tasks/task.h"
#include "train/commands/beam.h"
#include "train/data/loader.h"
#include "train/models/model.h"

#include "engine/session/session.h"
#include "tests/cases.h"
#include "tests/golden/golden.h"
#include "tests/train/train_test.h"

#include <math.h>

static uint64_t rng_state;
static uint32_t draw(uint32_t below) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

/* ---- The model -------------------------------------------------------------------------------------------------- */

#define LIMIT 100
enum { S = 6, T = 5, B = 3, CLASSES = 8, BEGIN = CLASSES, MOST = 1024, PLANS = 4 };
static const char *const files[] = {"seq2seq_lstm", "seq2seq_gru_both"};
static const int arrays[] = {1 + 2 * 8 + 4, 1 + 3 * 2 * 4 + 4};

typedef struct {
    rm_model model;
    remat_session *session;
    golden *file;
} fixture;

static void put(const fixture *f, const char *name, const void *data, size_t bytes) {
    ck_ok(remat_write(f->session, REMAT_INPUT, remat_find(f->session, REMAT_INPUT, name), data, bytes));
}

/* The file has lines in reading order, padded in front. `filler`: the token used as padding. */
static void put_batch(const fixture *f, int32_t filler) {
    int32_t x[S][B], previous[T][B], padding[S][B];
    float begins[S][B];
    const int32_t(*read)[B] = golden_find(f->file, "input", NULL)->data;
    for (int t = 0; t < S; t++) memcpy(x[t], read[S - 1 - t], sizeof x[t]);
    memcpy(previous, golden_find(f->file, "previous", NULL)->data, sizeof previous);
    const int32_t *target = golden_find(f->file, "target", NULL)->data;
    for (int b = 0; b < B; b++)
        for (int t = 0; t < S; t++) {
            padding[t][b] = x[t][b] == BEGIN;
            begins[t][b] = !padding[t][b] && (t == S - 1 || x[t + 1][b] == BEGIN);
        }
    for (int b = 0; b < B; b++)
        for (int t = 0; t < S; t++)
            if (padding[t][b]) x[t][b] = filler;
    for (int i = 0; i < T * B; i++)
        if (target[i] < 0) previous[i / B][i % B] = filler;
    put(f, "input", x, sizeof x), put(f, "padding", padding, sizeof padding), put(f, "begins", begins, sizeof begins);
    put(f, "target", target, sizeof previous), put(f, "previous", previous, sizeof previous);
}

static fixture start(int file, int plan) {
    fixture f = {.file = golden_open(files[file])};
    rm_model_spec spec = {.name = file ? "gru" : "lstm", .layers = 2, .hidden = 5, .embed = 4, .bidirectional = file};
    spec.data = (rm_data_shape){
        .timesteps = S, .answer_steps = T, .vocabulary = CLASSES + 1, .classes = CLASSES, .every_step = true};
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = plan == 2 ? 2 : 1;
    config.strategy = plan == 1 ? "segments" : plan == 2 ? "lean" : plan == 3 ? "sqrt" : "none";
    config.segments = plan == 1 ? 3 : 0;
    config.tile = plan ? 2 : 0;
    config.fold_embedding = plan < 2;
    ck_ok(rm_model_build(&spec, B, true, &f.model));
    ck_ok(remat_session_create(f.model.graph, f.model.loss, &config, &f.session));
    for (int64_t i = 0; i < remat_count(f.session, REMAT_PARAM); i++) {
        remat_array info;
        ck_ok(remat_array_info(f.session, REMAT_PARAM, i, &info));
        const golden_array *from = golden_find(f.file, "parameter", info.name);
        ck_assert_int_eq(from->rank, info.rank);
        for (int k = 0; k < info.rank; k++) ck_assert_int_eq(from->dim[k], info.dim[k]);
        ck_ok(remat_write(f.session, REMAT_PARAM, i, from->data, info.bytes));
    }
    put_batch(&f, BEGIN);
    return f;
}

static void done(fixture *f) {
    remat_session_free(f->session);
    rm_model_free(&f->model);
    golden_close(f->file);
}

static int64_t read_gradient(const fixture *f, int64_t i, float data[MOST], remat_array *info) {
    ck_ok(remat_array_info(f->session, REMAT_GRADIENT, i, info));
    ck_assert_uint_le(info->bytes, MOST * sizeof *data);
    ck_ok(remat_read(f->session, REMAT_GRADIENT, i, data, info->bytes));
    return (int64_t)info->bytes;
}

START_TEST(seq2seq_matches_pytorch) {
    fixture f = start(_i / PLANS, _i % PLANS);
    float data[MOST];
    remat_step_result r;
    remat_array info;
    ck_ok(remat_gradients(f.session, &r));
    float loss = (float)r.loss;
    golden_compare(golden_find(f.file, "loss", NULL), &loss, LIMIT);
    ck_assert_int_eq(remat_count(f.session, REMAT_GRADIENT), arrays[_i / PLANS]); /* all of PyTorch's */
    for (int64_t i = 0; i < arrays[_i / PLANS]; i++) {
        read_gradient(&f, i, data, &info);
        golden_compare(golden_find(f.file, "gradient", info.name), data, LIMIT);
    }
    done(&f);
}
END_TEST

START_TEST(padding_of_lines_changes_no_bit) {
    fixture f = start(_i, 1);
    static float before[64][MOST];
    float after[MOST];
    remat_step_result first, r;
    remat_array info;
    ck_ok(remat_gradients(f.session, &first));
    int64_t count = remat_count(f.session, REMAT_GRADIENT);
    for (int64_t i = 0; i < count; i++) read_gradient(&f, i, before[i], &info);
    put_batch(&f, 5);
    ck_ok(remat_gradients(f.session, &r));
    ck_assert(r.loss == first.loss);
    for (int64_t i = 0; i < count; i++) {
        int64_t bytes = read_gradient(&f, i, after, &info);
        ck_assert_msg(!memcmp(before[i], after, (size_t)bytes), "%s", info.name);
    }
    done(&f);
}
END_TEST

START_TEST(exact_lines_are_counted) {
    static const float logits[3][2][2] = {{{0, 1}, {1, 0}}, {{1, 0}, {0, 1}}, {{0, 9}, {5, 5}}};
    static const int32_t target[][3][2] = {{{1, 0}, {0, 1}, {1, 0}},     /* of equal logits the first is chosen */
                                           {{1, 0}, {0, 1}, {1, 1}},     /* which is wrong here */
                                           {{0, 0}, {0, 0}, {1, 0}},     /* one token of each */
                                           {{1, 0}, {-1, 1}, {-1, -1}}}; /* ignored targets are not wrong */
    static const int exact[] = {2, 1, 0, 2};
    for (int i = 0; i < 4; i++) ck_assert_int_eq(rm_count_exact(logits[0][0], target[i][0], 3, 2, 2), exact[i]);
}
END_TEST

/* ---- Pairs ------------------------------------------------------------------------------------------------------ */

static rm_dataset *pairs_of(const char *source, const char *target, int64_t timesteps) {
    rm_dataset *d;
    rm_data_source from = {.data = make_file("source", source, strlen(source)),
                           .labels = make_file("target", target, strlen(target)),
                           .timesteps = timesteps};
    ck_ok(rm_task_open("seq2seq", &from, &d));
    return d;
}

START_TEST(lines_become_pairs) {
    enum { END = 256, NONE = 257 };
    rm_dataset *d = pairs_of("abc\n\n\xff", "x\nyy\n\n", 0);
    ck_assert_int_eq(d->count, 3);
    ck_assert(d->shape.timesteps == 4 && d->shape.answer_steps == 3);
    ck_assert(d->shape.vocabulary == 258 && d->shape.classes == 257);
    static const int32_t x[3][4] = {{END, 'c', 'b', 'a'}, {END, NONE, NONE, NONE}, {END, 0xff, NONE, NONE}};
    static const int32_t y[3][3] = {{'x', END, -1}, {'y', 'y', END}, {END, -1, -1}};
    static const int32_t previous[3][3] = {{NONE, 'x', END}, {NONE, 'y', 'y'}, {NONE, END, NONE}};
    rm_batch batch;
    ck_ok(rm_batch_create(d, 3, &batch));
    for (int b = 0; b < 3; b++) ck_ok(rm_batch_put(&batch, b, b));
    for (int b = 0; b < 3; b++) {
        for (int t = 0; t < 4; t++) {
            ck_assert_int_eq(((int32_t *)batch.data[RM_INPUT])[t * 3 + b], x[b][t]);
            ck_assert_int_eq(((int32_t *)batch.data[RM_PADDING])[t * 3 + b], x[b][t] == NONE);
            ck_assert(((float *)batch.data[RM_BEGINS])[t * 3 + b] ==
                      (x[b][t] != NONE && (t == 3 || x[b][t + 1] == NONE)));
        }
        for (int t = 0; t < 3; t++) {
            ck_assert_int_eq(((int32_t *)batch.data[RM_TARGET])[t * 3 + b], y[b][t]);
            ck_assert_int_eq(((int32_t *)batch.data[RM_PREVIOUS])[t * 3 + b], previous[b][t]);
        }
    }
    rm_batch_free(&batch);
    rm_dataset_close(d);
}
END_TEST

/* Windows ends lines with CR LF; any other CR is part of its line. */
START_TEST(windows_line_ends_are_read) {
    static const char *const texts[][2] = {{"ab\nc\n", "x\n\n"}, {"ab\r\nc\r\n", "x\r\n\r\n"}, {"a\rb\nc\n", "x\n\n"}};
    uint32_t crc[3];
    for (int i = 0; i < 3; i++) {
        rm_dataset *d = pairs_of(texts[i][0], texts[i][1], 0);
        ck_assert_int_eq(d->shape.timesteps, i == 2 ? 4 : 3);
        ck_ok(rm_dataset_checksum(d, &crc[i]));
        rm_dataset_close(d);
    }
    ck_assert(crc[0] == crc[1] && crc[0] != crc[2]);
}
END_TEST

START_TEST(other_lines_have_another_checksum) {
    static const char *const texts[][2] = {{"ab\nc\n", "x\ny\n"}, {"ab\nd\n", "x\ny\n"}, {"ab\nc\n", "x\nz\n"}};
    uint32_t crc[3];
    for (int i = 0; i < 3; i++) {
        rm_dataset *d = pairs_of(texts[i][0], texts[i][1], 0);
        ck_ok(rm_dataset_checksum(d, &crc[i]));
        rm_dataset_close(d);
    }
    ck_assert(crc[0] != crc[1] && crc[0] != crc[2] && crc[1] != crc[2]);
}
END_TEST

static int by_letter(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* Lines of 10 to 20 letters; evaluation lines differ from training lines. */
START_TEST(generated_answers_are_right) {
    static const char *const rules[] = {"copy", "reverse", "sort"};
    enum { N = 200, STEPS = 21, END = 256 };
    int32_t x[STEPS], y[STEPS], other[STEPS], ignored[STEPS];
    int lengths[STEPS + 1] = {0};
    rm_data_source source = {.generate = rules[_i], .samples = N, .seed = 3};
    rm_dataset *d, *held_out;
    ck_ok(rm_task_open("seq2seq", &source, &d));
    source.held_out = true;
    ck_ok(rm_task_open("seq2seq", &source, &held_out));
    ck_assert_int_eq(d->shape.timesteps, STEPS);
    for (int i = 0; i < N; i++) {
        ck_ok(rm_dataset_fill(d, i, 0, 1, x, y));
        ck_ok(rm_dataset_fill(held_out, i, 0, 1, other, ignored));
        ck_assert(memcmp(x, other, sizeof x));
        int n = 0;
        while (y[n] != END) n++;
        lengths[n]++;
        int32_t letters[STEPS], sorted[STEPS];
        ck_assert(x[0] == END && (n + 1 == STEPS || x[n + 1] == END + 1));
        for (int k = 0; k < n; k++) letters[k] = x[n - k];
        memcpy(sorted, letters, (size_t)n * sizeof *sorted);
        qsort(sorted, (size_t)n, sizeof *sorted, by_letter);
        for (int k = 0; k < n; k++)
            ck_assert_int_eq(y[k], _i == 0 ? letters[k] : _i == 1 ? letters[n - 1 - k] : sorted[k]);
        ck_assert(sorted[0] >= 'a' && sorted[n - 1] <= 'z');
    }
    for (int n = 0; n < STEPS; n++) ck_assert_int_eq(lengths[n] > 0, n >= 10);
    rm_dataset_close(d);
    rm_dataset_close(held_out);
}
END_TEST

/* ---- Ends of batches -------------------------------------------------------------------------------------------- */

/* Lines of 0 to `most` letters; the first has `most`. */
static char *random_lines(int count, int most) {
    char *text = malloc((size_t)(count * (most + 1) + 1)), *at = text;
    for (int i = 0; i < count; i++) {
        for (uint32_t k = i ? draw((uint32_t)most + 1) : (uint32_t)most; k > 0; k--) *at++ = (char)('a' + draw(26));
        *at++ = '\n';
    }
    *at = 0;
    return text;
}

typedef struct {
    rm_model_spec spec;
    remat_config config;
    int batch;
    uint64_t samples; /* random state for drawing batches */
} drawn;

enum { LINES = 40, UPDATES = 3, NUMBERS = 1 << 15 };

typedef struct {
    double loss[UPDATES], evaluated;
    float gradient[NUMBERS], parameter[NUMBERS];
    int64_t gradients, parameters;
    int shorter; /* batches that are shorter than the longest lines */
} outcome;

static int64_t read_floats(remat_session *s, remat_kind kind, float *out) {
    uint64_t at = 0;
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        ck_ok(remat_array_info(s, kind, i, &info));
        ck_assert_uint_le(at + info.bytes, NUMBERS * sizeof *out);
        ck_ok(remat_read(s, kind, i, (char *)out + at, info.bytes));
        at += info.bytes;
    }
    return (int64_t)at;
}

static int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* Draws and writes a batch; then sets its correct ends, or none. */
static void write_batch(rm_batch *b, remat_session *s, bool ends, outcome *o) {
    const rm_dataset *d = b->dataset;
    int64_t from = d->shape.timesteps, to = d->shape.answer_steps, source = 1, target = 1;
    for (int64_t column = 0; column < b->batch; column++) {
        int64_t sample = draw(10) ? 1 + draw(LINES - 1) : 0;
        source = most_of(source, d->kind->length(d, sample)),
        target = most_of(target, d->kind->answer_length(d, sample));
        ck_ok(rm_batch_put(b, column, sample));
    }
    ck_ok(rm_batch_write(b, rm_batch_whole(b), s));
    if (from == to) source = target = most_of(source, target);
    for (int32_t w = 0; w < s->chain.n_sweeps; w++) {
        int64_t timesteps = s->chain.sweep[w].timesteps;
        if (timesteps == from || timesteps == to)
            ck_assert_int_eq(s->runner.end[w], timesteps == from ? source : target);
    }
    o->shorter += source < from && target < to;
    if (!ends) ck_ok(remat_set_sequence_end(s, from, from));
    if (!ends) ck_ok(remat_set_sequence_end(s, to, to));
}

static void run_pairs(const drawn *d, rm_dataset *dataset, bool ends, outcome *o) {
    rm_model model;
    rm_batch batch;
    remat_session *s;
    remat_config config = d->config;
    *o = (outcome){0};
    rng_state = d->samples;
    ck_ok(rm_model_build(&d->spec, d->batch, true, &model));
    ck_ok(remat_session_create(model.graph, model.loss, &config, &s));
    ck_ok(rm_batch_create(dataset, d->batch, &batch));
    for (int update = 0; update < UPDATES; update++) {
        remat_step_result r;
        for (int k = 0; k < config.micro_steps; k++) {
            write_batch(&batch, s, ends, o);
            ck_ok(remat_gradients(s, &r));
        }
        o->gradients = read_floats(s, REMAT_GRADIENT, o->gradient);
        ck_ok(remat_update(s, 0.1, &r));
        o->loss[update] = r.loss;
    }
    write_batch(&batch, s, ends, o);
    remat_step_result r;
    ck_ok(remat_evaluate(s, &r));
    o->evaluated = r.loss;
    o->parameters = read_floats(s, REMAT_PARAM, o->parameter);
    rm_batch_free(&batch);
    remat_session_free(s);
    rm_model_free(&model);
}

static drawn draw_pairs(const rm_dataset *dataset, int plan) {
    static const char *const cells[] = {"lstm", "gru", "rnn"}, *const plans[] = {"none", "segments", "lean", "sqrt"};
    drawn d = {.batch = 1 + (int)draw(3), .config = REMAT_CONFIG_INIT};
    d.spec = (rm_model_spec){.name = cells[draw(3)], .layers = 1 + (int)draw(2), .hidden = 5, .embed = 4};
    d.spec.data = dataset->shape;
    d.spec.bidirectional = draw(2);
    d.spec.dropout = draw(2) ? 0.2 : 0;
    if (!strcmp(d.spec.name, "lstm") && draw(2)) d.spec.projection = 3;
    d.config.strategy = plans[plan], d.config.segments = plan == 1 ? 3 : 0, d.config.tile = 1 + draw(5);
    d.config.threads = 1 + (int)draw(2), d.config.micro_steps = 1 + (int)draw(2), d.config.verify_recompute = draw(2);
    d.config.optimizer = "sgd", d.config.calibration = "";
    d.samples = draw(1000);
    return d;
}

/* Loss, gradients and updates have the same bits, whether computed to the end of the longest lines of all or of the
 * batch. Sources and targets have different ends, or one common end. */
START_TEST(ends_of_batches_change_no_bit) {
    static outcome whole, part;
    int shorter = 0;
    for (int k = 0, cases = rm_cases(100, 12); k < cases; k++) {
        rng_state = (uint64_t)(_i * 1000 + k + 1);
        int most = 1 + (int)draw(30);
        char *from = random_lines(LINES, most), *to = random_lines(LINES, draw(3) ? 1 + (int)draw(30) : most);
        rm_dataset *dataset = pairs_of(from, to, 0);
        drawn d = draw_pairs(dataset, _i);
        run_pairs(&d, dataset, false, &whole);
        run_pairs(&d, dataset, true, &part);
        for (int update = 0; update < UPDATES; update++)
            ck_assert_msg(whole.loss[update] == part.loss[update], "case %d, update %d: %.9g, and %.9g with ends", k,
                          update, whole.loss[update], part.loss[update]);
        ck_assert(whole.evaluated == part.evaluated && whole.gradients == part.gradients && part.gradients > 0);
        ck_assert(!memcmp(whole.gradient, part.gradient, (size_t)whole.gradients));
        ck_assert(!memcmp(whole.parameter, part.parameter, (size_t)whole.parameters));
        shorter += part.shorter;
        rm_dataset_close(dataset);
        free(from), free(to);
    }
    ck_assert_int_gt(shorter, 3);
}
END_TEST

/* Lines from files, and generated ones, are sorted by the source, then by the target. */
START_TEST(buckets_have_similar_lines) {
    rng_state = 7;
    char *from = random_lines(RM_POOL, 9), *to = random_lines(RM_POOL, 9);
    rm_data_source source = {.generate = "copy", .samples = RM_POOL};
    rm_dataset *d = _i ? NULL : pairs_of(from, to, 0);
    if (_i) ck_ok(rm_task_open("seq2seq", &source, &d));
    rm_loader l;
    int64_t before[2] = {0, 0};
    ck_ok(rm_loader_create(d, &(rm_loader_config){.batch = 8, .by_length = true}, &l));
    for (int64_t k = 0; k < RM_POOL / 8; k++) {
        ck_ok(rm_loader_next(&l));
        for (int64_t i = 0; i < 8; i++) {
            int64_t n[2] = {0, 0};
            while (n[0] < d->shape.timesteps && !((int32_t *)l.batch.data[RM_PADDING])[n[0] * 8 + i]) n[0]++;
            while (n[1] < d->shape.answer_steps && ((int32_t *)l.batch.data[RM_TARGET])[n[1] * 8 + i] >= 0) n[1]++;
            ck_assert(n[0] > before[0] || (n[0] == before[0] && n[1] >= before[1]));
            memcpy(before, n, sizeof before);
        }
    }
    ck_assert(before[0] == d->shape.timesteps && before[1] == d->shape.answer_steps);
    rm_loader_free(&l);
    rm_dataset_close(d);
    free(from), free(to);
}
END_TEST

/* ---- Beam search ------------------------------------------------------------------------------------------------ */

enum { K = 3, LAST = 2, FIRST = 3, LONGEST = 4, WIDEST = 81 };

static uint64_t with_token(uint64_t seed, int32_t token) { return seed * 7 + (uint64_t)token + 1; }

/* Pseudorandom log-probabilities of the next token, given the hash of the tokens before it. */
static void log_probabilities_of_next(uint64_t seed, double out[K]) {
    double sum = 0;
    for (int k = 0; k < K; k++) {
        uint64_t z = (seed * K + (uint64_t)k + 1) * 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        out[k] = 3 * (double)(z >> 11) * 0x1p-53;
        sum += exp(out[k]);
    }
    for (int k = 0; k < K; k++) out[k] -= log(sum);
}

/* A state per line, as in a decoder. */
typedef struct {
    uint64_t seed, line[WIDEST];
} toy;

static remat_status expect_toy(void *context, const rm_beam_step *step, int64_t lines, double *out) {
    toy *t = context;
    const toy before = *t;
    for (int64_t i = 0; i < lines; i++) {
        t->line[i] = step[i].token == FIRST ? t->seed : with_token(before.line[step[i].line], step[i].token);
        log_probabilities_of_next(t->line[i], out + i * K);
    }
    return REMAT_OK;
}

static double best_of_all(uint64_t seed, int64_t length, double sum) {
    double next[K];
    log_probabilities_of_next(seed, next);
    double best = (sum + next[LAST]) / (double)(length + 1);
    for (int k = 0; k < LAST && length < LONGEST; k++)
        best = fmax(best, best_of_all(with_token(seed, k), length + 1, sum + next[k]));
    return best;
}

static double mean_of(uint64_t seed, const int32_t *tokens, int64_t length) {
    double sum = 0, next[K];
    for (int64_t i = 0; i <= length; i++) {
        log_probabilities_of_next(seed, next);
        sum += next[i < length ? tokens[i] : LAST];
        if (i < length) seed = with_token(seed, tokens[i]);
    }
    return sum / (double)(length + 1);
}

static int64_t greedy(uint64_t seed, int32_t *out) {
    double next[K];
    for (int64_t length = 0; length < LONGEST; length++) {
        log_probabilities_of_next(seed, next);
        int best = 0;
        for (int k = 1; k < K; k++) best = next[k] > next[best] ? k : best;
        if (best == LAST) return length;
        out[length] = best;
        seed = with_token(seed, best);
    }
    return LONGEST;
}

/* A beam as wide as the number of lines finds the best line; a beam of one is greedy. */
START_TEST(beam_search_finds_the_best_line) {
    int differ = 0;
    for (uint64_t seed = 1; seed < 300; seed++) {
        int32_t out[LONGEST], line[LONGEST];
        int64_t length, n = greedy(seed, line);
        toy context = {.seed = seed};
        rm_beam beam = {.width = 1,
                        .classes = K,
                        .longest = LONGEST,
                        .begin = FIRST,
                        .end = LAST,
                        .expect = expect_toy,
                        .context = &context};
        ck_ok(rm_beam_search(&beam, out, &length));
        ck_assert_int_eq(length, n);
        ck_assert(!memcmp(out, line, (size_t)n * sizeof *out));
        double before = mean_of(seed, out, length);
        beam.width = WIDEST;
        ck_ok(rm_beam_search(&beam, out, &length));
        double best = best_of_all(seed, 0, 0), found = mean_of(seed, out, length);
        ck_assert_msg(fabs(found - best) < 1e-12, "seed %d: %g, not %g", (int)seed, found, best);
        differ += found > before + 1e-12;
        beam.width = 2;
        ck_ok(rm_beam_search(&beam, out, &length));
        ck_assert(mean_of(seed, out, length) <= best + 1e-12);
    }
    ck_assert_int_gt(differ, 50);
}
END_TEST

/* ---- The program ------------------------------------------------------------------------------------------------ */

#define TOY "--task=seq2seq --generate=copy --seq-len=5 --samples=2000 "
#define SMALL "--hidden=64 --embed=32 --layers=1 --threads=1 --batch=16 --lr=0.01 --seed=1 "

static double number_after(const char *label) {
    const char *at = strstr(program_output, label);
    ck_assert_msg(at, "no %s in %s", label, program_output);
    return strtod(at + strlen(label), NULL);
}

/* The program writes an answer for every line of `source`. Returns how many equal the line of `target`. */
static int lines_that_match(const char *state, const char *target, const char *flags) {
    char command[1024], line[256], wanted[256];
    int same = 0;
    snprintf(command, sizeof command, "%s/remat sample --resume=%s --threads=1 %s < %s", RM_BINARY_DIR, state, flags,
             in_scratch("source"));
    FILE *answers = popen(command, "r"), *right = fopen(target, "r");
    ck_assert(answers && right);
    while (fgets(wanted, sizeof wanted, right)) {
        ck_assert_ptr_nonnull(fgets(line, sizeof line, answers));
        same += !strcmp(line, wanted);
    }
    ck_assert_ptr_null(fgets(line, sizeof line, answers));
    fclose(right);
    ck_assert_int_eq(pclose(answers), 0);
    return same;
}

/* Some lines are learned, others are not. Decoded lines are right exactly where an evaluation with the true prefix says
 * so. */
START_TEST(decoding_writes_what_evaluations_count) {
    enum { N = 60 };
    char source[N * 8], target[N * 8], *state = in_scratch("st");
    size_t at = 0;
    for (int i = 0; i < N; i++) {
        int n = 1 + i % 4;
        for (int k = 0; k < n; k++) source[at + (size_t)k] = (char)('a' + (i * 5 + k * 11) % 26);
        at += (size_t)n;
        source[at++] = '\n';
    }
    memcpy(target, source, at);
    make_file("source", source, at);
    const char *answers = make_file("target", target, at);
    ck_runs("train " TOY SMALL "--steps=100 --save=%s --eval-every=50", state);
    ck_says_all(program_output, "exact match");
    ck_runs("eval --resume=%s --threads=1 --data=%s --labels=%s --seq-len=6", state, in_scratch("source"), answers);
    int exact = (int)lround(number_after("exact match ") * N / 100);
    ck_assert_msg(exact > 3 && exact < N, "%s", program_output);
    ck_assert_int_eq(lines_that_match(state, answers, ""), exact);
    ck_assert_int_eq(lines_that_match(state, answers, "--beam=1"), exact);
    ck_assert_int_ge(lines_that_match(state, answers, "--beam=5"), exact / 2);
    char windows[N * 9];
    size_t n = 0;
    for (size_t i = 0; i < at; i++) {
        if (source[i] == '\n') windows[n++] = '\r';
        windows[n++] = source[i];
    }
    make_file("source", windows, n);
    ck_assert_int_eq(lines_that_match(state, answers, ""), exact);
    ck_runs("sample --resume=%s --prompt=ab --length=1", state);
    ck_assert_uint_le(strlen(program_output), 2);
    ck_runs("eval --resume=%s --json", state);
    ck_assert_msg(strstr(program_output, "\"exact_match\":") && !strstr(program_output, "confusion"), "%s",
                  program_output);
}
END_TEST

static const char *const ways[] = {"--checkpoint-segments=3", "--checkpoint=lean", "--checkpoint=sqrt",
                                   "--memory-budget=4MB"};
START_TEST(plans_change_no_bit) {
    static const char net[] =
        TOY "--hidden=40 --layers=2 --threads=1 --batch=8 --seq-len=30 --tile=4 --steps=5 --dropout=0.1 ";
    char *kept = in_scratch("kept.jsonl"), *other = in_scratch("other.jsonl");
    const char *both = _i % 2 ? "--bidirectional --model=lstm --proj-size=30" : "";
    ck_runs("train %s%s --metrics=%s", net, both, kept);
    ck_runs("train %s%s --metrics=%s %s", net, both, other, ways[_i]);
    ck_runs("report %s %s --require-identical", kept, other);
}
END_TEST

START_TEST(ranks_change_no_bit) {
    char *one = in_scratch("one.jsonl"), *two = in_scratch("two.jsonl");
    const char *order = _i ? "--bucket-by-length --seq-len=40 --tile=4" : "";
    ck_runs("train " TOY SMALL "--steps=6 --deterministic-world=2 --eval-every=3 --metrics=%s %s", one, order);
    ck_runs("train " TOY SMALL
            "--batch=8 --steps=6 --deterministic-world=2 --eval-every=3 --devices=cpu:2 --metrics=%s %s",
            two, order);
    ck_runs("report %s %s --require-identical", one, two);
}
END_TEST

/* Bucketed batches have the same losses under every plan, and after a resume in the second epoch, which has another
 * order. Without the flag losses differ. */
START_TEST(bucketed_runs_resume_with_the_same_bits) {
    rng_state = 5;
    char *from = random_lines(1200, 12), *to = random_lines(1200, 16), common[768];
    const char *source = make_file("source", from, strlen(from)), *target = make_file("target", to, strlen(to));
    char *whole = in_scratch("whole.jsonl"), *other = in_scratch("other.jsonl"), *parts = in_scratch("parts.jsonl"),
         *state = in_scratch("st");
    snprintf(common, sizeof common,
             "train --task=seq2seq --data=%s --labels=%s --eval-data=%s --eval-labels=%s --eval-every=9 " SMALL
             "--tile=3 --hidden=24 --batch=64 --accumulate-steps=2 --bidirectional",
             source, target, source, target);
    ck_runs("%s --steps=18 --bucket-by-length --metrics=%s", common, whole);
    ck_runs("%s --steps=18 --bucket-by-length --metrics=%s --checkpoint-segments=3", common, other);
    ck_runs("report %s %s --require-identical", whole, other);
    ck_runs("%s --steps=11 --bucket-by-length --metrics=%s --save=%s", common, parts, state);
    ck_runs("train --resume=%s --data=%s --labels=%s --eval-data=%s --eval-labels=%s --steps=18 --metrics=%s", state,
            source, target, source, target, parts);
    ck_runs("report %s %s --require-identical", whole, parts);
    ck_assert_int_eq(unlink(other), 0);
    ck_runs("%s --steps=18 --metrics=%s", common, other);
    ck_assert_int_eq(run_program("report %s %s --require-identical", whole, other), 1);
    free(from), free(to);
}
END_TEST

START_TEST(resumed_seq2seq_run_has_the_same_bits) {
    make_file("source", "one\ntwo\nthree\nfour\nfive\n", 24);
    make_file("target", "eno\nowt\neerht\nruof\nevif", 23);
    const char *source = in_scratch("source"), *target = in_scratch("target");
    char *whole = in_scratch("whole.jsonl"), *parts = in_scratch("parts.jsonl"), *state = in_scratch("st");
    ck_runs("train --task=seq2seq --data=%s --labels=%s " SMALL "--batch=2 --steps=8 --metrics=%s", source, target,
            whole);
    ck_runs("train --task=seq2seq --data=%s --labels=%s " SMALL "--batch=2 --steps=3 --metrics=%s --save=%s", source,
            target, parts, state);
    ck_runs("train --resume=%s --data=%s --labels=%s --steps=8 --metrics=%s", state, source, target, parts);
    ck_runs("report %s %s --require-identical", whole, parts);
    make_file("target", "eno\nowt\neerht\nruof\nevix", 23);
    ck_refuses(2, "data|checksum", "train --resume=%s --data=%s --labels=%s --steps=9", state, source, target);
    ck_refuses(2, "--data=FILE|--labels=FILE", "eval --resume=%s", state);
}
END_TEST

/* Memorised lines, through a tokenizer, which the training state copies. */
START_TEST(tokens_are_decoded_to_lines) {
    static const char questions[] = "the quick brown fox\nna\xc3\xafve\nover the lazy dog\n\n",
                      answers[] = "jumps\n\xf0\x9f\x99\x82 caf\xc3\xa9\nwhat\nnothing at all\n";
    make_file("source", questions, sizeof questions - 1);
    const char *right = make_file("target", answers, sizeof answers - 1);
    char *state = in_scratch("st"), *json = in_scratch("t.json"), command[512];
    snprintf(command, sizeof command, "cp " RM_SOURCE_DIR "/tests/golden/tokenizer.json %s", json);
    ck_assert_int_eq(system(command), 0);
    ck_runs("train --task=seq2seq --data=%s --labels=%s --tokenizer=%s " SMALL "--batch=4 --steps=120 --save=%s",
            in_scratch("source"), right, json, state);
    ck_assert_int_eq(unlink(json), 0);
    ck_runs("eval --resume=%s --data=%s --labels=%s", state, in_scratch("source"), right);
    ck_says_all(program_output, "exact match 100.00 %");
    ck_assert_int_eq(lines_that_match(state, right, ""), 4);
    ck_assert_int_eq(lines_that_match(state, right, "--beam=3"), 4);
}
END_TEST

/* A long line after a short one, in source and target, and a short one again: memory grows, and earlier text stays. */
START_TEST(long_lines_get_more_memory) {
    char questions[128], answers[128], flags[64];
    snprintf(questions, sizeof questions, "a\n%.*s\nb\n", 40, "cdefghijklmnopqrstuvwxyzcdefghijklmnopqrstuvwxyz");
    snprintf(answers, sizeof answers, "short\n%s%s\nno\n", "one two three four five six seven eight nine ten ",
             "eleven twelve thirteen");
    make_file("source", questions, strlen(questions));
    const char *right = make_file("target", answers, strlen(answers));
    char *state = in_scratch("st");
    ck_runs("train --task=seq2seq --data=%s --labels=%s " SMALL "--batch=3 --steps=150 --save=%s", in_scratch("source"),
            right, state);
    for (int width = 1; width < 4; width += 2) {
        snprintf(flags, sizeof flags, "--beam=%d", width);
        ck_assert_int_eq(lines_that_match(state, right, flags), 3);
    }
}
END_TEST

static const struct {
    const char *flags, *says;
} wrong[] = {
    {"", "seq2seq|--data=FILE|--labels=FILE"},
    {"--data=%s", "--labels=FILE"},
    {"--data=%s --labels=%s", "2 lines"},
    {"--data=%s --labels=%s --generate=sort", "--data and --generate cannot be combined"},
    {"--data=%s --labels=%s --samples=7", "--samples|--generate=copy, reverse or sort"},
    {"--data=%s --labels=%s --seq-len=4", "line 2|4 tokens|--seq-len=4|5"},
    {"--generate=sort --tokenizer=t.json", "--tokenizer has no effect with --generate"},
    {"--generate=sort --seq-len=1", "2 timesteps"},
    {"--generate=sort --model=mingru", "--model=mingru cannot|encoder"},
    {"--generate=sort --model=gpt2", "--model=gpt2 cannot|encoder"},
    {"--generate=sort --tbptt=4", "--tbptt"},
    {"--generate=sort --stateful", "--stateful"},
    {"--generate=sort --model=cnn", "--model=cnn"},
};

START_TEST(unsuitable_pairs_are_refused) {
    char flags[512];
    const char *source = make_file("source", "a\nfour\n", 7), *target = make_file("target", "b\n", 2);
    if (strstr(wrong[_i].flags, "seq-len=4")) target = make_file("target", "b\nc\n", 4);
    snprintf(flags, sizeof flags, wrong[_i].flags, source, target);
    ck_refuses(2, wrong[_i].says, "train --task=seq2seq --batch=1 --hidden=8 %s", flags);
}
END_TEST

START_TEST(flags_of_other_tasks_are_refused) {
    const char *text = make_text("text", 3000);
    ck_refuses(2, "--generate|--task=lm", "train --generate=copy");
    make_file("empty", "", 0);
    ck_refuses(2, "empty|line", "train --task=seq2seq --data=%s --labels=%s", in_scratch("empty"), text);
    char *state = in_scratch("st");
    ck_runs("train " TOY SMALL "--steps=1 --save=%s", state);
    ck_refuses(2, "--temperature|--task=seq2seq", "sample --resume=%s --prompt=a --temperature=1", state);
    ck_refuses(2, "target|timestep", "predict --resume=%s --data=%s", state, text);
    char *lm = in_scratch("lm");
    ck_runs("train --data=%s --hidden=4 --layers=1 --seq-len=20 --batch=2 --steps=1 --threads=1 --save=%s", text, lm);
    ck_refuses(2, "--beam|--task=lm", "sample --resume=%s --beam=3", lm);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("seq2seq");
    tcase_add_loop_test(tests, seq2seq_matches_pytorch, 0, 2 * PLANS);
    tcase_add_loop_test(tests, padding_of_lines_changes_no_bit, 0, 2);
    tcase_add_test(tests, exact_lines_are_counted);
    tcase_add_test(tests, lines_become_pairs);
    tcase_add_test(tests, windows_line_ends_are_read);
    tcase_add_test(tests, other_lines_have_another_checksum);
    tcase_add_loop_test(tests, generated_answers_are_right, 0, 3);
    tcase_add_loop_test(tests, ends_of_batches_change_no_bit, 0, 4);
    tcase_add_loop_test(tests, buckets_have_similar_lines, 0, 2);
    tcase_add_test(tests, beam_search_finds_the_best_line);
    tcase_add_test(tests, decoding_writes_what_evaluations_count);
    tcase_add_loop_test(tests, plans_change_no_bit, 0, sizeof ways / sizeof *ways);
    tcase_add_loop_test(tests, ranks_change_no_bit, 0, 2);
    tcase_add_test(tests, bucketed_runs_resume_with_the_same_bits);
    tcase_add_test(tests, resumed_seq2seq_run_has_the_same_bits);
    tcase_add_test(tests, tokens_are_decoded_to_lines);
    tcase_add_test(tests, long_lines_get_more_memory);
    tcase_add_loop_test(tests, unsuitable_pairs_are_refused, 0, sizeof wrong / sizeof *wrong);
    tcase_add_test(tests, flags_of_other_tasks_are_refused);
    return run_suite("train/seq2seq", tests);
}
