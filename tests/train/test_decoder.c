/* test_decoder.c: the decoder's logits, token by token, match those of the whole graph on the same line, for lines
 * that branch as in beam search, with random weights.
 *
 * Tolerance: logits are below 1, and most have the same bits. Sums in another order differ by 1.5 units of 2^-24;
 * the limit is 16. */
#include "train/commands/decoder.h"
#include "train/state/weights.h"

#include "tests/train/train_test.h"

#include <math.h>

#define LIMIT (16 * 0x1p-24)
enum { TOKENS = 9, K = TOKENS + 1, S = 16, T = 6, WIDEST = 4, FIRST_ROOM = 4 };

static rm_model_spec specs[] = {
    {.name = "lstm", .layers = 1},
    {.name = "lstm", .layers = 2, .bidirectional = true, .dropout = 0.5},
    {.name = "lstm", .layers = 2, .projection = 5, .no_bias = true},
    {.name = "gru", .layers = 1, .bidirectional = true},
    {.name = "gru", .layers = 2},
    {.name = "rnn", .layers = 1},
    {.name = "rnn", .layers = 2, .bidirectional = true},
};
enum { SPECS = sizeof specs / sizeof *specs };
static const int lengths[] = {2, 4, 0, 8, 15, 1}; /* the second and the fourth need more memory, for their ends */

/* Evaluates the whole graph. */
typedef struct {
    rm_model model;
    remat_session *session;
} whole;

static remat_config inference(int seed) {
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.seed = (uint64_t)seed;
    config.inference = true;
    return config;
}

static whole open_whole(const rm_model_spec *of) {
    whole w;
    rm_model_spec spec = *of;
    remat_config config = inference(1);
    spec.data = rm_pair_shape(S - 1, T - 1, TOKENS);
    ck_ok(rm_model_build(&spec, 1, true, &w.model));
    config.outputs = &w.model.logits;
    config.n_outputs = 1;
    ck_ok(remat_session_create(w.model.graph, w.model.loss, &config, &w.session));
    return w;
}

static void put(const whole *w, const char *name, const void *data, size_t bytes) {
    ck_ok(remat_write(w->session, REMAT_INPUT, remat_find(w->session, REMAT_INPUT, name), data, bytes));
}

/* The logits after `length` tokens of an answer. */
static void ask(const whole *w, const int32_t *source, int count, const int32_t *answer, int length, float out[K]) {
    int32_t x[S], padding[S], previous[T], target[T];
    float begins[S];
    remat_step_result result;
    for (int s = 0, at = count; s < S; s++, at--) {
        x[s] = at < 0 ? K : at == count ? TOKENS : source[at];
        padding[s] = at < 0;
        begins[s] = at == 0;
    }
    for (int t = 0; t < T; t++) target[t] = -1, previous[t] = t && t <= length ? answer[t - 1] : K;
    put(w, "input", x, sizeof x), put(w, "padding", padding, sizeof padding), put(w, "begins", begins, sizeof begins);
    put(w, "target", target, sizeof target), put(w, "previous", previous, sizeof previous);
    ck_ok(remat_evaluate(w->session, &result));
    ck_ok(remat_read_part(w->session, REMAT_OUTPUT, 0, (uint64_t)length * K * sizeof *out, out, K * sizeof *out));
}

/* A possible choice of beam search: any of the previous lines, any tokens. */
static int choose(rm_beam_step step[WIDEST], int32_t answer[WIDEST][T], int length, int lines, int width) {
    int32_t before[WIDEST][T];
    int n = 1 + rand() % width;
    memcpy(before, answer, sizeof before);
    for (int i = 0; i < n; i++) {
        step[i] = (rm_beam_step){.line = rand() % lines, .token = rand() % TOKENS};
        memcpy(answer[i], before[step[i].line], sizeof answer[i]);
        answer[i][length - 1] = step[i].token;
    }
    return n;
}

static void read_and_write_a_line(rm_decoder *d, const whole *w, int count) {
    int32_t source[S], answer[WIDEST][T];
    float logits[WIDEST][K], expected[K];
    rm_beam_step step[WIDEST] = {{.token = K}};
    for (int i = 0; i < count; i++) source[i] = rand() % TOKENS;
    ck_ok(rm_decoder_read(d, source, count));
    for (int length = 0, lines = 1; length < T; length++) {
        if (length) lines = choose(step, answer, length, lines, (int)d->width);
        ck_ok(rm_decoder_step(d, step, lines, logits[0]));
        for (int i = 0; i < lines; i++) {
            ask(w, source, count, answer[i], length, expected);
            for (int k = 0; k < K; k++)
                ck_assert_msg(fabsf(logits[i][k] - expected[k]) <= LIMIT,
                              "source of %d, line %d after %d tokens: logit %d is %g, not %g", count, i, length, k,
                              (double)logits[i][k], (double)expected[k]);
        }
    }
}

START_TEST(decoder_matches_the_whole_graph) {
    rm_decoder d;
    rm_model_spec spec = specs[_i % SPECS];
    const remat_config config = inference(2);
    spec.hidden = 12, spec.embed = 7;
    spec.data = rm_pair_shape(FIRST_ROOM - 1, 1, TOKENS);
    srand((unsigned)_i);
    ck_ok(rm_decoder_open(&spec, &config, _i < SPECS ? 1 : WIDEST, &d));
    whole w = open_whole(&spec);
    ck_ok(rm_weights_copy(w.session, d.encoder));
    ck_ok(rm_weights_copy(w.session, d.decoder));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) read_and_write_a_line(&d, &w, lengths[i]);
    ck_assert_int_eq(d.spec.data.timesteps, S);
    rm_decoder_free(&d);
    remat_session_free(w.session);
    rm_model_free(&w.model);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("decoder");
    tcase_add_loop_test(tests, decoder_matches_the_whole_graph, 0, 2 * SPECS);
    return run_suite("train/decoder", tests);
}
