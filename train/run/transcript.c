/* transcript.c: see transcript.h. */
#include "train/run/transcript.h"

#include "train/models/model.h"

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
