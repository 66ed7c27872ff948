/* transcript.h: what a model trained by CTC has read in a sample, and how far that is from what is there. */
#ifndef RM_TRANSCRIPT_H
#define RM_TRANSCRIPT_H

#include <stdint.h>

enum { RM_BLANK = 0, RM_NO_LABEL = -1 /* fills up rows of labels */ };

/* Greedy decoding: the likeliest class of each timestep, of what repeats one, without blanks. Logits of a timestep (classes) begin
 * `stride` numbers apart; out (timesteps), of which as many as the result says are labels and the rest RM_NO_LABEL. */
int64_t rm_transcript_read(const float *logits, int64_t timesteps, int64_t stride, int64_t classes, int32_t *out);

/* Labels in a row of `most`. */
int64_t rm_transcript_length(const int32_t *labels, int64_t most);

/* How few labels have to be put in, left out or replaced to make one of the other. `scratch`: m + 1 numbers. */
int64_t rm_edit_distance(const int32_t *a, int64_t n, const int32_t *b, int64_t m, int64_t *scratch);

#endif
