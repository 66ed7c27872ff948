/* test_model_golden.c: the models mingru, minlstm, mamba, mamba2, gdn, xlstm and gpt2, an lstm with tied embeddings, and a bidirectional lstm
 * with projections. Loss and gradients match minGRU-pytorch's, Hugging Face's and PyTorch's under several plans
 * (tests/golden); no timestep's result depends on later ones.
 *
 * Tolerance, in units of 2^-24 times an array's largest magnitude, as in tests/engine/test_golden.c:
 * minGRU-pytorch's own float run, in log space, stays within 40 of its double run (make.py prints it). Remat's has
 * no logarithms; the limit is 48. */
#include "train/models/model.h"

#include "tests/golden/golden.h"
#include "tests/train/train_test.h"

#include <math.h>

#define LIMIT 48
enum { T = 7, B = 3, V = 11, H = 6, MOST = 1024, PLANS = 3 };
static const char *const cells[] = {"mingru",      "minlstm",       "gpt2", "mamba", "lstm_tied", "lstm_projected_both",
                                    "gpt2_untied", "mingru_no_conv"}; /* names of the files */
enum { CELLS = 8, GPT2 = 2, TIED = 4, PROJECTED, UNTIED, NO_CONV };
static const int arrays[CELLS] = {1 + 2 * 12 + 2, 1 + 2 * 12 + 2,    2 + 2 * 12 + 2, 1 + 2 * 10 + 1,
                                  1 + 2 * 4 + 1,  1 + 2 * 2 * 5 + 2, 2 + 2 * 12 + 3, 1 + 2 * 8 + 2};

typedef struct {
    rm_model model;
    remat_session *session;
    golden *file;
} fixture;

static fixture start(const char *cell, int plan, bool inference) {
    fixture f = {.file = golden_open(cell)};
    rm_model_spec spec = {.name = cell, .layers = 2, .hidden = H, .embed = H};
    if (!strcmp(cell, cells[UNTIED])) spec.name = cells[GPT2], spec.no_tie = true;
    if (!strcmp(cell, cells[NO_CONV])) spec.name = "mingru", spec.no_conv = true;
    if (!strcmp(spec.name, cells[GPT2])) spec.heads = 2, spec.positions = T + 2;
    if (!strcmp(cell, cells[TIED])) spec.name = "lstm", spec.tie_embeddings = true;
    if (!strcmp(cell, cells[PROJECTED])) spec.name = "lstm", spec.projection = 3, spec.bidirectional = true;
    spec.data = (rm_data_shape){.timesteps = T, .vocabulary = V, .classes = V, .every_step = true};
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = plan == 2 ? 2 : 1;
    config.strategy = plan == 1 ? "segments" : plan == 2 ? "lean" : "none";
    config.segments = plan == 1 ? 3 : 0;
    config.tile = plan ? 2 : 0;
    config.fold_embedding = plan == 1; /* also with tied embeddings */
    config.inference = inference;
    config.outputs = &f.model.logits;
    config.n_outputs = 1;
    ck_ok(rm_model_build(&spec, B, true, &f.model));
    ck_ok(remat_session_create(f.model.graph, f.model.loss, &config, &f.session));
    for (int64_t i = 0; i < remat_count(f.session, REMAT_PARAM); i++) {
        remat_array info;
        ck_ok(remat_array_info(f.session, REMAT_PARAM, i, &info));
        const golden_array *start = golden_find(f.file, "parameter", info.name);
        ck_assert_int_eq(start->rank, info.rank);
        for (int k = 0; k < info.rank; k++) ck_assert_int_eq(start->dim[k], info.dim[k]);
        ck_ok(remat_write(f.session, REMAT_PARAM, i, start->data, info.bytes));
    }
    for (int i = 0; i < 2; i++) /* the first of ten batches */
        ck_ok(remat_write(f.session, REMAT_INPUT, i, golden_find(f.file, i ? "target" : "input", NULL)->data,
                          T * B * sizeof(int32_t)));
    return f;
}

