/* dataset_pairs.c: pairs of sequences for --task=seq2seq: line i of one text and line i of another, bytes as tokens; or generated
 * ones: some ten to twenty small letters, and the same letters again, reversed, or sorted. Texts lie in memory.
 *
 *     input   (S,B)   BEGIN BEGIN h e l l o END      it ends at the last timestep, where the encoder's final states are
 *     target  (T,B)   o l l e h END -1 -1            -1 counts nothing
 *
 * Generated: sample i is a function of (seed, i). */
#include "train/data/dataset.h"

#include "engine/rng.h"
#include "memory/host.h"
#include "train/file.h"

#include <string.h>
#include <zlib.h>

enum { ALPHABET = 26, USUAL_LETTERS = 20 };
enum { NODE_TRAINING = 0x5E25, NODE_HELD_OUT = 0x5E26 };

typedef struct {
    const char *path;
    uint8_t *bytes;
    size_t size;
    int64_t count, longest, longest_line; /* of lines; longest: bytes of one, and which that is */
    uint64_t *begin; /* count + 1 of them: where lines begin; the last: behind the end of the last line */
} text;

typedef struct {
    rm_dataset base;
    text source, target;
    enum { COPY, REVERSE, SORT } rule; /* of generated pairs */
    uint64_t seed;
    uint32_t node; /* of the random key: tells training samples from held-out ones */
} pair_data;

/* ---- A sample ----------------------------------------------------------------------------------------------------- */

static void put_source(const rm_data_shape *shape, const uint8_t *line, int64_t n, int64_t column, int64_t batch,
                       int32_t *x) {
    int64_t S = shape->timesteps, before = S - 1 - n;
    for (int64_t t = 0; t < before; t++) x[t * batch + column] = rm_pair_begin(shape);
    for (int64_t i = 0; i < n; i++) x[(before + i) * batch + column] = line[i];
    x[(S - 1) * batch + column] = rm_pair_end(shape);
}

static void put_target(const rm_data_shape *shape, const uint8_t *line, int64_t n, int64_t column, int64_t batch,
                       int32_t *y) {
    for (int64_t i = 0; i < n; i++) y[i * batch + column] = line[i];
    y[n * batch + column] = rm_pair_end(shape);
    for (int64_t t = n + 1; t < shape->answer_steps; t++) y[t * batch + column] = -1;
}

/* ---- Generated ---------------------------------------------------------------------------------------------------- */

/* What the rule makes of n letters. */
static void answer(const pair_data *data, const uint8_t *from, int64_t n, uint8_t *to) {
    int64_t at = 0;
    for (int64_t i = 0; i < n && data->rule != SORT; i++) to[i] = from[data->rule == COPY ? i : n - 1 - i];
    for (int letter = 'a'; letter < 'a' + ALPHABET && data->rule == SORT; letter++)
        for (int64_t i = 0; i < n; i++)
            if (from[i] == letter) to[at++] = from[i];
}

/* Half as many letters as there is room for, or more. */
static remat_status generate(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input,
                             void *target) {
    const pair_data *data = (pair_data *)base;
    int64_t most = base->shape.timesteps - 1, least = (most + 1) / 2;
    uint8_t *line = rm_malloc(2 * (size_t)most);
    REQUIRE(line, MEMORY, "no memory for %lld letters", (long long)most);
    int64_t n = least + rm_random(data->seed, (uint64_t)index, data->node, 1, 0) % (most - least + 1);
    for (int64_t i = 0; i < n; i++)
        line[i] = 'a' + (uint8_t)(rm_random(data->seed, (uint64_t)index, data->node, 0, (uint64_t)i) % ALPHABET);
    answer(data, line, n, line + most);
    put_source(&base->shape, line, n, column, batch, input);
    put_target(&base->shape, line + most, n, column, batch, target);
    rm_free(line);
    return REMAT_OK;
}

/* ---- Files -------------------------------------------------------------------------------------------------------- */

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    const pair_data *data = (pair_data *)base;
    const uint64_t *from = data->source.begin + index, *to = data->target.begin + index;
    put_source(&base->shape, data->source.bytes + from[0], (int64_t)(from[1] - from[0]) - 1, column, batch, input);
    put_target(&base->shape, data->target.bytes + to[0], (int64_t)(to[1] - to[0]) - 1, column, batch, target);
    return REMAT_OK;
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const pair_data *data = (pair_data *)base;
    *crc32 = (uint32_t)crc32_z(*crc32, data->source.bytes, data->source.size);
    *crc32 = (uint32_t)crc32_z(*crc32, data->target.bytes, data->target.size);
    return REMAT_OK;
}

