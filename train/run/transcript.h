/* transcript.h: decodes the outputs of a model trained with CTC, and measures the distance to the labels. */
#ifndef RM_TRANSCRIPT_H
#define RM_TRANSCRIPT_H

#include <stdint.h>

enum { RM_BLANK = 0, RM_NO_LABEL = -1 /* padding of label rows */ };

/* Greedy decoding: takes the most likely class of each timestep, merges repetitions and removes blanks. The logits of consecutive
 * timesteps are `stride` numbers apart. Returns the number of labels; the rest of out (timesteps) is RM_NO_LABEL. */
int64_t rm_transcript_read(const float *logits, int64_t timesteps, int64_t stride, int64_t classes, int32_t *out);

/* Number of labels in a row with `most` elements. */
int64_t rm_transcript_length(const int32_t *labels, int64_t most);

/* Edit distance: the least number of inserted, deleted and replaced labels. `scratch`: m + 1 numbers. */
int64_t rm_edit_distance(const int32_t *a, int64_t n, const int32_t *b, int64_t m, int64_t *scratch);

#endif
