/* beam.h: beam search: the likeliest line of tokens, by the mean log-probability of its tokens, its end among them. Of all lines that
 * are longer by a token, the `width` likeliest go on; those that end are done. A width of 1 is greedy decoding. */
#ifndef RM_BEAM_H
#define RM_BEAM_H

#include "engine/status.h"

/* A line that goes on by a token. */
typedef struct {
    int64_t line; /* of those before */
    int32_t token;
    double sum; /* of log-probabilities */
} rm_beam_step;

typedef struct {
    int64_t width, classes;
    int64_t longest; /* tokens, without the end */
    int32_t begin, end;
    /* What may follow each of `lines` lines: log-probabilities (lines,classes). Line i is line step[i].line of the call before, and
     * step[i].token; the first call has one line, of `begin`. */
    remat_status (*expect)(void *context, const rm_beam_step *step, int64_t lines, double *log_probability);
    void *context;
} rm_beam;

/* Into `out`, (longest), without the end; *length of them. Lines of `longest` tokens end there. MEMORY. */
remat_status rm_beam_search(const rm_beam *beam, int32_t *out, int64_t *length);

#endif
