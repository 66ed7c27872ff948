/* test_tied.c: recurrent language models with tied embeddings (--tie-embeddings): one array, the same bits under every
 * plan, files with one or both names for it. test_model_golden.c compares with PyTorch. */
#define _GNU_SOURCE
#include "train/models/family.h"
#include "train/state/weights.h"

#include "memory/host.h"
#include "tests/train/train_test.h"

enum { T = 6, H = 8, V = 256 };
#define SMALL "--layers=2 --hidden=8 --seq-len=60 --batch=4 --tile=10 --threads=1 "

/* ---- Files ------------------------------------------------------------------------------------------------------ */

typedef struct {
    rm_model model;
    remat_session *session;
} built;

static built build_model(const char *cell, bool tied) {
    built b;
    rm_model_spec spec = {.name = cell, .layers = 1, .hidden = H, .embed = H};
    spec.tie_embeddings = tied && strcmp(cell, "gpt2");
    spec.no_tie = !tied && !strcmp(cell, "gpt2");
    spec.data = rm_text_shape(T, V);
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.seed = tied;
    ck_ok(rm_model_build(&spec, 1, true, &b.model));
    ck_ok(remat_session_create(b.model.graph, b.model.loss, &config, &b.session));
    return b;
}

static built build(bool tied) { return build_model("gru", tied); }

static void release(built *b) {
    remat_session_free(b->session);
    rm_model_free(&b->model);
}

static void save(built *b, const char *path) {
    rm_file_writer writer;
    ck_ok(rm_weights_save(b->session, REMAT_PARAM, path, &writer));
}

static const float *values(built *b, const char *name) {
    static float data[V * H];
    ck_ok(remat_read(b->session, REMAT_PARAM, remat_find(b->session, REMAT_PARAM, name), data, sizeof data));
    return data;
}

/* state_dict() has both names. If the arrays differ, the file belongs to another model. */
START_TEST(files_may_have_both_names) {
    built tied = build(true), untied = build(false);
    const char *path = in_scratch("both.safetensors");
    float table[V * H];
    memcpy(table, values(&untied, "embedding.weight"), sizeof table);
    ck_assert_int_eq(remat_find(tied.session, REMAT_PARAM, "head.weight"), -1);
    save(&untied, path);
    ck_fails(rm_weights_import(tied.session, path, NULL), REMAT_INVALID,
             "'embedding.weight' and 'head.weight' differ, so the head is not tied to the embedding: remove "
             "--tie-embeddings");
    ck_ok(remat_write(untied.session, REMAT_PARAM, remat_find(untied.session, REMAT_PARAM, "head.weight"), table,
                      sizeof table));
    save(&untied, path);
    ck_ok(rm_weights_import(tied.session, path, NULL));
    ck_assert(!memcmp(values(&tied, "embedding.weight"), table, sizeof table));
    release(&tied);
    release(&untied);
}
END_TEST

/* safetensors' save_model() may write either name alone. */
START_TEST(files_may_have_either_name) {
    static const char *const kind[][3] = {{"gru", "embedding.weight", "head.weight"},
                                          {"mamba", "backbone.embeddings.weight", "lm_head.weight"}};
    const char *ours = kind[_i][1];
    built tied = build_model(kind[_i][0], true);
    const char *path = in_scratch("one.safetensors");
    char other[32];
    float table[V * H], zeros[V * H] = {0};
    uint8_t *file;
    size_t size;
    memcpy(table, values(&tied, ours), sizeof table);
    save(&tied, path);
    ck_ok(rm_file_read(path, 1 << 20, &file, &size));
    char *name = memmem(file, size, ours, strlen(ours));
    ck_assert_ptr_nonnull(name);
    snprintf(other, sizeof other, "%s\"%*s", kind[_i][2], (int)(strlen(ours) - strlen(kind[_i][2])), "");
    memcpy(name, other, strlen(ours) + 1);
    path = make_file("head.safetensors", file, size);
    rm_free(file);
    ck_ok(remat_write(tied.session, REMAT_PARAM, remat_find(tied.session, REMAT_PARAM, ours), zeros, sizeof zeros));
    ck_ok(rm_weights_import(tied.session, path, NULL));
    ck_assert(!memcmp(values(&tied, ours), table, sizeof table));
    release(&tied);
}
END_TEST