static void done(fixture *f) {
    remat_session_free(f->session);
    rm_model_free(&f->model);
    golden_close(f->file);
}

START_TEST(loss_and_gradients_match_the_references) {
    fixture f = start(cells[_i / PLANS], _i % PLANS, false);
    static float data[MOST];
    remat_step_result r;
    ck_ok(remat_gradients(f.session, &r));
    float loss = (float)r.loss;
    golden_compare(golden_find(f.file, "loss", NULL), &loss, LIMIT);
    int64_t count = remat_count(f.session, REMAT_GRADIENT);
    ck_assert_int_eq(count, arrays[_i / PLANS]); /* every array of the reference */
    for (int64_t i = 0; i < count; i++) {
        remat_array info;
        ck_ok(remat_array_info(f.session, REMAT_GRADIENT, i, &info));
        ck_assert_uint_le(info.bytes, sizeof data);
        ck_ok(remat_read(f.session, REMAT_GRADIENT, i, data, info.bytes));
        golden_compare(golden_find(f.file, "gradient", info.name), data, LIMIT);
    }
    done(&f);
}
END_TEST

/* The reference's convolutions once read later timesteps, and its validation loss was too low. */
START_TEST(results_do_not_depend_on_later_timesteps) {
    fixture f = start(cells[_i / 2], _i % 2, true);
    int32_t token[T][B];
    static float before[T][B][V], after[T][B][V];
    remat_step_result r;
    memcpy(token, golden_find(f.file, "input", NULL)->data, sizeof token);
    ck_ok(remat_evaluate(f.session, &r));
    ck_ok(remat_read(f.session, REMAT_OUTPUT, 0, before, sizeof before));
    for (int t = 0; t < T; t++) {
        token[t][1] = (token[t][1] + 1) % V;
        ck_ok(remat_write(f.session, REMAT_INPUT, 0, token, sizeof token));
        ck_ok(remat_evaluate(f.session, &r));
        ck_ok(remat_read(f.session, REMAT_OUTPUT, 0, after, sizeof after));
        token[t][1] = (token[t][1] + V - 1) % V;
        ck_assert_msg(!memcmp(before, after, (size_t)t * sizeof *before), "a token at t = %d changes what was before",
                      t);
        for (int later = t; later < T; later++) {
            ck_assert_msg(memcmp(before[later][1], after[later][1], sizeof after[0][0]), "t = %d does not reach %d", t,
                          later);
            for (int b = 0; b < B; b += 2)
                ck_assert_msg(!memcmp(before[later][b], after[later][b], sizeof after[0][0]), "another row changes");
        }
    }
    done(&f);
}
END_TEST

/* Parameter i of the names in alphabetical order is 0.2 sin(i + 0.7 n), except those that the file holds
 * (tests/golden/make_whole.py). */
static void fill_whole(remat_session *s, golden *file) {
    static float data[1 << 14];
    int64_t count = remat_count(s, REMAT_PARAM);
    for (int64_t i = 0; i < count; i++) {
        remat_array own, other;
        char name[128];
        int before = 0;
        ck_ok(remat_array_info(s, REMAT_PARAM, i, &own));
        snprintf(name, sizeof name, "parameter/%s", own.name);
        const golden_array *held = NULL;
        for (int a = 0; a < file->count; a++)
            if (!strcmp(file->array[a].name, name)) held = &file->array[a];
        for (int64_t j = 0; j < count; j++) {
            ck_ok(remat_array_info(s, REMAT_PARAM, j, &other));
            before += strcmp(other.name, own.name) < 0;
        }
        ck_assert_uint_le(own.bytes, sizeof data);
        for (int64_t n = 0; n < own.count; n++) data[n] = (float)(0.2 * sin((double)before + 0.7 * (double)n));
        if (held) ck_assert_int_eq(held->count, own.count);
        ck_ok(remat_write(s, REMAT_PARAM, i, held ? held->data : data, own.bytes));
    }
}

static double number_of(golden *file, const char *kind, const char *name) {
    double number;
    memcpy(&number, golden_find(file, kind, name)->data, sizeof number);
    return number;
}

