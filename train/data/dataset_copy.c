/* dataset_copy.c: the copy problem (Hochreiter and Schmidhuber 1997; in this form Arjovsky, Shah and Bengio, "Unitary
 * evolution recurrent neural networks", 2016): ten letters, a long silence, a mark, and then the letters again.
 *
 *     input    l0 .. l9 | blank x (T-21) | mark | blank x 10          letters 0..7, blank 8, mark 9
 *     target   blank x (T-10)                   | l0 .. l9
 *
 * Without memory the best mean cross-entropy is 10 ln 8 / T. Generated: sample i is a function of (seed, i). */
#include "train/data/dataset.h"

#include "engine/rng.h"

enum { LETTERS = 10, ALPHABET = 8, BLANK = 8, MARK = 9, VOCABULARY = 10, CLASSES = 9 };
enum { NODE_TRAINING = 0xC091, NODE_HELD_OUT = 0xC092 };

typedef struct {
    rm_dataset base;
    uint64_t seed;
    uint32_t node; /* of the random key: tells training samples from held-out ones */
} copy_data;

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    const copy_data *data = (copy_data *)base;
    int64_t T = base->shape.timesteps;
    int32_t *x = input, *y = target; /* (T,B) */
    for (int64_t t = 0; t < T; t++) x[t * batch + column] = y[t * batch + column] = BLANK;
    for (int64_t i = 0; i < LETTERS; i++) {
        int32_t letter = (int32_t)(rm_random(data->seed, (uint64_t)index, data->node, 0, (uint64_t)i) % ALPHABET);
        x[i * batch + column] = letter;
        y[(T - LETTERS + i) * batch + column] = letter;
    }
    x[(T - LETTERS - 1) * batch + column] = MARK;
    return REMAT_OK;
}

remat_status rm_copy_shape(int64_t timesteps, rm_data_shape *out) {
    REQUIRE(timesteps == 0 || timesteps >= 2 * LETTERS + 1, INVALID,
            "--seq-len=%lld: the copy problem needs at least 21 timesteps (10 letters, a mark, 10 answers)",
            (long long)timesteps);
    *out = (rm_data_shape){
        .timesteps = timesteps ? timesteps : 120, .vocabulary = VOCABULARY, .classes = CLASSES, .every_step = true};
    return REMAT_OK;
}

static remat_status open(rm_dataset *base, const rm_data_source *source) {
    copy_data *data = (copy_data *)base;
    base->count = source->samples;
    data->seed = (uint64_t)source->seed;
    data->node = source->held_out ? NODE_HELD_OUT : NODE_TRAINING;
    return rm_copy_shape(source->timesteps, &base->shape);
}

const rm_data_kind rm_data_copy = {.bytes = sizeof(copy_data), .open = open, .fill = fill};
