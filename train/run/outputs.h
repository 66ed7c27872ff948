/* outputs.h: what the outputs of a model say: the likeliest class, transcripts of CTC, and how far both are from the targets. */
#ifndef RM_OUTPUTS_H
#define RM_OUTPUTS_H

#include <stdint.h>

enum { RM_BLANK = 0, RM_NO_LABEL = -1 /* padding of label rows */ };

/* Greedy decoding: takes the most likely class of each timestep, merges repetitions and removes blanks. The logits of consecutive
 * timesteps are `stride` numbers apart. Returns the number of labels; the rest of out (timesteps) is RM_NO_LABEL. */
int64_t rm_transcript_read(const float *logits, int64_t timesteps, int64_t stride, int64_t classes, int32_t *out);

/* Number of labels in a row with `most` elements. */
int64_t rm_transcript_length(const int32_t *labels, int64_t most);

/* Edit distance: the least number of inserted, deleted and replaced labels. `scratch`: m + 1 numbers. */
int64_t rm_edit_distance(const int32_t *a, int64_t n, const int32_t *b, int64_t m, int64_t *scratch);

/* Of B samples with logits (T,B,classes) and targets (T,B), the number where every target other than -1 has the largest logit: those
 * that greedy decoding reproduces exactly. */
int64_t rm_count_exact(const float *logits, const int32_t *target, int64_t timesteps, int64_t batch, int64_t classes);
/* The Dice score of an image with logits (pixels,classes) and targets (pixels): 2 |A and B| / (|A| + |B|) for the pixels A that have
 * the largest logit of a class and the pixels B of that class, 1 if there are neither; the mean over all classes but 0, the background.
 * Pixels with target -1 do not count. `count` is scratch for 2 classes numbers. */
double rm_dice(const float *logits, const int32_t *target, int64_t pixels, int64_t classes, int64_t *count);
int64_t rm_count_targets(const int32_t *target, int64_t n); /* other than -1 */
int64_t rm_likeliest(const float *logits, int64_t classes); /* the class with the largest logit */
/* The denominator of softmax: the sum over classes of e^(logit - *largest), in double. */
double rm_softmax_sum(const float *logits, int64_t classes, double *largest);

#endif
