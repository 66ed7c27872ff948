/* beam.c: see beam.h. */
#include "train/commands/beam.h"

#include "memory/host.h"

#include <math.h>
#include <string.h>

typedef struct {
    const rm_beam *beam;
    int64_t lines, length;     /* unfinished lines, the likeliest first; tokens in each */
    int32_t *token, *next;     /* (width,longest) */
    rm_beam_step *line, *best; /* (width): the last step of each line; the best next steps */
    double *log_probability;   /* (width,classes) */
    double best_mean;          /* of the finished lines; the best one is in `out`. -INFINITY: none is finished */
    int32_t *out;
    int64_t *out_length;
} search;

/* Among equals, the first stays first. */
static int64_t insert(rm_beam_step *best, int64_t n, int64_t width, rm_beam_step new) {
    if (n == width && !(new.sum > best[n - 1].sum)) return n;
    if (n < width) n++;
    int64_t at = n - 1;
    for (; at > 0 && new.sum > best[at - 1].sum; at--) best[at] = best[at - 1];
    best[at] = new;
    return n;
}

static int64_t choose(search *s) {
    int64_t n = 0, K = s->beam->classes;
    for (int64_t line = 0; line < s->lines; line++)
        for (int64_t k = 0; k < K; k++)
            n = insert(s->best, n, s->beam->width,
                       (rm_beam_step){line, (int32_t)k, s->line[line].sum + s->log_probability[line * K + k]});
    return n;
}

static void end(search *s, int64_t line, double sum) {
    double mean = sum / (double)(s->length + 1);
    if (!(mean > s->best_mean)) return;
    s->best_mean = mean;
    *s->out_length = s->length;
    memcpy(s->out, s->token + line * s->beam->longest, (size_t)s->length * sizeof *s->out);
}

static void go_on(search *s) {
    int64_t n = choose(s), longest = s->beam->longest;
    s->lines = 0;
    for (int64_t i = 0; i < n; i++) {
        rm_beam_step best = s->best[i];
        if (best.token == s->beam->end) {
            end(s, best.line, best.sum);
            continue;
        }
        int32_t *to = s->next + s->lines * longest;
        memcpy(to, s->token + best.line * longest, (size_t)s->length * sizeof *to);
        to[s->length] = best.token;
        s->line[s->lines++] = best;
    }
    int32_t *before = s->token;
    s->token = s->next;
    s->next = before;
    s->length++;
}

static void end_all(search *s) {
    for (int64_t line = 0; line < s->lines; line++)
        end(s, line, s->line[line].sum + s->log_probability[line * s->beam->classes + s->beam->end]);
}

/* The best possible mean of an unfinished line is its sum divided by the largest number of tokens. */
static bool is_decided(const search *s) {
    bool decided = true;
    for (int64_t line = 0; line < s->lines; line++)
        decided = decided && s->best_mean >= s->line[line].sum / (double)(s->beam->longest + 1);
    return decided;
}

static remat_status run(search *s) {
    const rm_beam *b = s->beam;
    s->line[0] = (rm_beam_step){.token = b->begin};
    for (s->lines = 1; !is_decided(s); go_on(s)) {
        TRY(b->expect(b->context, s->line, s->lines, s->log_probability));
        if (s->length == b->longest) return end_all(s), REMAT_OK;
    }
    return REMAT_OK;
}

remat_status rm_beam_search(const rm_beam *beam, int32_t *out, int64_t *length) {
    size_t width = (size_t)beam->width, tokens = width * (size_t)beam->longest + 1;
    search s = {.beam = beam,
                .token = rm_calloc(tokens, sizeof *s.token),
                .next = rm_calloc(tokens, sizeof *s.next),
                .line = rm_calloc(width, sizeof *s.line),
                .best = rm_calloc(width, sizeof *s.best),
                .log_probability = rm_calloc(width * (size_t)beam->classes, sizeof *s.log_probability),
                .best_mean = -INFINITY,
                .out = out,
                .out_length = length};
    *length = 0;
    bool room = s.token && s.next && s.line && s.best && s.log_probability;
    remat_status status = room ? run(&s)
                               : rm_fail(REMAT_MEMORY, "no memory for %lld lines of %lld tokens",
                                         (long long)beam->width, (long long)beam->longest);
    rm_free(s.token);
    rm_free(s.next);
    rm_free(s.line);
    rm_free(s.best);
    rm_free(s.log_probability);
    return status;
}
