/* test_tokens.c: language models of tokens: tokenized texts, the tokenizer's copy in training states, `remat sample`,
 * and bits per byte. */
#include "train/tasks/task.h"
#include "train/data/dataset.h"
#include "train/data/tokenizer.h"

#include "memory/host.h"
#include "tests/golden/golden.h"
#include "tests/train/train_test.h"
#include "train/file.h"

#include <math.h>
#include <zlib.h>

#define GOLDEN RM_SOURCE_DIR "/tests/golden/"
#define TEXT GOLDEN "tokenizer.txt"
#define TOKENIZER GOLDEN "tokenizer.json"
#define SMALL "--layers=1 --hidden=8 --batch=4 --seq-len=50 --threads=1 "

enum { TOKENS = 5076, VOCABULARY = 600 }; /* in the golden text */

/* ---- The data set ----------------------------------------------------------------------------------------------- */

static rm_dataset *open_ok(rm_data_source source) {
    rm_dataset *dataset;
    ck_ok(rm_task_open("lm", &source, &dataset));
    return dataset;
}

static void open_fails(rm_data_source source, remat_status status, const char *part) {
    rm_dataset *dataset;
    ck_fails(rm_task_open("lm", &source, &dataset), status, part);
}

static uint32_t checksum_of(rm_data_source source) {
    uint32_t crc;
    rm_dataset *d = open_ok(source);
    ck_ok(rm_dataset_checksum(d, &crc));
    rm_dataset_close(d);
    return crc;
}

/* The tokens match the golden ones; target_bytes counts the bytes of the samples' targets. */
START_TEST(texts_are_tokenized) {
    enum { T = 100, SAMPLES = (TOKENS - 1) / T };
    golden *g = golden_open("tokenizer");
    const int32_t *token = golden_find(g, "tokenizer", NULL)->data;
    rm_dataset *d = open_ok((rm_data_source){.data = TEXT, .timesteps = T, .tokenizer = TOKENIZER});
    rm_tokenizer *t;
    ck_ok(rm_tokenizer_read(TOKENIZER, &t));
    ck_assert(d->count == SAMPLES && d->shape.vocabulary == VOCABULARY && d->shape.classes == VOCABULARY);
    uint64_t bytes = 0;
    for (int64_t i = 0; i < d->count; i++) {
        int32_t x[T], y[T];
        ck_ok(rm_dataset_fill(d, i, 0, 1, x, y));
        ck_assert(!memcmp(x, token + i * T, sizeof x) && !memcmp(y, token + i * T + 1, sizeof y));
        for (int s = 0; s < T; s++) {
            size_t length;
            rm_tokenizer_decode(t, y[s], &length);
            bytes += length;
        }
    }
    ck_assert_uint_eq(d->target_bytes, bytes);
    ck_assert_uint_eq(d->held_bytes, (T + 1) * 8 + 4 * TOKENS + d->tokenizer_bytes);
    rm_dataset_close(d);
    d = open_ok((rm_data_source){.data = TEXT, .timesteps = T, .tokenizer = TOKENIZER, .held_out = true});
    ck_assert(!d->tokenizer && d->held_bytes == (T + 1) * 8 + 4 * TOKENS);
    rm_dataset_close(d);
    rm_tokenizer_free(t);
    golden_close(g);
}
END_TEST

static const char *make_packed(const char *name, const char *of) {
    uint8_t *text;
    size_t size;
    const char *path = in_scratch(name);
    ck_ok(rm_file_read(of, 1 << 20, &text, &size));
    gzFile file = gzopen(path, "wb");
    ck_assert_int_eq(gzwrite(file, text, (unsigned)size), (int)size);
    ck_assert_int_eq(gzclose(file), Z_OK);
    rm_free(text);
    return path;
}

/* The golden tokens in the format of numpy.save for int32. */
static const char *make_npy_of_tokens(void) {
    static uint8_t file[128 + 4 * TOKENS] = "\x93NUMPY\1\0\x76\0";
    golden *g = golden_open("tokenizer");
    int n = snprintf((char *)file + 10, 118, "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }", TOKENS);
    memset(file + 10 + n, ' ', (size_t)(118 - n));
    memcpy(file + 128, golden_find(g, "tokenizer", NULL)->data, 4 * TOKENS);
    golden_close(g);
    return make_file("tokens.npy", file, sizeof file);
}