static bool is_untied(const char *path) {
    bool untied = false;
    rm_model_found found;
    ck_ok(rm_model_recognise(path, NULL, &found));
    ck_assert_str_eq(found.model, "gpt2");
    for (int i = 0; i < found.n; i++) untied = untied || !strcmp(found.flag[i].flag, "no-tie");
    return untied;
}

/* GPT-2's files name the head separately, usually with the numbers of the embedding. */
START_TEST(head_of_gpt2_is_compared_with_the_embedding) {
    built tied = build_model("gpt2", true), untied = build_model("gpt2", false);
    const char *path = in_scratch("gpt2.safetensors");
    float table[V * H], head[V * H];
    memcpy(table, values(&untied, "wte.weight"), sizeof table);
    memcpy(head, values(&untied, "lm_head.weight"), sizeof head);
    save(&untied, path);
    ck_assert(is_untied(path));
    ck_fails(rm_weights_import(tied.session, path, NULL), REMAT_INVALID, "wte.weight|lm_head.weight|differ|--no-tie");
    ck_ok(rm_weights_import(tied.session, path, "wte."));
    ck_ok(rm_weights_import(untied.session, path, NULL));
    ck_assert(!memcmp(values(&untied, "lm_head.weight"), head, sizeof head));
    int64_t at = remat_find(untied.session, REMAT_PARAM, "lm_head.weight");
    ck_ok(remat_write(untied.session, REMAT_PARAM, at, table, sizeof table));
    save(&untied, path);
    ck_assert(!is_untied(path));
    ck_ok(rm_weights_import(tied.session, path, NULL));
    ck_assert(!memcmp(values(&tied, "wte.weight"), table, sizeof table));
    release(&tied);
    release(&untied);
}
END_TEST

/* A file with one additional array of bytes. */
static const char *with_mask(const uint8_t *file, size_t size, const uint8_t *mask) {
    static uint8_t all[1 << 16];
    uint64_t length;
    memcpy(&length, file, 8);
    size_t data = size - 8 - length, cut = 8 + length;
    while (file[cut - 1] != '}') cut--;
    memcpy(all, file, --cut);
    int more =
        sprintf((char *)all + cut,
                ",\"transformer.h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[1,1,%d,%d],\"data_offsets\":[%zu,%zu]}}",
                T, T, data, data + T * T);
    uint64_t now = cut + (size_t)more - 8;
    memcpy(all, &now, 8);
    memcpy(all + 8 + now, file + 8 + length, data);
    memcpy(all + 8 + now + data, mask, T * T);
    return make_file("masked.safetensors", all, 8 + now + data + T * T);
}

START_TEST(non_causal_masks_are_refused) {
    built tied = build_model("gpt2", true);
    const char *path = in_scratch("plain.safetensors");
    uint8_t *file, mask[T * T];
    size_t size;
    save(&tied, path);
    ck_ok(rm_file_read(path, 1 << 20, &file, &size));
    for (int i = 0; i < T * T; i++) mask[i] = i % T <= i / T;
    ck_ok(rm_weights_import(tied.session, with_mask(file, size, mask), NULL));
    mask[1] = 1;
    ck_fails(rm_weights_import(tied.session, with_mask(file, size, mask), NULL), REMAT_INVALID,
             "transformer.h.0.attn.bias|causal mask");
    rm_free(file);
    release(&tied);
}
END_TEST

/* ---- The program ------------------------------------------------------------------------------------------------ */

START_TEST(tied_models_have_the_same_bits_in_every_plan) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    ck_runs("train --tie-embeddings --data=%s " SMALL "--steps=4 --metrics=%s", text, in_scratch("a.jsonl"));
    ck_runs("train --tie-embeddings --data=%s " SMALL "--steps=4 --metrics=%s --checkpoint-segments=3", text,
            in_scratch("b.jsonl"));
    ck_runs("train --tie-embeddings --data=%s " SMALL "--steps=2 --metrics=%s --save=%s --checkpoint=lean", text,
            in_scratch("c.jsonl"), st);
    ck_runs("train --resume=%s --steps=4 --metrics=%s", st, in_scratch("c.jsonl"));
    ck_runs("report --require-identical %s %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"), in_scratch("c.jsonl"));
    ck_runs("sample --resume=%s --length=9", st);
    ck_refuses(2, "--tie-embeddings=false", "eval --resume=%s --data=%s --tie-embeddings=false", st, text);
}
END_TEST

