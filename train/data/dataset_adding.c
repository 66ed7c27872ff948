/* dataset_adding.c: the adding problem (Hochreiter and Schmidhuber, "Long short-term memory", 1997): each timestep has a
 * number in [0,1) and a mark; one mark lies in the first half of the sequence and one in the second; the target is the sum
 * of the two marked numbers. Always answering 1 has a mean squared error of 1/6. Generated: sample i is a function of
 * (seed, i). */
#include "train/data/dataset.h"

#include "engine/rng.h"

typedef struct {
    rm_dataset base;
    uint64_t seed;
    uint32_t node; /* of the random key: tells training samples from held-out ones */
} adding_data;

enum { NODE_TRAINING = 0xADD1, NODE_HELD_OUT = 0xADD2, NUMBERS = 0, MARKS = 1 };

static int64_t below(uint32_t word, int64_t n) { return (int64_t)((uint64_t)word * (uint64_t)n >> 32); }

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    const adding_data *data = (adding_data *)base;
    int64_t T = base->shape.timesteps, half = T / 2;
    rm_philox draw = rm_random4(data->seed, (uint64_t)index, data->node, MARKS, 0);
    int64_t first = below(draw.word[0], half), second = half + below(draw.word[1], T - half);
    float *x = input, sum = 0; /* (T,B,2) */
    for (int64_t t = 0; t < T; t++) {
        float *step = x + (t * batch + column) * 2;
        step[0] = rm_uniform(rm_random(data->seed, (uint64_t)index, data->node, NUMBERS, (uint64_t)t));
        step[1] = t == first || t == second;
        sum += step[0] * step[1];
    }
    ((float *)target)[column] = sum;
    return REMAT_OK;
}

remat_status rm_adding_shape(int64_t timesteps, rm_data_shape *out) {
    REQUIRE(timesteps == 0 || timesteps >= 2, INVALID, "--seq-len=%lld: the adding problem needs at least 2 timesteps",
            (long long)timesteps);
    *out = (rm_data_shape){.timesteps = timesteps ? timesteps : 400, .features = 2, .values = 1};
    return REMAT_OK;
}

static remat_status open(rm_dataset *base, const rm_data_source *source) {
    adding_data *data = (adding_data *)base;
    base->count = source->samples;
    data->seed = (uint64_t)source->seed;
    data->node = source->held_out ? NODE_HELD_OUT : NODE_TRAINING;
    return rm_adding_shape(source->timesteps, &base->shape);
}

const rm_data_kind rm_data_adding = {.bytes = sizeof(adding_data), .open = open, .fill = fill};
