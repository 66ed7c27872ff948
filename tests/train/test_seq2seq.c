/* test_seq2seq.c: --task=seq2seq: pairs of lines; the model matches PyTorch's, whose encoder reads packed sequences;
 * padding, plans and the number of ranks change no bit; `remat eval` counts exactly what `remat sample` writes; beam
 * search.
 *
 * Tolerance, in units of 2^-24 times an array's largest magnitude: PyTorch's own float run stays within 84 of its
 * run in double (make_seq2seq.py prints it); the limit is 100. */
#include "train/models/model.h"
#include "train/run/outputs.h"
#include "tests/golden/golden.h"
#include "tests/train/line_pairs.h"

#include <math.h>

/* ---- The model -------------------------------------------------------------------------------------------------- */

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

/* ---- The program ------------------------------------------------------------------------------------------------ */

static double number_after(const char *label) {
    const char *at = strstr(program_output, label);
    ck_assert_msg(at, "no %s in %s", label, program_output);
    return strtod(at + strlen(label), NULL);
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
    tcase_add_test(tests, decoding_writes_what_evaluations_count);
    tcase_add_loop_test(tests, plans_change_no_bit, 0, sizeof ways / sizeof *ways);
    tcase_add_loop_test(tests, ranks_change_no_bit, 0, 2);
    tcase_add_test(tests, bucketed_runs_resume_with_the_same_bits);
    tcase_add_test(tests, resumed_seq2seq_run_has_the_same_bits);
    tcase_add_test(tests, tokens_are_decoded_to_lines);
    tcase_add_test(tests, flags_of_other_tasks_are_refused);
    return run_suite("train/seq2seq", tests);
}
