/* norm.c: rm_sum_of_squares, for the global norm of the gradients (optimizer.h). It sums chunks of a
 * fixed size in double and adds these sums in order, so the bits depend on the length alone. */
#include <stdint.h>

#include "ops/optimizers/optimizer.h"
#include "ops/shape.h"

enum { CHUNK = 4096, LANES = 8, CHUNKS_A_ROUND = 256 };

static double chunk_sum(const float *x, int64_t n) {
    double lane[LANES] = {0}, sum = 0;
    int64_t whole = n / LANES * LANES;
    for (int64_t from = 0; from < whole; from += LANES)
        for (int i = 0; i < LANES; i++) lane[i] += (double)x[from + i] * (double)x[from + i];
    for (int64_t i = whole; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int i = 0; i < LANES; i++) sum += lane[i];
    return sum;
}

double rm_sum_of_squares(const float *x, int64_t n, int threads) {
    double sum = 0, partial[CHUNKS_A_ROUND];
    for (int64_t done = 0; done < n; done += (int64_t)CHUNK * CHUNKS_A_ROUND) {
        int64_t left = n - done, chunks = (left + CHUNK - 1) / CHUNK;
        if (chunks > CHUNKS_A_ROUND) chunks = CHUNKS_A_ROUND;
        RM_PARALLEL_FOR(threads, left > RM_PARALLEL_MIN,
                        for (int64_t c = 0; c < chunks; c++) partial[c] =
                            chunk_sum(x + done + c * CHUNK, left - c * CHUNK < CHUNK ? left - c * CHUNK : CHUNK););
        for (int64_t c = 0; c < chunks; c++) sum += partial[c];
    }
    return sum;
}
