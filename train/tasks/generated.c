/* generated.c: synthetic memory tasks: --task=adding, copy and s5. Sample i is a function of (seed, i). */
#include "train/tasks/task.h"

#include "engine/rng.h"

typedef struct {
    rm_dataset base;
    uint64_t seed;
    uint32_t node; /* part of the random key: differs between tasks, and between training and held-out samples */
} generated;

typedef remat_status shape_of(const rm_data_source *, rm_data_shape *);

static remat_status make(rm_dataset *base, const rm_data_source *source, uint32_t node, shape_of *shape) {
    generated *data = (generated *)base;
    base->count = source->samples;
    data->seed = (uint64_t)source->seed;
    data->node = node + source->held_out;
    return shape(source, &base->shape);
}

static uint32_t draw(const generated *data, int64_t index, uint32_t what, int64_t t) {
    return rm_random(data->seed, (uint64_t)index, data->node, what, (uint64_t)t);
}

/* ---- adding ------------------------------------------------------------------------------------------------------- */

/* The adding problem (Hochreiter and Schmidhuber, "Long short-term memory", 1997): each timestep has a number in [0,1) and a mark; one
 * mark lies in the first half of the sequence and one in the second; the target is the sum of the two marked numbers. Always
 * answering 1 has a mean squared error of 1/6. */
enum { NUMBERS = 0, MARKS = 1 };

static int64_t below(uint32_t word, int64_t n) { return (int64_t)((uint64_t)word * (uint64_t)n >> 32); }

static remat_status fill_adding(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input,
                                void *target) {
    const generated *data = (generated *)base;
    int64_t T = base->shape.timesteps, half = T / 2;
    rm_philox marks = rm_random4(data->seed, (uint64_t)index, data->node, MARKS, 0);
    int64_t first = below(marks.word[0], half), second = half + below(marks.word[1], T - half);
    float *x = input, sum = 0; /* (T,B,2) */
    for (int64_t t = 0; t < T; t++) {
        float *step = x + (t * batch + column) * 2;
        step[0] = rm_uniform(draw(data, index, NUMBERS, t));
        step[1] = t == first || t == second;
        sum += step[0] * step[1];
    }
    ((float *)target)[column] = sum;
    return REMAT_OK;
}

static remat_status shape_adding(const rm_data_source *source, rm_data_shape *out) {
    int64_t T = source->timesteps;
    REQUIRE(T == 0 || T >= 2, INVALID, "--seq-len=%lld: the adding problem needs at least 2 timesteps", (long long)T);
    *out = (rm_data_shape){.timesteps = T ? T : 400, .features = 2, .values = 1};
    return REMAT_OK;
}

static remat_status open_adding(rm_dataset *base, const rm_data_source *source) {
    return make(base, source, 0xADD1, shape_adding);
}

static const rm_data_kind adding = {.bytes = sizeof(generated), .open = open_adding, .fill = fill_adding};
const rm_task rm_task_adding = {
    .name = "adding", .flags = " samples loss ", .kind = &adding, .shape = shape_adding, .row = RM_ROW_OUTPUTS};

/* ---- copy --------------------------------------------------------------------------------------------------------- */

/* The copy problem (Hochreiter and Schmidhuber 1997; in this form Arjovsky, Shah and Bengio, "Unitary evolution recurrent neural
 * networks", 2016): ten letters, a long silence, a mark, and then the letters again.
 *
 *     input    l0 .. l9 | blank x (T-21) | mark | blank x 10          letters 0..7, blank 8, mark 9
 *     target   blank x (T-10)                   | l0 .. l9
 *
 * Without memory the best mean cross-entropy is 10 ln 8 / T. */
enum { LETTERS = 10, ALPHABET = 8, BLANK = 8, MARK = 9, VOCABULARY = 10, CLASSES = 9 };