/* The 2-norm of every gradient. Float errors stay below 3e-7 of it, but for the first layer of gdn, whose q and k are
 * nearly parallel to their gradients: 1.6e-5. Gradients that are 0 in exact arithmetic are compared with the largest. */
static void compare_norms(remat_session *s, golden *file) {
    static float data[1 << 14];
    double largest = 0;
    int norms = 0;
    for (int a = 0; a < file->count; a++)
        if (!strncmp(file->array[a].name, "norm/", 5)) norms++, largest = fmax(largest, *(double *)file->array[a].data);
    ck_assert_int_eq(norms, remat_count(s, REMAT_GRADIENT));
    for (int64_t i = 0; i < norms; i++) {
        remat_array info;
        double sum = 0;
        ck_ok(remat_array_info(s, REMAT_GRADIENT, i, &info));
        ck_assert_uint_le(info.bytes, sizeof data);
        ck_ok(remat_read(s, REMAT_GRADIENT, i, data, info.bytes));
        for (int64_t n = 0; n < info.count; n++) sum += (double)data[n] * data[n];
        double expected = number_of(file, "norm", info.name), difference = fabs(sqrt(sum) - expected);
        ck_assert_msg(difference <= 4e-5 * expected + 2e-7 * largest, "the gradient of %s has norm %.8g, not %.8g",
                      info.name, sqrt(sum), expected);
    }
}

/* The loss and the norms of the gradients of tiny models of Hugging Face and xlstm, and of M2RNN and RWKV-7 by their equations. */
static const struct {
    const char *file;
    rm_model_spec spec;
} whole[] = {
    {"mamba", {.name = "mamba", .layers = 2}},
    {"mamba2", {.name = "mamba2", .layers = 2, .heads = 4, .no_tie = true}},
    {"mamba2_groups", {.name = "mamba2", .layers = 2, .heads = 4, .state_size = 5, .n_groups = 2, .no_tie = true}},
    {"gdn", {.name = "gdn", .layers = 2, .heads = 2}},
    {"gdn_negative", {.name = "gdn", .layers = 2, .heads = 2, .allow_neg_eigval = true}},
    {"m2rnn", {.name = "m2rnn", .layers = 2, .heads = 2}},
    {"rwkv7", {.name = "rwkv7", .layers = 2, .heads = 2}},
    {"xlstm", {.name = "xlstm", .layers = 2, .heads = 2}},
    {"xlstm_both", {.name = "xlstm", .layers = 2, .heads = 2, .slstm_at = "1"}},
    {"xlstm_large", {.name = "xlstm_large", .layers = 2, .heads = 2}},
    {"recurrentgemma", {.name = "recurrentgemma", .layers = 2, .heads = 2}},
    {"griffin", {.name = "recurrentgemma", .layers = 3, .heads = 2, .attention_window = 4}},
};
START_TEST(whole_models_match_their_libraries) {
    enum { STEPS = 8, SYMBOLS = 64 };
    char name[32];
    snprintf(name, sizeof name, "%s_whole", whole[_i].file);
    golden *file = golden_open(name);
    rm_model_spec spec = whole[_i].spec;
    spec.hidden = spec.embed = 32;
    spec.data = (rm_data_shape){.timesteps = STEPS, .vocabulary = SYMBOLS, .classes = SYMBOLS, .every_step = true};
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    rm_model model;
    remat_step_result r;
    int32_t id[STEPS + 1];
    for (int t = 0; t <= STEPS; t++) id[t] = 7 * t % SYMBOLS;
    ck_ok(rm_model_build(&spec, 1, true, &model));
    ck_ok(remat_session_create(model.graph, model.loss, &config, &s));
    fill_whole(s, file);
    for (int i = 0; i < 2; i++) ck_ok(remat_write(s, REMAT_INPUT, i, id + i, STEPS * sizeof *id));
    ck_ok(remat_gradients(s, &r));
    double loss = number_of(file, "loss", NULL);
    ck_assert_msg(fabs(r.loss - loss) <= 2e-6 * loss, "the loss is %.8f, not %.8f", r.loss, loss);
    compare_norms(s, file);
    remat_session_free(s);
    rm_model_free(&model);
    golden_close(file);
}
END_TEST

