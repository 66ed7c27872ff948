/* dataset_pairs.c: pairs of sequences for --task=seq2seq. Line i of one text belongs to line i of another; tokens are
 * bytes, or come from a tokenizer. Generated pairs are ten to twenty small letters and the same letters copied,
 * reversed or sorted. Texts are kept in memory, 4 bytes per token.
 *
 *     input   (S,B)   END o l l e h BEGIN BEGIN      reversed; the encoder reads from the last timestep to the first
 *     target  (T,B)   o l l e h END -1 -1            -1 is ignored
 *
 * So padding follows the lines of both, where batches can end early (remat_set_sequence_end), and the encoder's final
 * states of all lines are at timestep 0.
 *
 * Generated sample i is a function of (seed, i). */
#include "train/data/batch.h"

#include "engine/rng.h"
#include "memory/host.h"
#include "train/data/tokenizer.h"
#include "train/file.h"

#include <string.h>
#include <zlib.h>

enum { ALPHABET = 26, USUAL_LETTERS = 20 };
enum { NODE_TRAINING = 0x5E25, NODE_HELD_OUT = 0x5E26 };

typedef struct {
    const char *path;
    rm_tokens tokens;
    int64_t count, longest, longest_line; /* number of lines; tokens of the longest line, and its number, from 1 */
    int64_t *begin;                       /* (count + 1): index of each line's first token */
} text;

typedef struct {
    rm_dataset base;
    text source, target;
    enum { COPY, REVERSE, SORT } rule; /* for generated pairs */
    uint64_t seed;
    uint32_t node;           /* part of the random key; differs between training and held-out samples */
    rm_tokenizer *tokenizer; /* only while texts are read; NULL: tokens are bytes */
} pair_data;

/* ---- A sample ----------------------------------------------------------------------------------------------------- */

static void put_source(const rm_data_shape *shape, const int32_t *line, int64_t n, int64_t column, int64_t batch,
                       int32_t *x) {
    x[column] = rm_pair_end(shape);
    for (int64_t i = 0; i < n; i++) x[(n - i) * batch + column] = line[i];
    for (int64_t t = n + 1; t < shape->timesteps; t++) x[t * batch + column] = rm_pair_begin(shape);
}

static void put_target(const rm_data_shape *shape, const int32_t *line, int64_t n, int64_t column, int64_t batch,
                       int32_t *y) {
    for (int64_t i = 0; i < n; i++) y[i * batch + column] = line[i];
    y[n * batch + column] = rm_pair_end(shape);
    for (int64_t t = n + 1; t < shape->answer_steps; t++) y[t * batch + column] = -1;
}

/* Marks where the reversed input begins, and shifts the targets by one timestep for the decoder (teacher forcing). */
static remat_status mark(rm_dataset *base, int64_t index, int64_t column, rm_batch *batch) {
    const rm_data_shape *shape = &base->shape;
    const int32_t begin = rm_pair_begin(shape), *x = batch->data[RM_INPUT], *y = batch->data[RM_TARGET];
    int32_t *padding = batch->data[RM_PADDING], *previous = batch->data[RM_PREVIOUS];
    float *begins = batch->data[RM_BEGINS];
    int64_t B = batch->batch, last = (shape->timesteps - 1) * B + column;
    (void)index;
    for (int64_t i = column; i <= last; i += B) {
        padding[i] = x[i] == begin;
        begins[i] = x[i] != begin && (i == last || x[i + B] == begin);
    }
    for (int64_t i = column; i < shape->answer_steps * B; i += B) {
        int32_t before = i < B ? begin : y[i - B];
        previous[i] = before < 0 ? begin : before;
    }
    return REMAT_OK;
}

/* ---- Generated ---------------------------------------------------------------------------------------------------- */

/* Applies the rule to n letters. */
static void answer(const pair_data *data, const int32_t *from, int64_t n, int32_t *to) {
    int64_t at = 0;
    for (int64_t i = 0; i < n && data->rule != SORT; i++) to[i] = from[data->rule == COPY ? i : n - 1 - i];
    for (int32_t letter = 'a'; letter < 'a' + ALPHABET && data->rule == SORT; letter++)
        for (int64_t i = 0; i < n; i++)
            if (from[i] == letter) to[at++] = from[i];
}

/* Between half of the available timesteps and all of them. */
static int64_t count_letters(const pair_data *data, int64_t index) {
    int64_t most = data->base.shape.timesteps - 1, least = (most + 1) / 2;
    return least + rm_random(data->seed, (uint64_t)index, data->node, 1, 0) % (most - least + 1);
}