/* A file with a head's bias but without its weight implies tied embeddings. */
START_TEST(weights_imply_tied_embeddings) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    ck_runs("train --tie-embeddings --model=gru --data=%s " SMALL "--steps=1 --save=%s", text, st);
    ck_runs("eval --init=%s/step-00000001/model.safetensors --seq-len=60 --data=%s", st, text);
    ck_refuses(2, "--tie-embeddings=false",
               "eval --init=%s/step-00000001/model.safetensors --seq-len=60 --data=%s --tie-embeddings=false", st,
               text);
}
END_TEST

START_TEST(unsupported_tying_is_refused) {
    ck_refuses(2, "--embed=4|--hidden=8", "plan --tie-embeddings --embed=4 --hidden=8");
    ck_refuses(2, "--tie-embeddings|--model=gpt2", "plan --tie-embeddings --model=gpt2");
    ck_refuses(2, "--tie-embeddings|--task=copy", "plan --tie-embeddings --task=copy");
    ck_refuses(2, "--tie-embeddings|--init-head=new",
               "train --task=lm --model=lstm --tie-embeddings --init-head=new --init=a.safetensors");
    const char *rest = "--embed=8 --hidden=8 --layers=1 --seq-len=16 --batch=2 --threads=1 --steps=1";
    const char *text = make_text("text", 4096);
    static const char *const groups[] = {"head:lr=0", "rnn,head.:lr=0", "rnn:lr=2;d.w,head:lr=0"};
    static const char *const kept[] = {"head,emb:lr=0", "head.bias:lr=0", "embedding:lr=2;head:lr=0"};
    for (int i = 0; i < 3; i++) {
        ck_refuses(2, "group|embedding|head.bias", "train --tie-embeddings --groups=%s --data=%s %s", groups[i], text,
                   rest);
        ck_runs("train --tie-embeddings --groups=%s --data=%s %s", kept[i], text, rest);
    }
    ck_refuses(2, "trained|embedding.|head.bias", "train --data=%s --tie-embeddings --train-only=head. %s", text, rest);
    ck_runs("train --data=%s --tie-embeddings --train-only=head.,embedding. %s", text, rest);
    ck_runs("train --data=%s --tie-embeddings --train-only=head.bias %s", text, rest);
    ck_runs("train --data=%s --train-only=head. %s", text, rest);
}
END_TEST

#define GPT "--model=gpt2 --layers=1 --hidden=8 --seq-len=60 --batch=4 --threads=1 "

/* A file implies it if its two arrays differ; a training state has the flag. */
START_TEST(weights_imply_an_untied_head) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    char weights[300];
    snprintf(weights, sizeof weights, "%s/step-00000004/model.safetensors", st);
    ck_runs("train --no-tie --data=%s " GPT "--steps=4 --metrics=%s", text, in_scratch("a.jsonl"));
    ck_runs("train --no-tie --data=%s " GPT "--steps=2 --metrics=%s --save=%s", text, in_scratch("b.jsonl"), st);
    ck_runs("train --resume=%s --steps=4 --metrics=%s", st, in_scratch("b.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
    ck_runs("eval --resume=%s --data=%s --json", st, text);
    char *loss = strdup(strstr(program_output, "\"loss\""));
    ck_runs("eval --init=%s --data=%s --seq-len=60 --batch=4 --json", weights, text);
    ck_assert_int_eq(strncmp(loss, strstr(program_output, "\"loss\""), 20), 0);
    free(loss);
    ck_refuses(2, "--no-tie=false", "eval --init=%s --data=%s --seq-len=60 --no-tie=false", weights, text);
    ck_refuses(2, "--no-tie=false", "eval --resume=%s --data=%s --no-tie=false", st, text);
    ck_refuses(2, "--no-tie|--model=gru", "plan --no-tie --model=gru");
    ck_runs("train --init=%s --init-head=new --train-only=lm_head. --data=%s " GPT "--steps=1", weights, text);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("tied");
    tcase_add_test(tests, files_may_have_both_names);
    tcase_add_loop_test(tests, files_may_have_either_name, 0, 2);
    tcase_add_test(tests, head_of_gpt2_is_compared_with_the_embedding);
    tcase_add_test(tests, non_causal_masks_are_refused);
    tcase_add_test(tests, tied_models_have_the_same_bits_in_every_plan);
    tcase_add_test(tests, weights_imply_an_untied_head);
    tcase_add_test(tests, weights_imply_tied_embeddings);
    tcase_add_test(tests, unsupported_tying_is_refused);
    return run_suite("tied", tests);
}
