/* scores.c: see scores.h. */
#include "train/report/scores.h"

#include <string.h>

const rm_score rm_scores[RM_SCORES] = {
#define SCORE(ENUM, NAME, TEXT, SHARE, GROWS) {NAME, TEXT, SHARE, GROWS},
#include "train/report/scores.def"
#undef SCORE
};

rm_score_name rm_score_find(const char *name) {
    int i = 0;
    while (i < RM_SCORES && strcmp(rm_scores[i].name, name)) i++;
    return (rm_score_name)i;
}
