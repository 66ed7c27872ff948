/* test_init_weights.c: weights of other programs are read, and unsuitable ones are refused. */
#include "train/state/weights.h"
#include "tests/train/state_runs.h"

#include <math.h>

START_TEST(weights_with_other_names_are_read) {
    static const char *const names[][2] = {{"rnn.weight_hh_l0", "rnn.weight_hh_l0"},
                                           {"module.lstm.weight_ih_l1", "rnn.weight_ih_l1"},
                                           {"_orig_mod.module.model.gru.bias_hh_l0", "rnn.bias_hh_l0"},
                                           {"embed.weight", "embedding.weight"},
                                           {"encoder.weight", "embedding.weight"},
                                           {"fc.bias", "head.bias"},
                                           {"decoder.weight", "head.weight"},
                                           {"linear1.weight", "linear1.weight"},
                                           {"model", "model"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char ours[64];
        rm_weights_our_name(names[i][0], ours, sizeof ours);
        ck_assert_str_eq(ours, names[i][1]);
    }
}
END_TEST

/* A file with one array of halves, and its values. */
START_TEST(halves_are_read) {
    static const struct {
        const char *dtype;
        uint16_t half;
        float value;
    } cases[] = {{"F16", 0xc100, -2.5f}, {"BF16", 0xc020, -2.5f}, {"F16", 0x0001, 0x1p-24f}};
    rm_safetensors file;
    rm_file_writer writer;
    bench b;
    open_bench(&b, FLAGS);
    ck_ok(rm_weights_save(b.session, REMAT_PARAM, in_scratch("w.safetensors"), &writer));
    ck_ok(rm_safetensors_open(in_scratch("w.safetensors"), &file));
    for (size_t c = 0; c < 3; c++) {
        char header[4096] = "{";
        uint16_t data[4000];
        size_t n = 0;
        for (int64_t j = 0; j < file.count; j++) {
            const rm_st_array *a = &file.array[j];
            size_t count = (a->end - a->begin) / 4, at = strlen(header);
            at += (size_t)snprintf(header + at, sizeof header - at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld",
                                   j ? "," : "", a->name, cases[c].dtype, (long long)a->dim[0]);
            if (a->rank == 2) at += (size_t)snprintf(header + at, sizeof header - at, ",%lld", (long long)a->dim[1]);
            snprintf(header + at, sizeof header - at, "],\"data_offsets\":[%zu,%zu]}", 2 * n, 2 * (n + count));
            n += count;
        }
        strcat(header, "}");
        ck_assert_uint_lt(n, 4000);
        for (size_t i = 0; i < n; i++) data[i] = cases[c].half;
        uint64_t length = strlen(header);
        FILE *out = fopen(in_scratch("h.safetensors"), "w");
        ck_assert(out && fwrite(&length, 8, 1, out) == 1 && fputs(header, out) >= 0);
        ck_assert_uint_eq(fwrite(data, 2, n, out), n);
        fclose(out);
        float read[10 * 5];
        ck_ok(rm_weights_import(b.session, in_scratch("h.safetensors"), NULL));
        ck_ok(remat_read(b.session, REMAT_PARAM, 0, read, sizeof read));
        for (size_t i = 0; i < 50; i++) ck_assert(read[i] == cases[c].value);
        ck_fails(rm_weights_load(b.session, REMAT_PARAM, in_scratch("h.safetensors")), REMAT_INVALID, "F32");
    }
    rm_safetensors_free(&file);
    close_bench(&b);
}
END_TEST

static remat_session *with_running_statistics(void) {
    remat_graph *g;
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    const int64_t dim[] = {4, 3};
    ck_ok(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, dim);
    remat_value mean = remat_buffer(g, "norm.running_mean", 1, dim + 1, remat_init_zero());
    remat_value var = remat_buffer(g, "norm.running_var", 1, dim + 1, remat_init_constant(1));
    remat_value gain = remat_param(g, "norm.weight", 1, dim + 1, remat_init_uniform(1));
    remat_value y = remat_batch_norm(g, x, gain, REMAT_NONE, mean, var, 0.1, 1e-5, false);
    ck_ok(remat_session_create(g, remat_mse(g, y, x), &config, &s));
    remat_graph_free(g);
    return s;
}

/* Buffers are saved with the parameters, as in PyTorch's state_dict. */
START_TEST(buffers_are_saved_with_parameters) {
    const char *path = in_scratch("buffers.safetensors");
    remat_session *s = with_running_statistics(), *loaded = with_running_statistics(),
                  *copied = with_running_statistics();
    const float x[12] = {1, 2, 3, -4, 5, 6, 7, -8, 9, 1, 0, 2};
    float running[3], other[3];
    rm_file_writer writer;
    ck_ok(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    ck_ok(remat_gradients(s, NULL));
    ck_ok(rm_weights_save(s, REMAT_PARAM, path, &writer));
    ck_ok(rm_weights_load(loaded, REMAT_PARAM, path));
    ck_ok(rm_weights_copy(s, copied));
    for (int k = 0; k < 2; k++) {
        ck_ok(remat_read(s, REMAT_BUFFER, k, running, sizeof running));
        ck_assert(running[0] != k);
        ck_ok(remat_read(loaded, REMAT_BUFFER, k, other, sizeof other));
        ck_assert(!memcmp(running, other, sizeof running));
        ck_ok(remat_read(copied, REMAT_BUFFER, k, other, sizeof other));
        ck_assert(!memcmp(running, other, sizeof running));
    }
    remat_session_free(s), remat_session_free(loaded), remat_session_free(copied);
}
END_TEST

START_TEST(unsuitable_weights_change_nothing) {
    bench a, b;
    rm_file_writer writer;
    float before[10 * 5], after[10 * 5];
    open_bench(&a, FLAGS);
    const char *other[][2] = {{FLAGS "--model=gru", "'rnn."},
                              {FLAGS "--embed=7", "(10,5)"},
                              {FLAGS "--layers=3", "'rnn."},
                              {FLAGS "--layers=1", "'rnn."}};
    ck_ok(rm_weights_save(a.session, REMAT_PARAM, in_scratch("w.safetensors"), &writer));
    for (size_t i = 0; i < 4; i++) {
        open_bench(&b, other[i][0]);
        uint64_t bytes = i == 1 ? sizeof before / 5 * 7 : sizeof before;
        if (i != 1) ck_ok(remat_read(b.session, REMAT_PARAM, 0, before, bytes));
        ck_fails(rm_weights_import(b.session, in_scratch("w.safetensors"), NULL), REMAT_INVALID, other[i][1]);
        if (i != 1) ck_ok(remat_read(b.session, REMAT_PARAM, 0, after, bytes));
        if (i != 1) ck_assert(!memcmp(before, after, sizeof before));
        close_bench(&b);
    }
    ck_fails(rm_weights_import(a.session, "/nowhere.safetensors", NULL), REMAT_IO, "/nowhere.safetensors");
    ck_ok(rm_file_open_stream("/dev/full", &writer));
    ck_fails(rm_weights_write(a.session, REMAT_PARAM, &writer), REMAT_IO, "make room");
    close_bench(&a);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("init_weights");
    tcase_add_test(tests, weights_with_other_names_are_read);
    tcase_add_test(tests, halves_are_read);
    tcase_add_test(tests, buffers_are_saved_with_parameters);
    tcase_add_test(tests, unsuitable_weights_change_nothing);
    return run_suite("train/init_weights", tests);
}