static int64_t generated_length(const rm_dataset *base, int64_t index) {
    return count_letters((const pair_data *)base, index) + 1;
}

static remat_status generate(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input,
                             void *target) {
    const pair_data *data = (pair_data *)base;
    int64_t most = base->shape.timesteps - 1, n = count_letters(data, index);
    int32_t *line = rm_calloc(2 * (size_t)most, sizeof *line);
    REQUIRE(line, MEMORY, "no memory for %lld letters", (long long)most);
    for (int64_t i = 0; i < n; i++)
        line[i] = 'a' + (int32_t)(rm_random(data->seed, (uint64_t)index, data->node, 0, (uint64_t)i) % ALPHABET);
    answer(data, line, n, line + most);
    put_source(&base->shape, line, n, column, batch, input);
    put_target(&base->shape, line + most, n, column, batch, target);
    rm_free(line);
    return REMAT_OK;
}

/* ---- Files -------------------------------------------------------------------------------------------------------- */

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    const pair_data *data = (pair_data *)base;
    const text *from = &data->source, *to = &data->target;
    const int64_t *i = from->begin + index, *j = to->begin + index;
    put_source(&base->shape, from->tokens.id + i[0], i[1] - i[0], column, batch, input);
    put_target(&base->shape, to->tokens.id + j[0], j[1] - j[0], column, batch, target);
    return REMAT_OK;
}

static int64_t line_length(const text *t, int64_t index) { return t->begin[index + 1] - t->begin[index] + 1; }
static int64_t source_length(const rm_dataset *base, int64_t index) {
    return line_length(&((const pair_data *)base)->source, index);
}
static int64_t target_length(const rm_dataset *base, int64_t index) {
    return line_length(&((const pair_data *)base)->target, index);
}

static uint32_t add_checksum(uint32_t crc32, const text *t) {
    size_t bytes = (size_t)t->tokens.count * sizeof *t->tokens.id;
    if (bytes) crc32 = (uint32_t)crc32_z(crc32, (const void *)t->tokens.id, bytes);
    return (uint32_t)crc32_z(crc32, (const void *)t->begin, ((size_t)t->count + 1) * sizeof *t->begin);
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const pair_data *data = (pair_data *)base;
    *crc32 = add_checksum(add_checksum(*crc32, &data->source), &data->target);
    return REMAT_OK;
}

static remat_status add_line(const rm_tokenizer *tokenizer, const uint8_t *line, size_t size, text *t) {
    TRY(rm_tokenizer_encode(tokenizer, line, size, &t->tokens));
    int64_t length = t->tokens.count - t->begin[t->count++];
    t->begin[t->count] = t->tokens.count;
    if (length <= t->longest && t->count > 1) return REMAT_OK;
    t->longest = length;
    t->longest_line = t->count;
    return REMAT_OK;
}

/* The last line may lack a line feed. Lines may end with CR LF. */
static remat_status cut_lines(const rm_tokenizer *tokenizer, const uint8_t *bytes, size_t size, text *t) {
    size_t lines = 0, at = 0;
    for (size_t i = 0; i < size; i++) lines += bytes[i] == '\n' || i + 1 == size;
    REQUIRE(lines, INVALID, "%s is empty: give a text with one line per sample", t->path);
    t->begin = rm_calloc(lines + 1, sizeof *t->begin);
    REQUIRE(t->begin, MEMORY, "%s: no memory for its %zu lines", t->path, lines);
    for (; at < size; at++) {
        const uint8_t *end = memchr(bytes + at, '\n', size - at);
        size_t length = end ? (size_t)(end - bytes) - at : size - at;
        bool windows = end && length && end[-1] == '\r';
        remat_status status = add_line(tokenizer, bytes + at, length - windows, t);
        if (status) return rm_fail_in(status, "%s, line %lld", t->path, (long long)t->count + 1);
        at += length;
    }
    return REMAT_OK;
}

static remat_status check_size(const char *path, uint64_t size, uint64_t budget) {
    REQUIRE(size <= (budget ? budget : RM_UNPACKED_BYTES), INFEASIBLE, "%s is larger than %llu bytes, the %s", path,
            (unsigned long long)(budget ? budget : RM_UNPACKED_BYTES),
            budget ? "memory budget: give a larger one, or a shorter text"
                   : "limit without a memory budget: give a --memory-budget that is large enough, or a shorter text");
    return REMAT_OK;
}

