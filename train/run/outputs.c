/* outputs.c: see outputs.h. */
#include "train/run/outputs.h"

#include "engine/remat.h"

#include <math.h>
#include <string.h>

int64_t rm_transcript_read(const float *logits, int64_t timesteps, int64_t stride, int64_t classes, int32_t *out) {
    int64_t n = 0, before = RM_BLANK;
    for (int64_t t = 0; t < timesteps; t++) {
        int64_t now = rm_likeliest(logits + t * stride, classes);
        if (now != RM_BLANK && now != before) out[n++] = (int32_t)now;
        before = now;
    }
    for (int64_t i = n; i < timesteps; i++) out[i] = RM_NO_LABEL;
    return n;
}

int64_t rm_transcript_length(const int32_t *labels, int64_t most) {
    int64_t n = 0;
    while (n < most && labels[n] != RM_NO_LABEL) n++;
    return n;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Levenshtein's algorithm: row[j] is the distance between the first i labels of a and the first j of b. */
int64_t rm_edit_distance(const int32_t *a, int64_t n, const int32_t *b, int64_t m, int64_t *row) {
    for (int64_t j = 0; j <= m; j++) row[j] = j;
    for (int64_t i = 1; i <= n; i++) {
        int64_t corner = row[0];
        row[0] = i;
        for (int64_t j = 1; j <= m; j++) {
            int64_t replaced = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            row[j] = least(replaced, 1 + least(row[j], row[j - 1]));
        }
    }
    return row[m];
}

int64_t rm_count_exact(const float *logits, const int32_t *target, int64_t T, int64_t B, int64_t classes) {
    int64_t exact = 0;
    for (int64_t b = 0; b < B; b++) {
        bool all = true;
        for (int64_t i = b; i < T * B && all; i += B)
            all = target[i] < 0 || remat_correct(logits + i * classes, target + i, 1, classes, 1);
        exact += all;
    }
    return exact;
}

double rm_dice(const float *logits, const int32_t *target, int64_t pixels, int64_t classes, int64_t *count) {
    int64_t *both = count, *either = count + classes; /* |A and B|, |A| + |B| */
    double sum = 0;
    memset(count, 0, 2 * (size_t)classes * sizeof *count);
    for (int64_t i = 0; i < pixels; i++) {
        if (target[i] < 0) continue;
        int64_t found = rm_likeliest(logits + i * classes, classes);
        either[found]++;
        either[target[i]]++;
        both[found] += found == target[i];
    }
    for (int64_t k = 1; k < classes; k++) sum += either[k] ? 2 * (double)both[k] / (double)either[k] : 1;
    return sum / (double)(classes - 1);
}

int64_t rm_count_targets(const int32_t *target, int64_t n) {
    int64_t targets = 0;
    for (int64_t i = 0; i < n; i++) targets += target[i] >= 0;
    return targets;
}

int64_t rm_likeliest(const float *logits, int64_t classes) {
    int64_t best = 0;
    for (int64_t k = 1; k < classes; k++)
        if (logits[k] > logits[best]) best = k;
    return best;
}

double rm_softmax_sum(const float *logits, int64_t classes, double *largest) {
    double sum = 0;
    *largest = -INFINITY;
    for (int64_t k = 0; k < classes; k++) *largest = fmax(*largest, (double)logits[k]);
    for (int64_t k = 0; k < classes; k++) sum += exp((double)logits[k] - *largest);
    return sum;
}
