/* dataset_arrays.c: an array in a file (array_file.h) as N sequences of numbers, each with its class or one for each timestep, with a
 * row of labels, or with what values.h reads:
 *
 *     .npy   (N,T,F), or (N,T) with F = 1
 *     IDX    images (N,rows,columns), as MNIST's: pixel by pixel, T = rows * columns and F = 1,
 *            or row by row, T = rows and F = columns
 *
 * Bytes are divided by 255; other types are taken as they are. Samples may be shorter than T (--lengths): what is behind their ends
 * is never looked at, and zeros stand for it. */
#include "train/data/dataset.h"

#include "memory/host.h"
#include "train/data/array_file.h"
#include "train/data/values.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

typedef struct {
    rm_dataset base;
    rm_array_file file; /* its array (N,T or more,F) */
    double unit;        /* what numbers are divided by */
    int32_t *labels;    /* (N), or (N,S), or (N,T); NULL: unlabelled, or it has values */
    int32_t *lengths;   /* NULL: all have T */
    bool regress;
    rm_values values; /* of regress; none: unlabelled */
} array_data;

static double value_at(const array_data *data, int64_t sample, int64_t t, int64_t f) {
    return rm_array_at(&data->file.array, sample, t, f) / data->unit;
}

static int64_t length_of(const rm_dataset *base, int64_t index) {
    const array_data *data = (const array_data *)base;
    int64_t T = base->shape.timesteps;
    return data->lengths && data->lengths[index] < T ? data->lengths[index] : T;
}

/* A sample's answers, each `values` wide, into (T,B,values) or (B,values); zeros where it has none. */
static void fill_values(const array_data *data, int64_t index, int64_t column, int64_t batch, float *target) {
    const rm_values *from = &data->values;
    const rm_data_shape *shape = &data->base.shape;
    int64_t V = shape->values, steps = shape->every_step ? shape->timesteps : 1;
    for (int64_t t = 0; t < steps; t++) {
        float *to = target + (t * batch + column) * V;
        if (from->value)
            memcpy(to, from->value + (index * from->steps + t) * V, (size_t)V * sizeof *to);
        else
            memset(to, 0, (size_t)V * sizeof *to);
    }
}

/* A class, or a row of labels; -1 and 0 where there are none. */
static void fill_labels(const array_data *data, int64_t index, int64_t column, int32_t *target) {
    int64_t S = data->base.shape.labels;
    for (int64_t k = 0; k < S; k++) target[column * S + k] = data->labels ? data->labels[index * S + k] : -1;
    if (!S) target[column] = data->labels ? data->labels[index] : 0;
}

/* A class for each timestep, -1 behind the sample's end; 0 where there are no labels. */
static void fill_step_labels(const array_data *data, int64_t index, int64_t column, int64_t batch, int32_t *target) {
    int64_t T = data->base.shape.timesteps;
    for (int64_t t = 0; t < T; t++) target[t * batch + column] = data->labels ? data->labels[index * T + t] : 0;
}

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    const array_data *data = (array_data *)base;
    int64_t T = base->shape.timesteps, F = base->shape.features, length = length_of(base, index);
    float *x = input; /* (T,B,F) */
    for (int64_t t = 0; t < T; t++)
        for (int64_t f = 0; f < F; f++)
            x[(t * batch + column) * F + f] = t < length ? (float)value_at(data, index, t, f) : 0;
    if (data->regress)
        fill_values(data, index, column, batch, target);
    else if (base->shape.tracked)
        fill_step_labels(data, index, column, batch, target);
    else
        fill_labels(data, index, column, target);
    return REMAT_OK;
}

static size_t value_bytes(const array_data *data) {
    const rm_values *v = &data->values;
    return v->value ? (size_t)(data->base.count * v->steps * v->width) * sizeof *v->value : 0;
}

static int64_t label_count(const rm_dataset *base) {
    const rm_data_shape *shape = &base->shape;
    return base->count * (shape->labels ? shape->labels : shape->tracked ? shape->timesteps : 1);
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const array_data *data = (array_data *)base;
    *crc32 = (uint32_t)crc32_z(0, data->file.data, data->file.size);
    if (data->labels) *crc32 = (uint32_t)crc32_z(*crc32, (const uint8_t *)data->labels, 4 * (size_t)label_count(base));
    if (data->lengths) *crc32 = (uint32_t)crc32_z(*crc32, (const uint8_t *)data->lengths, 4 * (size_t)base->count);
    if (data->values.value) *crc32 = (uint32_t)crc32_z(*crc32, (const uint8_t *)data->values.value, value_bytes(data));
    return REMAT_OK;
}

static void close_arrays(rm_dataset *base) {
    array_data *data = (array_data *)base;
    rm_array_file_free(&data->file);
    rm_free(data->labels);
    rm_free(data->lengths);
    rm_free(data->values.value);
    rm_free(data);
}

/* ---- What samples there are --------------------------------------------------------------------------------------- */

/* An array in row-major order, seen as (N,T,F). */
static void see_as(rm_array *array, int64_t T, int64_t F) {
    array->dim[1] = T;
    array->dim[2] = F;
    array->stride[1] = F;
    array->stride[2] = 1;
}

static remat_status take_images(array_data *data, const rm_data_source *source) {
    rm_array *array = &data->file.array;
    REQUIRE(array->rank >= 2, IO, "%s has one dimension; images have 3: is this the file for --labels?", source->data);
    int64_t pixels = array->count / array->dim[0], rows = source->rows ? array->dim[1] : pixels;
    see_as(array, rows, pixels / rows);
    return REMAT_OK;
}

