/* dataset_arrays.c: an array in a file (array_file.h) as N sequences of numbers. The targets (labels.h) are a class per
 * sample or per timestep, a row of labels, or numbers:
 *
 *     .npy   (N,T,F), or (N,T) with F = 1
 *     IDX    images (N,rows,columns), as MNIST's: pixel by pixel, T = rows * columns and F = 1,
 *            or row by row, T = rows and F = columns
 *
 *            for models of vectors [N,F], as images of 1 x 1 x F
 *
 * Bytes are divided by 255; other types are not scaled. Samples may be shorter than T (--lengths): values after their
 * ends are not read, and the batch has zeros there. */
#include "train/data/batch.h"

#include "memory/host.h"
#include "train/data/array_file.h"
#include "train/data/labels.h"
#include "train/data/transform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

typedef struct {
    rm_dataset base;
    rm_array_file file;     /* its array (N,T or more,F) */
    rm_normalize normalize; /* for each feature; the first one for all if there are more than RM_MOST_CHANNELS */
    double unit;            /* divisor of all numbers */
    rm_labels labels;       /* empty: unlabelled */
    int32_t *lengths;       /* NULL: all samples have T timesteps */
} array_data;

static double value_at(const array_data *data, int64_t sample, int64_t t, int64_t f) {
    return rm_array_at(&data->file.array, sample, t, f) / data->unit;
}

static int64_t length_of(const rm_dataset *base, int64_t index) {
    const array_data *data = (const array_data *)base;
    int64_t T = base->shape.timesteps;
    return data->lengths && data->lengths[index] < T ? data->lengths[index] : T;
}

/* Writes a sample's answers to (T,B,width) or (B,width). Missing answers are 0, or -1 in a row of labels. */
static void fill_target(const array_data *data, int64_t index, int64_t column, int64_t batch, char *target) {
    const rm_labels *from = &data->labels;
    const rm_data_shape *shape = &data->base.shape;
    bool rows = shape->labels > 0;
    int64_t steps = shape->every_step && !rows ? shape->timesteps : 1;
    size_t bytes = 4 * (size_t)rm_data_targets(shape);
    for (int64_t t = 0; t < steps; t++) {
        char *to = target + (size_t)(t * batch + column) * bytes;
        if (from->item)
            memcpy(to, (char *)from->item + (size_t)(index * from->steps + t) * bytes, bytes);
        else
            memset(to, rows ? -1 : 0, bytes);
    }
}

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    const array_data *data = (array_data *)base;
    int64_t T = base->shape.timesteps, F = base->shape.features, length = length_of(base, index);
    const rm_normalize *n = &data->normalize;
    float *x = input; /* (T,B,F) */
    for (int64_t t = 0; t < T; t++)
        for (int64_t f = 0; f < F; f++) {
            int64_t c = F <= RM_MOST_CHANNELS ? f : 0;
            float value = t < length ? ((float)value_at(data, index, t, f) - n->mean[c]) / n->deviation[c] : 0;
            x[(t * batch + column) * F + f] = value;
        }
    fill_target(data, index, column, batch, target);
    return REMAT_OK;
}

static remat_status mark(rm_dataset *base, int64_t index, int64_t column, rm_batch *batch) {
    if (base->shape.lengths) rm_batch_put_length(batch, column, length_of(base, index));
    return REMAT_OK;
}

static uint32_t add_bytes(uint32_t crc32, const void *data, size_t bytes) {
    return data ? (uint32_t)crc32_z(crc32, data, bytes) : crc32;
}

/* Numbers come after lengths, classes before them: existing training states have checksums in this order. */
static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const array_data *data = (array_data *)base;
    const size_t labels = rm_labels_bytes(&data->labels, base->count);
    *crc32 = add_bytes(0, data->file.data, data->file.size);
    if (base->shape.classes) *crc32 = add_bytes(*crc32, data->labels.item, labels);
    *crc32 = add_bytes(*crc32, data->lengths, 4 * (size_t)base->count);
    if (!base->shape.classes) *crc32 = add_bytes(*crc32, data->labels.item, labels);
    return REMAT_OK;
}

