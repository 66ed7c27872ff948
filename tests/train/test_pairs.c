/* test_pairs.c: pairs of lines: reading, generating, and batches of similar lengths. */
#include "train/tasks/task.h"
#include "train/data/loader.h"
#include "train/models/model.h"
#include "engine/session/session.h"
#include "tests/cases.h"
#include "tests/train/line_pairs.h"

#include <math.h>

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

/* ---- The program ------------------------------------------------------------------------------------------------ */

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

int main(void) {
    TCase *tests = tcase_create("pairs");
    tcase_add_test(tests, lines_become_pairs);
    tcase_add_test(tests, windows_line_ends_are_read);
    tcase_add_test(tests, other_lines_have_another_checksum);
    tcase_add_loop_test(tests, generated_answers_are_right, 0, 3);
    tcase_add_loop_test(tests, ends_of_batches_change_no_bit, 0, 4);
    tcase_add_loop_test(tests, buckets_have_similar_lines, 0, 2);
    tcase_add_test(tests, long_lines_get_more_memory);
    tcase_add_loop_test(tests, unsuitable_pairs_are_refused, 0, sizeof wrong / sizeof *wrong);
    return run_suite("train/pairs", tests);
}