static remat_status take_features(array_data *data, const rm_data_source *source) {
    const rm_array *array = &data->file.array;
    REQUIRE(array->rank == 2 || array->rank == 3, IO, "%s has %d dimensions; features are [N,T] or [N,T,F]",
            source->data, array->rank);
    REQUIRE(!source->rows, INVALID,
            "--rows is for IDX images, and %s has its timesteps and features as it is: leave it out", source->data);
    return REMAT_OK;
}

/* One a sample, or one a timestep. */
static remat_status take_classes(array_data *data, const rm_data_source *source) {
    rm_data_shape *shape = &data->base.shape;
    const rm_labelled samples = {data->base.count, data->file.array.dim[1], shape->timesteps, data->lengths};
    shape->every_step = source->every_step;
    if (source->labels)
        TRY(rm_sequence_labels_read(source, samples, &shape->every_step, &data->labels, &shape->classes));
    shape->tracked = shape->every_step;
    return REMAT_OK;
}

static remat_status take_labels(array_data *data, const rm_data_source *source) {
    int64_t *classes = &data->base.shape.classes;
    REQUIRE(source->labels || *classes, INVALID, "without labels the number of classes is needed: say --classes=N");
    if (source->transcripts) data->base.shape.labels = 1, data->base.shape.every_step = true;
    if (source->transcripts && source->labels)
        return rm_transcripts_read(source, data->base.count, data->base.shape.timesteps, data->lengths, &data->labels,
                                   &data->base.shape.labels, classes);
    return source->transcripts ? REMAT_OK : take_classes(data, source);
}

static remat_status take_values(array_data *data, const rm_data_source *source) {
    rm_data_shape *shape = &data->base.shape;
    REQUIRE(
        source->labels || source->values, INVALID,
        "without labels it is not known how many numbers an answer has: say --values=N, and --every-step where each "
        "timestep has one");
    shape->values = source->values;
    shape->every_step = source->every_step;
    if (!source->labels) return REMAT_OK;
    TRY(rm_values_read(source, data->base.count, data->file.array.dim[1], data->lengths, &data->values));
    shape->values = data->values.width;
    shape->every_step = data->values.every_step;
    data->base.held_bytes += value_bytes(data);
    return REMAT_OK;
}

static remat_status refuse_number(const char *path, int64_t sample, int64_t t, int64_t f, double value) {
    char text[32];
    snprintf(text, sizeof text, isnan(value) ? "nan" : "%g", value);
    FAIL(INVALID,
         "%s: sample %lld, timestep %lld, feature %lld is %s%s; only numbers can be learnt from or judged: put one "
         "there (numpy.nan_to_num), or leave the sample out%s",
         path, (long long)sample, (long long)t, (long long)f, text, isfinite(value) ? ", too large for a float" : "",
         isnan(value) ? ", or let it through by --allow-nan" : "");
}

/* One number that is none spoils every weight, and would be blamed on the learning rate. */
static remat_status check_numbers(const array_data *data, const rm_data_source *source) {
    const rm_data_shape *shape = &data->base.shape;
    if (data->file.array.kind != 'f') return REMAT_OK;
    for (int64_t i = 0; i < data->base.count; i++)
        for (int64_t t = 0; t < length_of(&data->base, i); t++)
            for (int64_t f = 0; f < shape->features; f++) {
                double value = value_at(data, i, t, f);
                if (source->allow_nan && isnan(value)) continue;
                if (!(fabs(value) <= (double)FLT_MAX)) return refuse_number(source->data, i, t, f, value);
            }
    return REMAT_OK;
}

/* What the header says, as samples; *T: their timesteps. */
static remat_status take_shape(array_data *data, const rm_data_source *source, int64_t *T) {
    TRY(data->file.images ? take_images(data, source) : take_features(data, source));
    int64_t most = data->file.array.dim[1];
    *T = source->timesteps ? source->timesteps : most;
    REQUIRE(*T <= most, INVALID,
            "%s has %lld %s a sample, and %lld are asked for, by --seq-len or by the data that were trained on: give "
            "longer samples, or --seq-len=%lld",
            source->data, (long long)most, data->file.images && !source->rows ? "pixels" : "timesteps", (long long)*T,
            (long long)most);
    REQUIRE(*T == most || !source->whole, INVALID,
            "%s has %lld timesteps a sample, and the network was trained on %lld: say --seq-len=%lld to read the first "
            "of them alone, or, to `remat eval` and `predict`, --seq-len=%lld to read all",
            source->data, (long long)most, (long long)*T, (long long)*T, (long long)most);
    return REMAT_OK;
}

/* Looked at before it is read: a shape that is refused anyway is not unpacked for it. */
static remat_status open_file(array_data *data, const rm_data_source *source) {
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
    data->base.held_bytes = data->file.size + (source->lengths ? 4 * (uint64_t)data->base.count : 0);
    if (source->lengths) TRY(rm_lengths_read(source, data->base.count, array->dim[1], &data->lengths));
    TRY(check_numbers(data, source));
    if (data->regress) return take_values(data, source);
    TRY(take_labels(data, source));
    data->base.held_bytes += data->labels ? 4 * (uint64_t)label_count(&data->base) : 0;
    return REMAT_OK;
}

static remat_status open(const rm_data_source *source, bool regress, rm_dataset **out) {
    array_data *data = rm_malloc(sizeof *data);
    REQUIRE(data, MEMORY, "no memory to open %s", source->data);
    *data = (array_data){.base = {.fill = fill, .length = length_of, .checksum = checksum, .close = close_arrays},
                         .regress = regress};
    remat_status status = open_file(data, source);
    if (status)
        close_arrays(&data->base);
    else
        *out = &data->base;
    return status;
}

remat_status rm_dataset_open_arrays(const rm_data_source *source, rm_dataset **out) { return open(source, false, out); }

remat_status rm_dataset_open_values(const rm_data_source *source, rm_dataset **out) { return open(source, true, out); }
