/* dataset_s5.c: the word problem of S5: each timestep names a transposition of five things, and the target is the order they are in
 * after it: the product of all transpositions so far, one of 120. No net of a fixed depth without nonlinear recurrence can follow it at any
 * length (Barrington 1989; Merrill, Petty and Sabharwal, "The illusion of state in state-space models", 2024).
 *
 *     input   0..9: transposition of places (i,j), i < j, in the order (0,1), (0,2) .. (3,4)
 *     target  the number of the permutation, in the order of the dictionary: 0 is 01234, 119 is 43210
 *
 * Always answering at random has a cross-entropy of ln 120 = 4.79; knowing but the parity, ln 60. Generated: sample i is a function of
 * (seed, i). */
#include "train/data/dataset.h"

#include "engine/rng.h"

enum { THINGS = 5, TRANSPOSITIONS = 10, PERMUTATIONS = 120 };
enum { NODE_TRAINING = 0x5501, NODE_HELD_OUT = 0x5502 };

typedef struct {
    rm_dataset base;
    uint64_t seed;
    uint32_t node; /* of the random key: tells training samples from held-out ones */
} s5_data;

static void transpose(int *thing, int number) {
    int i = 0;
    for (int left = THINGS - 1; number >= left; left--) number -= left, i++;
    int j = i + 1 + number, kept = thing[i];
    thing[i] = thing[j], thing[j] = kept;
}

/* Each place counts the smaller things behind it: digits of a factorial number system (Lehmer). */
static int32_t number_of(const int *thing) {
    int32_t number = 0;
    for (int i = 0; i < THINGS; i++) {
        int smaller = 0;
        for (int j = i + 1; j < THINGS; j++) smaller += thing[j] < thing[i];
        number = number * (THINGS - i) + smaller;
    }
    return number;
}

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    const s5_data *data = (s5_data *)base;
    int32_t *x = input, *y = target; /* (T,B) */
    int thing[THINGS] = {0, 1, 2, 3, 4};
    for (int64_t t = 0; t < base->shape.timesteps; t++) {
        int32_t which = (int32_t)(rm_random(data->seed, (uint64_t)index, data->node, 0, (uint64_t)t) % TRANSPOSITIONS);
        transpose(thing, which);
        x[t * batch + column] = which;
        y[t * batch + column] = number_of(thing);
    }
    return REMAT_OK;
}

remat_status rm_s5_shape(int64_t timesteps, rm_data_shape *out) {
    *out = (rm_data_shape){.timesteps = timesteps ? timesteps : 32,
                           .vocabulary = TRANSPOSITIONS,
                           .classes = PERMUTATIONS,
                           .every_step = true,
                           .tracked = true};
    return REMAT_OK;
}

static remat_status open(rm_dataset *base, const rm_data_source *source) {
    s5_data *data = (s5_data *)base;
    base->count = source->samples;
    data->seed = (uint64_t)source->seed;
    data->node = source->held_out ? NODE_HELD_OUT : NODE_TRAINING;
    return rm_s5_shape(source->timesteps, &base->shape);
}

const rm_data_kind rm_data_s5 = {.bytes = sizeof(s5_data), .open = open, .fill = fill};