static void close_arrays(rm_dataset *base) {
    array_data *data = (array_data *)base;
    rm_array_file_free(&data->file);
    rm_labels_free(&data->labels);
    rm_free(data->lengths);
}

/* ---- Shape of the samples ----------------------------------------------------------------------------------------- */

/* Views a row-major array as (N,T,F). */
static void see_as(rm_array *array, int64_t T, int64_t F) {
    array->dim[1] = T;
    array->dim[2] = F;
    array->stride[1] = F;
    array->stride[2] = 1;
}

static remat_status take_images(array_data *data, const rm_data_source *source) {
    rm_array *array = &data->file.array;
    REQUIRE(array->rank >= 2, IO, "%s has 1 dimension, but images have 3: did you mean --labels?", source->data);
    int64_t pixels = array->count / array->dim[0], rows = source->rows ? array->dim[1] : pixels;
    see_as(array, rows, pixels / rows);
    return REMAT_OK;
}

/* Does not guess whether [N,F] are vectors or sequences of one number a timestep. */
static remat_status refuse_vectors(const rm_array *array, const rm_data_source *source) {
    FAIL(INVALID,
         "%s has 2 dimensions, %lld x %lld: give --model=mlp for samples of %lld numbers, or name a recurrent model, "
         "e.g. --model=lstm, to read them as %lld timesteps of one number",
         source->data, (long long)array->dim[0], (long long)array->dim[1], (long long)array->dim[1],
         (long long)array->dim[1]);
}

static remat_status take_features(array_data *data, const rm_data_source *source) {
    const rm_array *array = &data->file.array;
    REQUIRE(array->rank == 2 || array->rank == 3, IO,
            "%s has %d dimensions, but features are [N,T] or [N,T,F]: reshape it", source->data, array->rank);
    if (array->rank == 2 && source->model_unsaid && !source->transcripts) return refuse_vectors(array, source);
    REQUIRE(!source->rows, INVALID,
            "--rows is for IDX images, but %s has timesteps and features already: remove --rows", source->data);
    return REMAT_OK;
}

/* One class per sample, one per timestep, or a row of them. */
static remat_status take_classes(array_data *data, const rm_data_source *source, const rm_labelled *samples) {
    rm_data_shape *shape = &data->base.shape;
    rm_labels *labels = &data->labels;
    bool rows = source->transcripts;
    REQUIRE(source->labels || shape->classes, INVALID,
            "without labels the number of classes is unknown: give --classes=N");
    labels->classes = shape->classes;
    labels->every_step = source->every_step;
    labels->width = 1;
    if (source->labels) TRY(rm_labels_read(source, samples, rows ? rm_labels_as_rows : rm_labels_as_steps, labels));
    shape->classes = labels->classes;
    shape->labels = rows ? labels->width : 0;
    shape->tracked = !rows && labels->every_step;
    shape->every_step = rows || labels->every_step;
    return REMAT_OK;
}

static remat_status take_numbers(array_data *data, const rm_data_source *source, const rm_labelled *samples) {
    rm_data_shape *shape = &data->base.shape;
    REQUIRE(source->labels || source->values, INVALID,
            "without labels the number of values per answer is unknown: give --values=N, and --every-step if every "
            "timestep has an answer");
    shape->values = source->values;
    shape->every_step = source->every_step;
    if (!source->labels) return REMAT_OK;
    TRY(rm_labels_read(source, samples, rm_labels_as_values, &data->labels));
    shape->values = data->labels.width;
    shape->every_step = data->labels.every_step;
    return REMAT_OK;
}

static remat_status refuse_number(const char *path, int64_t sample, int64_t t, int64_t f, double value) {
    char text[32];
    snprintf(text, sizeof text, isnan(value) ? "nan" : "%g", value);
    FAIL(INVALID,
         "%s: sample %lld, timestep %lld, feature %lld is %s%s: replace it (numpy.nan_to_num), or remove the sample%s",
         path, (long long)sample, (long long)t, (long long)f, text, isfinite(value) ? ", too large for a float" : "",
         isnan(value) ? ", or allow NaN with --allow-nan" : "");
}

