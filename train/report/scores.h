/* scores.h: what an evaluation finds: its loss, and by task other metrics. A metric is a line of scores.def. */
#ifndef RM_SCORES_H
#define RM_SCORES_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
#define SCORE(ENUM, NAME, TEXT, SHARE, GROWS) ENUM,
#include "train/report/scores.def"
#undef SCORE
    RM_SCORES
} rm_score_name;

typedef struct {
    const char *name, *text;
    bool share, grows;
} rm_score;
extern const rm_score rm_scores[RM_SCORES];

rm_score_name rm_score_find(const char *name); /* of one that there is; RM_SCORES: "none" */

typedef struct {
    int64_t step, samples;
    bool has[RM_SCORES]; /* which of these the evaluation has */
    double score[RM_SCORES];
} rm_eval_event;

#endif