/* What `remat sample` relies on: a session of one timestep, whose states are carried, computes the logits of a whole
 * sequence. Also the states of convolutions and token shifts. */
static void logits_of(const rm_model_spec *spec, int64_t steps, bool stateful, const int32_t *id, float *out) {
    rm_model_spec whole = *spec;
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    rm_model model;
    remat_step_result r;
    whole.data.timesteps = steps;
    ck_ok(rm_model_build(&whole, 1, false, &model));
    config.inference = true, config.stateful = stateful;
    config.outputs = &model.logits, config.n_outputs = 1;
    ck_ok(remat_session_create(model.graph, REMAT_NONE, &config, &s));
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) {
        static float data[1 << 14];
        remat_array info;
        ck_ok(remat_array_info(s, REMAT_PARAM, i, &info));
        ck_assert_uint_le(info.bytes, sizeof data);
        for (int64_t n = 0; n < info.count; n++) data[n] = (float)(0.3 * sin((double)i + 0.7 * (double)n));
        ck_ok(remat_write(s, REMAT_PARAM, i, data, info.bytes));
    }
    for (int64_t t = 0; t < T; t += steps) {
        ck_ok(remat_write(s, REMAT_INPUT, 0, id + t, (uint64_t)steps * sizeof *id));
        ck_ok(remat_evaluate(s, &r));
        ck_ok(remat_read(s, REMAT_OUTPUT, 0, out + t * V, (uint64_t)(steps * V) * sizeof *out));
    }
    remat_session_free(s);
    rm_model_free(&model);
}

START_TEST(single_timesteps_with_states_compute_the_logits_of_a_sequence) {
    static const char *const slstm_at[] = {"all", "1", "none"}, *const attention_at[] = {"none", "1", "0,1"};
    int32_t id[T];
    char names[160];
    for (int t = 0; t < T; t++) id[t] = 3 * t % V;
    rm_model_list("states", names, sizeof names);
    ck_says_all(names, "lstm|mamba|mamba2|gdn|xlstm|xlstm_large|m2rnn|rwkv7|recurrentgemma");
    for (char *rest = names, *name; (name = strsep(&rest, "|"));)
        for (int k = 0; k < 3; k++) {
            static float all[T * V], single[T * V];
            rm_model_spec spec = {.name = name, .layers = 2, .hidden = 8, .embed = 8, .slstm_at = slstm_at[k]};
            spec.attention_at = attention_at[k], spec.attention_window = 3;
            spec.heads = rm_model_is(name, "heads") ? 2 : 0, spec.data = rm_text_shape(T, 0);
            spec.data.vocabulary = spec.data.classes = V;
            logits_of(&spec, T, false, id, all), logits_of(&spec, 1, true, id, single);
            float largest = 0;
            for (int i = 0; i < T * V; i++) largest = fmaxf(largest, fabsf(all[i]));
            for (int i = 0; i < T * V; i++)
                ck_assert_msg(fabsf(all[i] - single[i]) <= 1e-5f * largest, "%s: logit %d is %g, not %g", name, i,
                              (double)single[i], (double)all[i]);
        }
}
END_TEST

/* Without --heads a width up to 64 is one head. */
START_TEST(heads_divide_the_width_or_are_refused) {
    static const struct {
        int64_t hidden, heads;
        const char *says; /* NULL: accepted */
    } of[] = {{7, 0, NULL},
              {7, 2, "--hidden=7|2 heads|--heads=N"},
              {128, 0, NULL},
              {130, 0, "--hidden=130|3 heads|--heads=N"}};
    char names[120];
    rm_model_list("heads", names, sizeof names);
    ck_says_all(names, "gdn|xlstm|recurrentgemma|gpt2");
    for (char *rest = names, *name; (name = strsep(&rest, "|"));)
        for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
            rm_model_spec spec = {.name = name, .layers = 1, .hidden = of[i].hidden, .embed = of[i].hidden};
            rm_model model;
            spec.heads = of[i].heads, spec.data = rm_text_shape(T, 0);
            remat_status status = rm_model_build(&spec, B, true, &model);
            ck_assert_msg(status == (of[i].says ? REMAT_INVALID : REMAT_OK), "%s: %s", name, remat_last_error());
            if (of[i].says) ck_says_all(remat_last_error(), of[i].says);
            rm_model_free(&model);
        }
}
END_TEST

