/* test_beam.c: beam search finds the line that an exhaustive search finds. */
#include "train/commands/beam.h"
#include "tests/train/train_test.h"

#include <math.h>

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

int main(void) {
    TCase *tests = tcase_create("beam");
    tcase_add_test(tests, beam_search_finds_the_best_line);
    return run_suite("train/beam", tests);
}