START_TEST(packed_and_encoded_texts_are_the_same_data) {
    rm_data_source source = {.data = TEXT, .timesteps = 9, .tokenizer = TOKENIZER};
    uint32_t crc = checksum_of(source);
    source.data = make_packed("text.gz", TEXT);
    source.tokenizer = make_packed("json.gz", TOKENIZER);
    ck_assert_uint_eq(checksum_of(source), crc);
    source.data = make_npy_of_tokens();
    ck_assert_uint_eq(checksum_of(source), crc);
    rm_dataset *d = open_ok(source);
    ck_assert(d->shape.vocabulary == VOCABULARY && d->target_bytes == 0);
    rm_dataset_close(d);
    d = open_ok((rm_data_source){.data = TEXT, .timesteps = 9});
    ck_assert_uint_eq(d->target_bytes, (uint64_t)(d->count * 9)); /* in bytes, each target is one */
    rm_dataset_close(d);
}
END_TEST

START_TEST(unsuitable_tokens_are_refused) {
    rm_data_source source = {.data = TEXT, .timesteps = 9, .tokenizer = TOKENIZER, .vocab = 640};
    rm_dataset *d = open_ok(source); /* as in padded models */
    ck_assert_int_eq(d->shape.vocabulary, 640);
    rm_dataset_close(d);
    source.vocab = 599;
    open_fails(source, REMAT_INVALID, "--vocab=599|600 tokens");
    source.vocab = 0;
    source.budget = 4096;
    open_fails(source, REMAT_INFEASIBLE, ".npy");
    source.budget = 0;
    source.timesteps = TOKENS;
    open_fails(source, REMAT_INVALID, "5076 tokens");
    source.tokenizer = TEXT;
    open_fails(source, REMAT_INVALID, "tokenizer.txt|line 3|empty");
    static const char few[] =
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}";
    source.tokenizer = make_file("few.json", few, sizeof few - 1);
    open_fails(source, REMAT_INVALID, "byte 0x");
}
END_TEST

/* ---- The program ------------------------------------------------------------------------------------------------ */

static double number_after(const char *text, const char *words) {
    const char *at = strstr(text, words);
    ck_assert_msg(at != NULL, "\"%s\" does not say \"%s\"", text, words);
    return strtod(at + strlen(words), NULL);
}

static bool same_files(const char *a, const char *b) {
    uint8_t *x, *y;
    size_t n, m;
    ck_ok(rm_file_read(a, 1 << 20, &x, &n));
    ck_ok(rm_file_read(b, 1 << 20, &y, &m));
    bool same = n == m && !memcmp(x, y, n);
    rm_free(x);
    rm_free(y);
    return same;
}

static const char *copy_of(const char *name, const char *path) {
    uint8_t *data;
    size_t size;
    ck_ok(rm_file_read(path, 1 << 20, &data, &size));
    const char *copy = make_file(name, data, size);
    rm_free(data);
    return copy;
}

static bool has_text(const char *path, const char *part) {
    uint8_t *text;
    size_t size;
    ck_ok(rm_file_read(path, 1 << 20, &text, &size));
    bool has = strstr((const char *)text, part) != NULL;
    rm_free(text);
    return has;
}

/* A run resumes, evaluates and samples with the state's own copy. Earlier states and the original file may be
 * deleted. */
