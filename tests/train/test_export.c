/* test_export.c: `remat export` writes weights with the names and layout of nanoGPT's state_dict, and --init reads them. */
#include "tests/train/train_test.h"

#include "train/state/safetensors.h"

#define GPT2 "--model=gpt2 --layers=2 --hidden=24 --heads=2 --positions=64 --seq-len=16 --batch=2 "

/* Paths of: the text; weights of a trained gpt2; the same as nanoGPT has them. */
static char text[300], ours[300], theirs[300];

/* With nanoGPT's bias=False if `flags` say so. */
static void train_with(const char *flags) {
    snprintf(text, sizeof text, "%s", make_text("text", 2000));
    snprintf(theirs, sizeof theirs, "%s", in_scratch("nanogpt.safetensors"));
    snprintf(ours, sizeof ours, "%s/step-00000001/model.safetensors", in_scratch("st"));
    ck_runs("train --data=%s " GPT2 "--steps=1 %s --save=%s", text, flags, in_scratch("st"));
    ck_runs("export --resume=%s --names=nanogpt --out=%s", in_scratch("st"), theirs);
}

static void train(void) { train_with(""); }

static float element(const char *path, const char *name, int64_t i) {
    rm_safetensors file;
    float x;
    ck_ok(rm_safetensors_open(path, &file));
    const rm_st_array *array = rm_safetensors_find(&file, name);
    ck_assert_msg(array != NULL, "%s has no %s", path, name);
    ck_ok(rm_file_read_at(file.fd, path, file.data_start + array->begin + 4 * (uint64_t)i, &x, sizeof x));
    rm_safetensors_free(&file);
    return x;
}

static void ck_same_files(const char *a, const char *b) {
    char command[700];
    snprintf(command, sizeof command, "cmp %s %s", a, b);
    ck_assert_msg(system(command) == 0, "%s and %s differ", a, b);
}

/* tests/golden/shapes.txt has the names and shapes of PyTorch's state_dict. */
START_TEST(names_and_shapes_are_those_of_nanogpt) {
    char line[256], name[96];
    rm_safetensors file;
    int64_t n = 0;
    train_with(_i ? "--no-bias" : "");
    FILE *golden = fopen(RM_SOURCE_DIR "/tests/golden/shapes.txt", "r");
    ck_assert_ptr_nonnull(golden);
    ck_ok(rm_safetensors_open(theirs, &file));
    while (fgets(line, sizeof line, golden) && strcmp(line, _i ? "nanogpt bias=False\n" : "nanogpt\n")) continue;
    for (; fgets(line, sizeof line, golden) && *line == ' '; n++) {
        int used;
        ck_assert_int_eq(sscanf(line, "%95s%n", name, &used), 1);
        const rm_st_array *array = rm_safetensors_find(&file, name);
        ck_assert_msg(array != NULL, "%s is missing", name);
        char *rest = line + used;
        for (int d = 0; d < array->rank; d++)
            ck_assert_msg(strtoll(rest, &rest, 10) == array->dim[d], "%s has another shape", line);
        ck_assert_msg(*rest == '\n', "%s has a lower rank", line);
    }
    ck_assert_int_eq(n, file.count);
    ck_assert_int_gt(n, 0);
    rm_safetensors_free(&file);
    fclose(golden);
}
END_TEST

START_TEST(products_are_transposed) {
    train();
    for (int64_t i = 0; i < 24; i += 5)
        for (int64_t j = 0; j < 72; j += 7)
            ck_assert(element(ours, "h.1.attn.c_attn.weight", i * 72 + j) ==
                      element(theirs, "transformer.h.1.attn.c_attn.weight", j * 24 + i));
    ck_assert(element(ours, "h.0.attn.c_proj.weight", 3 * 24 + 7) ==
              element(theirs, "transformer.h.0.attn.c_proj.weight", 7 * 24 + 3));
    ck_assert(element(ours, "wte.weight", 100) == element(theirs, "lm_head.weight", 100));
}
END_TEST

START_TEST(weights_come_back_to_the_bit) {
    char losses[2][200];
    char *back = in_scratch("back.safetensors"), *again = in_scratch("again.safetensors");
    train_with(_i ? "--no-bias" : "");
    ck_runs("export --init=%s --out=%s", theirs, back);
    ck_same_files(ours, back);
    ck_runs("export --init=%s --names=nanogpt --out=%s", theirs, again);
    ck_same_files(theirs, again);
    for (int i = 0; i < 2; i++) { /* --init finds the layout, and the flags, itself */
        ck_runs("eval --init=%s --heads=2 --data=%s --seq-len=16", i ? theirs : ours, text);
        snprintf(losses[i], sizeof losses[i], "%s", strstr(program_output, "loss"));
    }
    ck_assert_str_eq(losses[0], losses[1]);
}
END_TEST

START_TEST(other_exports_are_refused) {
    train();
    ck_refuses(2, "--resume|--init", "export --out=%s", theirs);
    ck_refuses(2, "--out", "export --init=%s", ours);
    ck_runs("train --data=%s --model=gru --layers=1 --hidden=8 --seq-len=16 --steps=1 --save=%s", text,
            in_scratch("gru"));
    ck_refuses(2, "nanogpt|gpt2", "export --resume=%s --names=nanogpt --out=%s", in_scratch("gru"), in_scratch("x"));
    ck_runs("export --resume=%s --out=%s", in_scratch("gru"), in_scratch("gru.safetensors"));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("export");
    tcase_add_loop_test(tests, names_and_shapes_are_those_of_nanogpt, 0, 2);
    tcase_add_test(tests, products_are_transposed);
    tcase_add_loop_test(tests, weights_come_back_to_the_bit, 0, 2);
    tcase_add_test(tests, other_exports_are_refused);
    return run_suite("train/export", tests);
}
