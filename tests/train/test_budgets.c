/* test_budgets.c: budgets that are too small, for every task and kind of data: exit status 2, and the smallest budget,
 * exact to the byte. tests/memory/test_schedule.c tests plans under a budget, tests/engine/test_budget.c the engine's
 * count. */
#include "tests/suite.h"
#include "tests/train/train_test.h"

#include <zlib.h>

enum { N = 16, T = 12, SIDE = 32 };

static uint32_t number(int i) { return (uint32_t)i * 2654435761u >> 8; }

static void make_gz(const char *name) {
    static char bytes[1 << 16];
    char packed[300];
    FILE *file = fopen(in_scratch(name), "rb");
    size_t size = fread(bytes, 1, sizeof bytes, file);
    ck_assert_int_eq(fclose(file), 0);
    snprintf(packed, sizeof packed, "%s.gz", in_scratch(name));
    gzFile out = gzopen(packed, "wb");
    ck_assert_int_eq(gzwrite(out, bytes, (unsigned)size), (int)size);
    ck_assert_int_eq(gzclose(out), Z_OK);
}

static void make_sequences(void) {
    float x[N][T][2], values[N][T][2];
    uint8_t label[N], tag[N][T];
    int64_t transcript[N][2], length[N];
    for (int i = 0; i < N; i++) {
        label[i] = (uint8_t)(i % 3);
        length[i] = T - i % 4;
        transcript[i][0] = 1 + i % 3;
        transcript[i][1] = i % 2 ? 2 : -1;
        for (int t = 0; t < T; t++) {
            tag[i][t] = (uint8_t)((i + t) % 3);
            for (int k = 0; k < 2; k++) x[i][t][k] = values[i][t][k] = (float)(number(i * 99 + t * 2 + k) % 100) / 100;
        }
    }
    make_npy("x.npy", "<f4", "(16, 12, 2)", x, sizeof x);
    make_npy("values.npy", "<f4", "(16, 12, 2)", values, sizeof values);
    make_npy("y.npy", "|u1", "(16,)", label, sizeof label);
    make_npy("tags.npy", "|u1", "(16, 12)", tag, sizeof tag);
    make_npy("transcripts.npy", "<i8", "(16, 2)", transcript, sizeof transcript);
    make_npy("lengths.npy", "<i8", "(16,)", length, sizeof length);
    make_gz("x.npy");
}

static void make_images(void) {
    static uint8_t image[2][3][SIDE][SIDE], pixel[2][SIDE][SIDE],
        idx[16 + N * 49] = {0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, 7, 0, 0, 0, 7}, label[8 + N] = {0, 0, 8, 1, 0, 0, 0, N};
    for (size_t i = 0; i < sizeof image; i++) (&image[0][0][0][0])[i] = (uint8_t)number((int)i);
    for (size_t i = 0; i < sizeof pixel; i++) (&pixel[0][0][0])[i] = number((int)i) % 2;
    for (int i = 16; i < (int)sizeof idx; i++) idx[i] = (uint8_t)number(i);
    for (int i = 8; i < (int)sizeof label; i++) label[i] = (uint8_t)(i % 10);
    make_npy("images.npy", "|u1", "(2, 3, 32, 32)", image, sizeof image);
    make_npy("pixels.npy", "|u1", "(2, 32, 32)", pixel, sizeof pixel);
    make_npy("kinds.npy", "|u1", "(2,)", "\0\1", 2);
    make_file("images.idx", idx, sizeof idx);
    make_file("labels.idx", label, sizeof label);
    make_gz("images.idx");
}

static void make_texts(void) {
    uint16_t token[500];
    for (int i = 0; i < 500; i++) token[i] = (uint16_t)(number(i) % 50);
    make_file("tokens.bin", token, sizeof token);
    make_npy("tokens.npy", "<u2", "(500,)", token, sizeof token);
    make_text("text", 2000);
    make_gz("text");
    make_text("other", 2000);
}

