/* scores.h: the metrics of an evaluation: the loss, and others that depend on the task. A metric is a line of scores.def. */
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

rm_score_name rm_score_find(const char *name); /* RM_SCORES: unknown, such as "none" */

typedef struct {
    int64_t step, samples;
    bool has[RM_SCORES]; /* the metrics that this evaluation computes */
    double score[RM_SCORES];
} rm_eval_event;

#endif
