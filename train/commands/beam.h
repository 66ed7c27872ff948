/* beam.h: beam search: the likeliest line of tokens, by the mean log-probability of its tokens, its end among them. Of all lines that
 * are longer by a token, the `width` likeliest go on; those that end are done. A width of 1 is greedy decoding. */
#ifndef RM_BEAM_H
#define RM_BEAM_H

#include "engine/status.h"

typedef struct {
    int64_t width, classes;
    int64_t longest; /* tokens, without the end */
    int32_t end;
    /* What may follow `lines` lines of `length` tokens each, (lines,longest): log-probabilities (lines,classes). */
    remat_status (*expect)(void *context, const int32_t *tokens, int64_t lines, int64_t length,
                           double *log_probability);
    void *context;
} rm_beam;

/* Into `out`, (longest), without the end; *length of them. Lines of `longest` tokens end there. MEMORY. */
remat_status rm_beam_search(const rm_beam *beam, int32_t *out, int64_t *length);

#endif