/* A last line may lack its end. */
static remat_status find_lines(text *t) {
    for (size_t i = 0; i < t->size; i++) t->count += t->bytes[i] == '\n' || i + 1 == t->size;
    t->begin = rm_calloc((size_t)t->count + 1, sizeof *t->begin);
    REQUIRE(t->begin, MEMORY, "%s: no memory for its %lld lines", t->path, (long long)t->count);
    int64_t line = 0;
    for (size_t i = 0; i < t->size; i++) {
        if (t->bytes[i] != '\n' && i + 1 != t->size) continue;
        uint64_t end = i + 1 + (t->bytes[i] != '\n'), length = end - t->begin[line] - 1;
        t->begin[++line] = end;
        if ((int64_t)length <= t->longest && line > 1) continue;
        t->longest = (int64_t)length;
        t->longest_line = line;
    }
    return REMAT_OK;
}

static remat_status read_text(const char *path, uint64_t most, text *out) {
    out->path = path;
    TRY(rm_file_read(path, most ? most : RM_UNPACKED_BYTES, &out->bytes, &out->size));
    TRY(find_lines(out));
    REQUIRE(out->count, INVALID, "%s is empty: it needs a line for each sample", path);
    return REMAT_OK;
}

static remat_status check_length(const text *t, int64_t timesteps) {
    REQUIRE(!timesteps || t->longest < timesteps, INVALID,
            "%s: line %lld has %lld bytes, and with its end that is more than --seq-len=%lld: make that %lld, or leave "
            "such pairs out of the files",
            t->path, (long long)t->longest_line, (long long)t->longest, (long long)timesteps,
            (long long)t->longest + 1);
    return REMAT_OK;
}

static remat_status read_texts(const rm_data_source *source, pair_data *data) {
    TRY(read_text(source->data, source->budget, &data->source));
    TRY(read_text(source->labels, source->budget, &data->target));
    REQUIRE(data->source.count == data->target.count, INVALID,
            "%s has %lld lines, and %s has %lld: line N of one belongs to line N of the other", source->data,
            (long long)data->source.count, source->labels, (long long)data->target.count);
    TRY(check_length(&data->source, source->timesteps));
    TRY(check_length(&data->target, source->timesteps));
    data->base.count = data->source.count;
    data->base.held_bytes = data->source.size + data->target.size + 16 * (uint64_t)(data->base.count + 1);
    data->base.shape = rm_pair_shape(data->source.longest, data->target.longest);
    data->base.fill = fill;
    data->base.checksum = checksum;
    return REMAT_OK;
}

/* ---- Opening ------------------------------------------------------------------------------------------------------ */

static void free_text(text *t) {
    rm_free(t->bytes);
    rm_free(t->begin);
}

static void close_pairs(rm_dataset *base) {
    pair_data *data = (pair_data *)base;
    free_text(&data->source);
    free_text(&data->target);
    rm_free(data);
}

/* Lines of so many bytes, at most. */
rm_data_shape rm_pair_shape(int64_t source, int64_t target) {
    return (rm_data_shape){
        .timesteps = source + 1, .answer_steps = target + 1, .vocabulary = 258, .classes = 257, .every_step = true};
}

remat_status rm_generated_pair_shape(int64_t timesteps, rm_data_shape *out) {
    REQUIRE(!timesteps || timesteps >= 2, INVALID, "--seq-len=%lld: a letter and its end need 2 timesteps",
            (long long)timesteps);
    int64_t letters = timesteps ? timesteps - 1 : USUAL_LETTERS;
    *out = rm_pair_shape(letters, letters);
    return REMAT_OK;
}

static remat_status make_pairs(const rm_data_source *source, pair_data *data) {
    TRY(rm_generated_pair_shape(source->timesteps, &data->base.shape));
    data->base.count = source->samples;
    data->base.fill = generate;
    data->rule = !strcmp(source->generate, "copy") ? COPY : !strcmp(source->generate, "reverse") ? REVERSE : SORT;
    data->seed = (uint64_t)source->seed;
    data->node = source->held_out ? NODE_HELD_OUT : NODE_TRAINING;
    return REMAT_OK;
}

remat_status rm_dataset_open_pairs(const rm_data_source *source, rm_dataset **out) {
    pair_data *data = rm_malloc(sizeof *data);
    REQUIRE(data, MEMORY, "no memory for pairs of lines");
    *data = (pair_data){.base = {.close = close_pairs}};
    remat_status status = source->data ? read_texts(source, data) : make_pairs(source, data);
    if (status)
        close_pairs(&data->base);
    else
        *out = &data->base;
    return status;
}