START_TEST(states_contain_their_tokenizer) {
    const char *st = in_scratch("st"), *json = copy_of("t.json", TOKENIZER), *whole = in_scratch("whole");
    ck_runs("train --data=" TEXT " --tokenizer=%s " SMALL "--steps=7 --save=%s", json, whole);
    ck_runs("train --data=" TEXT " --tokenizer=%s " SMALL "--steps=2 --save=%s", json, st);
    ck_assert_int_eq(unlink(json), 0);
    ck_assert(has_text(in_scratch("st/step-00000002/state.json"), "\"vocab\": \"600\""));
    ck_runs("train --resume=%s --steps=7 --save-every=1 --keep=1", st);
    ck_assert(same_files(in_scratch("st/step-00000007/tokenizer.json"), TOKENIZER));
    ck_assert(same_files(in_scratch("st/step-00000007/model.safetensors"),
                         in_scratch("whole/step-00000007/model.safetensors")));
    ck_assert(!rm_path_exists(in_scratch("st/step-00000002")));             /* including its tokenizer.json */
    ck_runs("eval --resume=%s --data=" TEXT " --tokenizer=" TOKENIZER, st); /* the same tokenizer, given again */
    ck_refuses(2, "training state", "eval --resume=%s --data=" TEXT " --tokenizer=" GOLDEN "tokenizer_strings.json",
               st);
    const char *copy = in_scratch("st/step-00000007/tokenizer.json");
    ck_assert_int_eq(truncate(copy, 100), 0);
    ck_refuses(1, "tokenizer.json", "sample --resume=%s", st);
    ck_assert_int_eq(unlink(copy), 0);
    ck_refuses(1, "tokenizer.json", "sample --resume=%s", st);
}
END_TEST

/* A state with carried states, the average of the weights and a tokenizer: each is found by its name. */
START_TEST(states_contain_all_arrays) {
    const char *st = in_scratch("st"), *whole = in_scratch("whole");
    ck_runs("train --data=" TEXT " --tokenizer=" TOKENIZER " " SMALL "--stateful --ema=0.5 --steps=5 --save=%s", whole);
    ck_runs("train --data=" TEXT " --tokenizer=" TOKENIZER " " SMALL "--stateful --ema=0.5 --steps=2 --save=%s", st);
    ck_runs("train --resume=%s --steps=5", st);
    ck_assert(
        same_files(in_scratch("st/step-00000005/ema.safetensors"), in_scratch("whole/step-00000005/ema.safetensors")));
    ck_assert(same_files(in_scratch("st/step-00000005/carried.safetensors"),
                         in_scratch("whole/step-00000005/carried.safetensors")));
    ck_runs("sample --resume=%s --length=5", st);
}
END_TEST

/* Two ranks save the carried states and the tokenizer. */
START_TEST(ranks_save_the_tokenizer_once) {
    const char *st = in_scratch("st");
    ck_runs("train --devices=cpu:2 --data=" TEXT " --tokenizer=" TOKENIZER " " SMALL
            "--stateful --zero=1 --steps=2 --save=%s",
            st);
    ck_assert(same_files(in_scratch("st/step-00000002/tokenizer.json"), TOKENIZER));
    ck_runs("train --devices=cpu:2 --resume=%s --steps=3", st);
}
END_TEST

START_TEST(bits_per_byte_count_the_bytes_of_the_text) {
    const char *st = in_scratch("st");
    rm_dataset *d = open_ok((rm_data_source){.data = TEXT, .timesteps = 50, .tokenizer = TOKENIZER});
    double bytes_per_target = (double)d->target_bytes / (double)(d->count * 50);
    rm_dataset_close(d);
    ck_runs("train --data=" TEXT " --tokenizer=" TOKENIZER " " SMALL "--steps=2 --save=%s", st);
    ck_runs("eval --resume=%s --data=" TEXT " --json", st);
    double loss = number_after(program_output, "\"loss\":"), bits = number_after(program_output, "\"bits_per_byte\":");
    ck_assert_double_eq_tol(bits, loss / bytes_per_target / M_LN2, 1e-7 * bits); /* nine digits are printed */
    ck_assert(bytes_per_target > 1.5);
    ck_runs("eval --resume=%s --data=%s --json", st, make_npy_of_tokens());
    ck_assert_double_eq_tol(number_after(program_output, "\"loss\":"), loss, 1e-8 * loss);
    ck_assert_ptr_null(strstr(program_output, "bits_per_byte")); /* the bytes are unknown */
}
END_TEST