/* Writes `flags` with every @NAME as a path in the scratch directory. */
static const char *with_paths(const char *flags) {
    static char line[2048];
    char *out = line;
    for (; *flags; flags++)
        if (*flags == '@')
            out += sprintf(out, "%s/", scratch());
        else
            *out++ = *flags;
    *out = 0;
    return line;
}

static uint64_t least_in(const char *sentence) {
    const char *at = strstr(sentence, "\n  --memory-budget=");
    ck_assert_msg(at, "no smallest budget: %s", sentence);
    return strtoull(at + strlen("\n  --memory-budget="), NULL, 10);
}

#define RNN "--hidden=4 --layers=1 --batch=4 "
#define TOKENIZER "--tokenizer=" RM_SOURCE_DIR "/tests/golden/tokenizer.json "
static const char *const kinds[] = {
    RNN "--seq-len=20 --data=@text",
    RNN "--seq-len=20 --data=@text.gz",
    RNN "--seq-len=20 --data=@tokens.npy --vocab=50",
    RNN "--seq-len=20 --data=@tokens.bin --vocab=50",
    RNN "--seq-len=20 --data=@text " TOKENIZER,
    RNN "--seq-len=20 --data=@text.gz --stateful " TOKENIZER,
    RNN "--seq-len=20 --data=@text.gz --eval-data=@text.gz --eval-every=1 --ema=0.9",
    RNN "--seq-len=20 --data=@text.gz --model=gpt2 --heads=2 --accumulate-steps=2",
    RNN "--task=classify --data=@x.npy --labels=@y.npy --class-weights=1,2,3",
    RNN "--task=classify --data=@x.npy.gz --labels=@y.npy",
    RNN "--task=classify --data=@x.npy --labels=@tags.npy --lengths=@lengths.npy --bucket-by-length",
    RNN "--task=classify --data=@images.idx --labels=@labels.idx",
    RNN "--task=classify --data=@images.idx.gz --labels=@labels.idx --rows",
    RNN "--task=regress --data=@x.npy --labels=@values.npy",
    RNN "--task=transcribe --data=@x.npy.gz --labels=@transcripts.npy",
    RNN "--task=seq2seq --data=@text --labels=@other",
    RNN "--task=seq2seq --data=@text.gz --labels=@other --bidirectional --layers=2",
    RNN "--task=seq2seq --data=@text --labels=@other " TOKENIZER,
    RNN "--task=seq2seq --generate=reverse --samples=20",
    RNN "--task=adding --samples=20 --seq-len=20 --bidirectional",
    RNN "--task=copy --samples=20",
    RNN "--task=s5 --samples=20",
    RNN "--task=classify --model=mlp --data=@images.idx --labels=@labels.idx",
    ("--batch=2 --task=classify --model=resnet18 --stem=cifar --data=@images.npy --labels=@kinds.npy "
     "--loader-threads=1"),
    "--batch=2 --task=classify --model=unet --hidden=2 --layers=2 --data=@images.npy --labels=@pixels.npy",
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* A budget of one byte, which is less than the data alone need, is refused like any other. */
START_TEST(smallest_budget_of_every_task_is_exact) {
    make_texts();
    make_sequences();
    make_images();
    const char *flags = with_paths(kinds[_i]);
    ck_assert_msg(run_program("plan --calibration=off --memory-budget=1 %s", flags) == 2, "%s", program_errors);
    unsigned long long least = least_in(program_errors);
    ck_assert_msg(run_program("plan --calibration=off --memory-budget=%llu %s", least, flags) == 0, "%s",
                  program_errors);
    ck_assert_msg(run_program("train --calibration=off --memory-budget=%llu --steps=1 %s", least - 1, flags) == 2, "%s",
                  program_errors);
    ck_assert_uint_eq(least_in(program_errors), least);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("budgets");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, smallest_budget_of_every_task_is_exact, 0, KINDS);
    return run_cases("budgets", tcase);
}
