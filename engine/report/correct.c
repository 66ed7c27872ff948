/* correct.c: counts correct answers. See remat.h. */
#include "engine/remat.h"

static int64_t classes_before(const float *logit, int64_t classes, int32_t target) {
    int64_t before = 0;
    for (int64_t k = 0; k < classes; k++)
        before += !(logit[k] <= logit[target]) || (logit[k] == logit[target] && k < target);
    return before;
}

int64_t remat_correct(const float *logits, const int32_t *targets, int64_t rows, int64_t classes, int64_t k) {
    int64_t correct = 0;
    if (!logits || !targets) return 0;
    for (int64_t r = 0; r < rows; r++)
        correct +=
            targets[r] >= 0 && targets[r] < classes && classes_before(logits + r * classes, classes, targets[r]) < k;
    return correct;
}
