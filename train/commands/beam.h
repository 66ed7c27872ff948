/* beam.h: beam search: the line of tokens with the largest mean log-probability, counting its end token. Each step extends the lines
 * by a token and keeps the `width` likeliest; a line is done when it ends. A width of 1 is greedy decoding. */
#ifndef RM_BEAM_H
#define RM_BEAM_H

#include "engine/status.h"

/* A line extended by a token. */
typedef struct {
    int64_t line; /* its number in the call before */
    int32_t token;
    double sum; /* of log-probabilities */
} rm_beam_step;

typedef struct {
    int64_t width, classes;
    int64_t longest; /* tokens, without the end */
    int32_t begin, end;
    /* Computes the log-probabilities (lines,classes) of the next token of each line. Line i is line step[i].line of the call before
     * followed by step[i].token; the first call has one line, `begin`. */
    remat_status (*expect)(void *context, const rm_beam_step *step, int64_t lines, double *log_probability);
    void *context;
} rm_beam;

/* Writes *length tokens, without the end token, into `out` (longest). Lines end after `longest` tokens. MEMORY. */
remat_status rm_beam_search(const rm_beam *beam, int32_t *out, int64_t *length);

#endif