START_TEST(unsupported_model_settings_are_refused) {
    static const struct {
        rm_model_spec spec;
        const char *says;
    } wrong[] = {
        {{.name = "mingru", .embed = 8}, "--embed"},
        {{.name = "mingru", .embed = H, .bidirectional = true}, "--bidirectional"},
        {{.name = "mingru", .embed = H, .no_bias = true}, "--no-bias|lstm|gru|rnn"},
        {{.name = "lstm", .embed = 8, .tie_embeddings = true}, "--embed=8 is not --hidden=6"},
        {{.name = "mamba", .embed = 8}, "--embed"},
        {{.name = "mamba", .embed = H, .bidirectional = true}, "--bidirectional"},
        {{.name = "mamba", .embed = H, .no_bias = true}, "--no-bias"},
        {{.name = "gdn", .embed = H, .heads = 4}, "--hidden=6|4 heads"},
        {{.name = "xlstm", .embed = 8, .heads = 2}, "--embed"},
        {{.name = "xlstm", .embed = H, .heads = 2, .bidirectional = true}, "--bidirectional"},
        {{.name = "xlstm", .embed = H, .heads = 2, .slstm_at = "1"}, "--slstm-at=1|block 1"},
        {{.name = "xlstm", .embed = H, .heads = 2, .slstm_at = "0;"}, "--slstm-at=0;|list"},
        {{.name = "recurrentgemma", .embed = H, .heads = 2, .attention_at = "0"}, "--hidden=6|3 numbers|--heads"},
        {{.name = "recurrentgemma", .embed = H, .heads = 2, .attention_at = "1"}, "--attention-at=1|block 1"},
        {{.name = "recurrentgemma", .embed = H, .heads = 3, .attention_at = "0", .kv_heads = 2}, "--kv-heads=2|3"},
        {{.name = "mamba2", .embed = H, .heads = 5}, "--hidden=6|5 heads"},
        {{.name = "mamba2", .embed = H, .heads = 3, .n_groups = 2}, "--n-groups=2|3 heads|12 channels"},
        {{.name = "gpt2", .embed = 8}, "--embed"},
        {{.name = "gpt2", .embed = H, .bidirectional = true}, "--bidirectional"},
        {{.name = "gpt2", .embed = H, .heads = 4}, "--hidden=6|4 heads"},
        {{.name = "gpt2", .embed = H, .positions = T - 1}, "7 timesteps"},
        {{.name = "gru", .projection = 3}, "--proj-size|lstm"},
        {{.name = "lstm", .projection = H}, "--proj-size=6|--hidden=6"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        rm_model_spec spec = wrong[i].spec;
        rm_model model;
        spec.layers = 1, spec.hidden = H, spec.data = rm_text_shape(T, 0);
        ck_assert_int_eq(rm_model_build(&spec, B, true, &model), REMAT_INVALID);
        ck_says_all(remat_last_error(), wrong[i].says);
        rm_model_free(&model);
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("model");
    tcase_add_loop_test(tests, loss_and_gradients_match_the_references, 0, CELLS * PLANS);
    tcase_add_loop_test(tests, results_do_not_depend_on_later_timesteps, 0, 2 * PROJECTED);
    tcase_add_loop_test(tests, whole_models_match_their_libraries, 0, sizeof whole / sizeof *whole);
    tcase_add_test(tests, single_timesteps_with_states_compute_the_logits_of_a_sequence);
    tcase_add_test(tests, heads_divide_the_width_or_are_refused);
    tcase_add_test(tests, unsupported_model_settings_are_refused);
    return run_suite("model_golden", tests);
}