static remat_status read_text(const char *path, uint64_t budget, const rm_tokenizer *tokenizer, text *out) {
    uint8_t *bytes;
    size_t size;
    out->path = path;
    TRY(rm_file_read_first(path, (budget ? budget : RM_UNPACKED_BYTES) + 1, &bytes, &size));
    remat_status status = check_size(path, size, budget);
    if (!status) status = cut_lines(tokenizer, bytes, size, out);
    rm_free(bytes);
    if (out->tokens.count)
        out->tokens.id = rm_shrink(out->tokens.id, (size_t)out->tokens.count * sizeof *out->tokens.id);
    return status;
}

static remat_status check_length(const text *t, int64_t timesteps) {
    REQUIRE(
        !timesteps || t->longest < timesteps, INVALID,
        "%s: line %lld has %lld tokens; with its end token this exceeds --seq-len=%lld: give --seq-len=%lld, or remove "
        "such pairs from both files",
        t->path, (long long)t->longest_line, (long long)t->longest, (long long)timesteps, (long long)t->longest + 1);
    return REMAT_OK;
}

static uint64_t held_bytes(const text *t) {
    return (uint64_t)t->tokens.count * sizeof *t->tokens.id + (uint64_t)(t->count + 1) * sizeof *t->begin;
}

static remat_status read_texts(const rm_data_source *source, pair_data *data) {
    int64_t tokens = RM_PAIR_BYTES;
    if (source->tokenizer) TRY(rm_dataset_read_tokenizer(&data->base, source, &data->tokenizer, &tokens));
    TRY(read_text(source->data, source->budget, data->tokenizer, &data->source));
    TRY(read_text(source->labels, source->budget, data->tokenizer, &data->target));
    REQUIRE(data->source.count == data->target.count, INVALID,
            "%s has %lld line%s, but %s has %lld: give files where line N of one belongs to line N of the other",
            source->data, (long long)data->source.count, data->source.count == 1 ? "" : "s", source->labels,
            (long long)data->target.count);
    TRY(check_length(&data->source, source->timesteps));
    TRY(check_length(&data->target, source->timesteps));
    data->base.count = data->source.count;
    data->base.held_bytes += held_bytes(&data->source) + held_bytes(&data->target);
    data->base.shape = rm_pair_shape(data->source.longest, data->target.longest, tokens);
    return REMAT_OK;
}

/* ---- Opening ------------------------------------------------------------------------------------------------------ */

static void free_text(text *t) {
    rm_free(t->tokens.id);
    rm_free(t->begin);
}

static void close_pairs(rm_dataset *base) {
    pair_data *data = (pair_data *)base;
    free_text(&data->source);
    free_text(&data->target);
    rm_tokenizer_free(data->tokenizer);
}

rm_data_shape rm_pair_shape(int64_t source, int64_t target, int64_t tokens) {
    return (rm_data_shape){.timesteps = source + 1,
                           .answer_steps = target + 1,
                           .vocabulary = tokens + 2,
                           .classes = tokens + 1,
                           .every_step = true};
}

static remat_status open_generated(rm_dataset *base, const rm_data_source *source) {
    pair_data *data = (pair_data *)base;
    base->count = source->samples;
    data->rule = !strcmp(source->generate, "copy") ? COPY : !strcmp(source->generate, "reverse") ? REVERSE : SORT;
    data->seed = (uint64_t)source->seed;
    data->node = source->held_out ? NODE_HELD_OUT : NODE_TRAINING;
    int64_t T = source->timesteps, letters = T ? T - 1 : USUAL_LETTERS;
    REQUIRE(!T || T >= 2, INVALID, "--seq-len=%lld is too short: a letter and the end token need 2 timesteps",
            (long long)T);
    base->shape = rm_pair_shape(letters, letters, RM_PAIR_BYTES);
    return REMAT_OK;
}

static remat_status open_texts(rm_dataset *base, const rm_data_source *source) {
    pair_data *data = (pair_data *)base;
    remat_status status = read_texts(source, data);
    rm_tokenizer_free(data->tokenizer);
    data->tokenizer = NULL;
    return status;
}

const rm_data_kind rm_data_pairs = {.bytes = sizeof(pair_data),
                                    .open = open_texts,
                                    .close = close_pairs,
                                    .fill = fill,
                                    .mark = mark,
                                    .length = source_length,
                                    .answer_length = target_length,
                                    .checksum = checksum};
const rm_data_kind rm_data_generated_pairs = {.bytes = sizeof(pair_data),
                                              .open = open_generated,
                                              .fill = generate,
                                              .mark = mark,
                                              .length = generated_length,
                                              .answer_length = generated_length};
