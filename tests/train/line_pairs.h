/* line_pairs.h: models and pairs of lines for the tests of --task=seq2seq. */
#ifndef LINE_PAIRS_H
#define LINE_PAIRS_H

#include "tests/train/train_test.h"

static uint64_t rng_state;

static inline uint32_t draw(uint32_t below) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

#define LIMIT 100

/* Lines of 0 to `most` letters; the first has `most`. */
static inline char *random_lines(int count, int most) {
    char *text = malloc((size_t)(count * (most + 1) + 1)), *at = text;
    for (int i = 0; i < count; i++) {
        for (uint32_t k = i ? draw((uint32_t)most + 1) : (uint32_t)most; k > 0; k--) *at++ = (char)('a' + draw(26));
        *at++ = '\n';
    }
    *at = 0;
    return text;
}

#define TOY "--task=seq2seq --generate=copy --seq-len=5 --samples=2000 "

#define SMALL "--hidden=64 --embed=32 --layers=1 --threads=1 --batch=16 --lr=0.01 --seed=1 "

/* The program writes an answer for every line of `source`. Returns how many equal the line of `target`. */
static inline int lines_that_match(const char *state, const char *target, const char *flags) {
    char command[1024], line[256], wanted[256];
    int same = 0;
    snprintf(command, sizeof command, "%s/remat sample --resume=%s --threads=1 %s < %s", RM_BINARY_DIR, state, flags,
             in_scratch("source"));
    FILE *answers = popen(command, "r"), *right = fopen(target, "r");
    ck_assert(answers && right);
    while (fgets(wanted, sizeof wanted, right)) {
        ck_assert_ptr_nonnull(fgets(line, sizeof line, answers));
        same += !strcmp(line, wanted);
    }
    ck_assert_ptr_null(fgets(line, sizeof line, answers));
    fclose(right);
    ck_assert_int_eq(pclose(answers), 0);
    return same;
}

#endif