START_TEST(sampled_tokens_are_decoded_to_text) {
    static char first[256];
    const char *st = in_scratch("st"), *sample = "sample --resume=%s --length=20 --prompt=Before --seed=%d";
    ck_runs("train --data=" TEXT " --tokenizer=" TOKENIZER " " SMALL "--steps=3 --save=%s", st);
    ck_runs(sample, st, 1);
    ck_assert(!strncmp(program_output, "Before", 6) && strlen(program_output) > 20);
    memcpy(first, program_output, sizeof first);
    ck_runs(sample, st, 1);
    ck_assert(!memcmp(first, program_output, sizeof first));
    ck_runs(sample, st, 2);
    ck_assert(memcmp(first, program_output, sizeof first));
    ck_runs("sample --resume=%s --length=3 --top-k=300", st);
    ck_runs("train --model=gpt2 --data=" TEXT " --tokenizer=" TOKENIZER " " SMALL "--steps=2 --save=%s",
            in_scratch("gpt"));
    ck_runs("sample --resume=%s --length=60 --prompt=Before", in_scratch("gpt")); /* more tokens than positions */
    ck_runs("sample --init=%s/step-00000003/model.safetensors --tokenizer=" TOKENIZER " --length=2", st);
    ck_refuses(2, "--tokenizer|--task=copy", "train --task=copy --tokenizer=" TOKENIZER);
}
END_TEST

/* A model of plain token numbers writes numbers, or text if a tokenizer is given. */
START_TEST(numbers_are_written_without_a_tokenizer) {
    const char *st = in_scratch("st");
    int used, number, count = 0;
    ck_runs("train --data=%s --vocab=600 " SMALL "--steps=2 --save=%s", make_npy_of_tokens(), st);
    ck_runs("sample --resume=%s --length=5 --prompt=599,7", st);
    ck_assert(!strncmp(program_output, "599 7 ", 6));
    for (const char *at = program_output; sscanf(at, "%d%n", &number, &used) == 1; at += used, count++)
        ck_assert(number >= 0 && number < 600);
    ck_assert_int_eq(count, 7);
    ck_runs("sample --resume=%s --length=5", st);
    ck_refuses(2, "0|599", "sample --resume=%s --prompt=600", st);
    ck_refuses(2, "Before|whole number", "sample --resume=%s --prompt=Before", st);
    ck_refuses(2, "--prompt|empty", "sample --resume=%s --prompt=,", st);
    ck_runs("sample --resume=%s --length=5 --prompt=Before --tokenizer=" TOKENIZER, st);
    ck_assert(!strncmp(program_output, "Before", 6));
}
END_TEST

START_TEST(byte_models_refuse_a_tokenizer) {
    ck_runs("train --data=" TEXT " " SMALL "--steps=1 --save=%s", in_scratch("st"));
    ck_refuses(2, "tokens|bytes", "sample --resume=%s --tokenizer=" TOKENIZER, in_scratch("st"));
}
END_TEST

START_TEST(plan_needs_no_text) {
    ck_runs("plan --tokenizer=" TOKENIZER " " SMALL "--json");
    double params = number_after(program_output, "\"params_bytes\": ");
    ck_runs("plan --vocab=600 " SMALL "--json");
    ck_assert(number_after(program_output, "\"params_bytes\": ") == params);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("tokens");
    tcase_add_test(tests, texts_are_tokenized);
    tcase_add_test(tests, packed_and_encoded_texts_are_the_same_data);
    tcase_add_test(tests, unsuitable_tokens_are_refused);
    tcase_add_test(tests, states_contain_their_tokenizer);
    tcase_add_test(tests, states_contain_all_arrays);
    tcase_add_test(tests, ranks_save_the_tokenizer_once);
    tcase_add_test(tests, bits_per_byte_count_the_bytes_of_the_text);
    tcase_add_test(tests, sampled_tokens_are_decoded_to_text);
    tcase_add_test(tests, numbers_are_written_without_a_tokenizer);
    tcase_add_test(tests, byte_models_refuse_a_tokenizer);
    tcase_add_test(tests, plan_needs_no_text);
    return run_suite("tokens", tests);
}