static remat_status check_numbers(const array_data *data, const rm_data_source *source) {
    const rm_data_shape *shape = &data->base.shape;
    if (data->file.array.kind != 'f') return REMAT_OK;
    for (int64_t i = 0; i < data->base.count; i++)
        for (int64_t t = 0; t < length_of(&data->base, i); t++)
            for (int64_t f = 0; f < shape->features; f++) {
                double value = value_at(data, i, t, f);
                if (!rm_data_takes(source, value)) return refuse_number(source->data, i, t, f, value);
            }
    return REMAT_OK;
}

/* The shape that image models read. */
static remat_status take_vectors(array_data *data, const rm_data_source *source) {
    rm_data_shape *shape = &data->base.shape;
    REQUIRE(!source->image_size && (!source->augment || !strcmp(source->augment, "none")), INVALID,
            "--image-size and --augment are for images, and %s has vectors: remove them", source->data);
    see_as(&data->file.array, 1, shape->timesteps);
    *shape = rm_image_shape(1, 1, shape->timesteps, shape->classes, false);
    return REMAT_OK;
}

/* Checks the header's shape and views it as samples; *T becomes their timesteps. */
static remat_status take_shape(array_data *data, const rm_data_source *source, int64_t *T) {
    TRY(data->file.images ? take_images(data, source) : take_features(data, source));
    int64_t most = data->file.array.dim[1];
    *T = source->timesteps && !source->images ? source->timesteps : most; /* images have one timestep */
    REQUIRE(*T <= most, INVALID,
            "%s has %lld %s per sample, but --seq-len or the training data requires %lld: give longer samples, or "
            "--seq-len=%lld",
            source->data, (long long)most, data->file.images && !source->rows ? "pixels" : "timesteps", (long long)*T,
            (long long)most);
    REQUIRE(*T == most || !source->whole, INVALID,
            "%s has %lld timesteps per sample, but the network was trained on %lld: give --seq-len=%lld to read only "
            "the first of them, or (`remat eval` and `remat predict`) --seq-len=%lld to read all",
            source->data, (long long)most, (long long)*T, (long long)*T, (long long)most);
    return REMAT_OK;
}

/* Checks the header first, so that a file with a wrong shape is refused before it is decompressed. */
static remat_status open_file(rm_dataset *base, const rm_data_source *source) {
    array_data *data = (array_data *)base;
    rm_array *array = &data->file.array;
    int64_t T;
    TRY(rm_array_file_begin(source->data, source->budget, &data->file));
    TRY(take_shape(data, source, &T));
    TRY(rm_array_file_read(source->data, source->budget, &data->file));
    TRY(take_shape(data, source, &T));
    data->unit = array->kind == 'u' && array->bytes == 1 ? 255 : 1;
    data->base.count = array->dim[0];
    data->base.shape = (rm_data_shape){.timesteps = T, .features = array->dim[2], .classes = source->classes};
    data->base.shape.lengths = source->lengths;
    if (source->images) TRY(take_vectors(data, source));
    TRY(rm_normalize_parse(source->normalize, array->dim[2] <= RM_MOST_CHANNELS ? array->dim[2] : 1, &data->normalize));
    rm_labelled samples = {.count = array->dim[0], .most = array->dim[1], .timesteps = T};
    if (source->lengths) TRY(rm_lengths_read(source, &samples, &data->lengths));
    samples.lengths = data->lengths;
    TRY(check_numbers(data, source));
    TRY(source->numbers ? take_numbers(data, source, &samples) : take_classes(data, source, &samples));
    data->base.held_bytes = data->file.size + rm_labels_bytes(&data->labels, samples.count) +
                            (source->lengths ? 4 * (uint64_t)samples.count : 0);
    return REMAT_OK;
}

static bool are_vectors(const char *path) {
    rm_array_file file;
    bool vectors = !rm_array_file_begin(path, 0, &file) && !file.images && file.array.rank == 2;
    rm_array_file_free(&file);
    return vectors;
}

static bool reads(const rm_data_source *source) {
    return !source->images || (source->vectors && are_vectors(source->data));
}

const rm_data_kind rm_data_arrays = {.bytes = sizeof(array_data),
                                     .reads = reads,
                                     .open = open_file,
                                     .close = close_arrays,
                                     .fill = fill,
                                     .mark = mark,
                                     .length = length_of,
                                     .checksum = checksum};