static remat_status fill_copy(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input,
                              void *target) {
    int64_t T = base->shape.timesteps;
    int32_t *x = input, *y = target; /* (T,B) */
    for (int64_t t = 0; t < T; t++) x[t * batch + column] = y[t * batch + column] = BLANK;
    for (int64_t i = 0; i < LETTERS; i++) {
        int32_t letter = (int32_t)(draw((generated *)base, index, 0, i) % ALPHABET);
        x[i * batch + column] = letter;
        y[(T - LETTERS + i) * batch + column] = letter;
    }
    x[(T - LETTERS - 1) * batch + column] = MARK;
    return REMAT_OK;
}

static remat_status shape_copy(const rm_data_source *source, rm_data_shape *out) {
    int64_t T = source->timesteps;
    REQUIRE(T == 0 || T >= 2 * LETTERS + 1, INVALID,
            "--seq-len=%lld: the copy problem needs at least 21 timesteps (10 letters, a mark, 10 answers)",
            (long long)T);
    *out = (rm_data_shape){.timesteps = T ? T : 120, .vocabulary = VOCABULARY, .classes = CLASSES, .every_step = true};
    return REMAT_OK;
}

static remat_status open_copy(rm_dataset *base, const rm_data_source *source) {
    return make(base, source, 0xC091, shape_copy);
}

static const rm_data_kind copy = {.bytes = sizeof(generated), .open = open_copy, .fill = fill_copy};
const rm_task rm_task_copy = {
    .name = "copy", .flags = " embed samples tbptt label-smoothing ", .kind = &copy, .shape = shape_copy};

/* ---- s5 ----------------------------------------------------------------------------------------------------------- */

/* The word problem of S5: each timestep names a transposition of five items, and the target is their order after it, the product of all
 * transpositions so far, one of 120. No network of fixed depth without nonlinear recurrence solves it at every length
 * (Barrington 1989; Merrill, Petty and Sabharwal, "The illusion of state in state-space models", 2024).
 *
 *     input   0..9: transposition of positions (i,j), i < j, in the order (0,1), (0,2) .. (3,4)
 *     target  the rank of the permutation in lexicographic order: 0 is 01234, 119 is 43210
 *
 * Random guessing has a cross-entropy of ln 120 = 4.79; knowing only the parity, ln 60. */
enum { THINGS = 5, TRANSPOSITIONS = 10, PERMUTATIONS = 120 };

static void transpose(int *thing, int number) {
    int i = 0;
    for (int left = THINGS - 1; number >= left; left--) number -= left, i++;
    int j = i + 1 + number, kept = thing[i];
    thing[i] = thing[j], thing[j] = kept;
}

/* Digit i counts the smaller items after position i: the Lehmer code, digits of the factorial number system. */
static int32_t number_of(const int *thing) {
    int32_t number = 0;
    for (int i = 0; i < THINGS; i++) {
        int smaller = 0;
        for (int j = i + 1; j < THINGS; j++) smaller += thing[j] < thing[i];
        number = number * (THINGS - i) + smaller;
    }
    return number;
}

static remat_status fill_s5(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    int32_t *x = input, *y = target; /* (T,B) */
    int thing[THINGS] = {0, 1, 2, 3, 4};
    for (int64_t t = 0; t < base->shape.timesteps; t++) {
        int32_t which = (int32_t)(draw((generated *)base, index, 0, t) % TRANSPOSITIONS);
        transpose(thing, which);
        x[t * batch + column] = which;
        y[t * batch + column] = number_of(thing);
    }
    return REMAT_OK;
}

static remat_status shape_s5(const rm_data_source *source, rm_data_shape *out) {
    *out = (rm_data_shape){.timesteps = source->timesteps ? source->timesteps : 32,
                           .vocabulary = TRANSPOSITIONS,
                           .classes = PERMUTATIONS,
                           .every_step = true,
                           .tracked = true};
    return REMAT_OK;
}

static remat_status open_s5(rm_dataset *base, const rm_data_source *source) {
    return make(base, source, 0x5501, shape_s5);
}

static const rm_data_kind s5 = {.bytes = sizeof(generated), .open = open_s5, .fill = fill_s5};
const rm_task rm_task_s5 = {
    .name = "s5", .flags = " embed samples tbptt label-smoothing ", .kind = &s5, .shape = shape_s5};
