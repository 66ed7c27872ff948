/* labels.c: see labels.h. */
#include "train/data/labels.h"

#include "memory/host.h"
#include "train/data/array_file.h"

#include <math.h>
#include <stdio.h>

/* ---- Reading ------------------------------------------------------------------------------------------------------ */

static remat_status read_file(const char *path, const rm_data_source *source, const rm_labelled *samples,
                              rm_labels_as *as, rm_labels *labels) {
    rm_array_file file;
    remat_status status = rm_array_file_read(path, source->budget, &file);
    if (!status) status = as(&file.array, source, samples, labels);
    rm_array_file_free(&file);
    return status;
}

remat_status rm_labels_read(const rm_data_source *source, const rm_labelled *samples, rm_labels_as *as,
                            rm_labels *labels) {
    return read_file(source->labels, source, samples, as, labels);
}

remat_status rm_labels_make_room(rm_labels *labels, int64_t count, int64_t steps, int64_t width) {
    labels->steps = steps;
    labels->width = width;
    labels->item = rm_calloc((size_t)(count * steps * width), 4);
    REQUIRE(labels->item, MEMORY, "no memory for %lld labels", (long long)(count * steps * width));
    return REMAT_OK;
}

void rm_labels_free(rm_labels *labels) {
    rm_free(labels->item);
    labels->item = NULL;
}

/* ---- Classes ------------------------------------------------------------------------------------------------------ */

/* "sample 3", "sample 3, timestep 5" (t -1: without timestep). */
static const char *place_text(int64_t sample, int64_t t, char text[64]) {
    int n = snprintf(text, 64, "sample %lld", (long long)sample);
    if (t >= 0) snprintf(text + n, 64 - (size_t)n, ", timestep %lld", (long long)t);
    return text;
}

/* Converts a label to a class; the ignored label becomes -1. */
static remat_status take_label(const rm_data_source *source, double label, int64_t sample, int64_t t, int64_t bound,
                               int32_t *out) {
    char place[64];
    bool whole = !(fabs(label) < 1e15) || label == floor(label);
    *out = -1;
    if (source->ignores && label == (double)source->ignored) return REMAT_OK;
    REQUIRE(whole, INVALID, "%s: label %g of %s is not an integer: give class numbers, from 0 on", source->labels,
            label, place_text(sample, t, place));
    REQUIRE(label >= 0 && label < (double)bound, INVALID,
            "%s: label %.15g of %s is outside 0..%lld: check --labels or --classes, or ignore such %s with "
            "--ignore-index",
            source->labels, label, place_text(sample, t, place), (long long)bound - 1, t < 0 ? "samples" : "timesteps");
    *out = (int32_t)label;
    return REMAT_OK;
}

static int64_t bound_of(const int64_t *classes) { return *classes ? *classes : 1000000; }

static remat_status settle_classes(const rm_data_source *source, int64_t largest, int64_t *classes) {
    REQUIRE(largest >= 0, INVALID,
            "%s has only the label %lld, which --ignore-index ignores: give other labels, or change --ignore-index",
            source->labels, (long long)source->ignored);
    REQUIRE(*classes || largest > 0, INVALID,
            "%s: all labels are 0, and with one class there is nothing to learn: give labels of two or more classes",
            source->labels);
    if (!*classes) *classes = largest + 1;
    return REMAT_OK;
}

static remat_status copy_classes(const rm_array *array, const rm_data_source *source, rm_labels *labels) {
    int64_t largest = -1, width = array->rank == 3 ? array->dim[2] : 1, places = array->count / array->dim[0];
    int32_t *label = labels->item;
    for (int64_t i = 0; i < array->count; i++) {
        int64_t place = i % places;
        double value = rm_array_at(array, i / places, place / width, place % width);
        TRY(take_label(source, value, i / places, -1, bound_of(&labels->classes), &label[i]));
        if (label[i] > largest) largest = label[i];
    }
    return settle_classes(source, largest, &labels->classes);
}

static remat_status copy_step_classes(const rm_array *array, const rm_data_source *source, const rm_labelled *samples,
                                      rm_labels *labels) {
    int64_t largest = -1, T = samples->timesteps;
    for (int64_t i = 0; i < samples->count; i++)
        for (int64_t t = 0; t < T; t++) {
            int32_t *label = (int32_t *)labels->item + i * T + t;
            *label = -1;
            if (samples->lengths && t >= samples->lengths[i]) continue;
            TRY(take_label(source, rm_array_at(array, i, t, 0), i, t, bound_of(&labels->classes), label));
            if (*label > largest) largest = *label;
        }
    return settle_classes(source, largest, &labels->classes);
}

remat_status rm_labels_as_classes(const rm_array *array, const rm_data_source *source, const rm_labelled *samples,
                                  rm_labels *labels) {
    const char *path = source->labels;
    REQUIRE(array->rank == 1, IO, "%s has %d dimensions, but labels have 1: did you mean --data?", path, array->rank);
    REQUIRE(array->count == samples->count, INVALID, "%s has %lld labels for %lld samples: give matching files", path,
            (long long)array->count, (long long)samples->count);
    TRY(rm_labels_make_room(labels, samples->count, 1, 1));
    return copy_classes(array, source, labels);
}

static remat_status convert_step_classes(const rm_array *array, const rm_data_source *source,
                                         const rm_labelled *samples, rm_labels *labels) {
    const char *path = source->labels;
    REQUIRE(array->dim[0] == samples->count, INVALID,
            "%s has labels for %lld samples, and there are %lld: give the two files of one set", path,
            (long long)array->dim[0], (long long)samples->count);
    REQUIRE(array->dim[1] == samples->most, INVALID,
            "%s has labels for %lld timesteps, but samples have %lld: give one per timestep, or [N], one per sample",
            path, (long long)array->dim[1], (long long)samples->most);
    TRY(rm_labels_make_room(labels, samples->count, samples->timesteps, 1));
    return copy_step_classes(array, source, samples, labels);
}

remat_status rm_labels_as_steps(const rm_array *array, const rm_data_source *source, const rm_labelled *samples,
                                rm_labels *labels) {
    bool every_step = labels->every_step = array->rank == 2;
    REQUIRE(array->rank <= 2, IO,
            "%s has %d dimensions, but labels are [N], one per sample, or [N,T], one per timestep: did you mean "
            "--data?",
            source->labels, array->rank);
    REQUIRE(!source->steps_known || every_step == source->every_step, INVALID,
            "%s has one label per %s, but the model has one output per %s: give such labels, or change "
            "--every-step",
            source->labels, every_step ? "timestep" : "sample", source->every_step ? "timestep" : "sample");
    return every_step ? convert_step_classes(array, source, samples, labels)
                      : rm_labels_as_classes(array, source, samples, labels);
}

remat_status rm_labels_as_pixels(const rm_array *array, const rm_data_source *source, const rm_labelled *samples,
                                 rm_labels *labels) {
    int64_t N = samples->count, H = samples->height, W = samples->width;
    REQUIRE(
        array->rank == 3 && array->dim[0] == N && array->dim[1] == H && array->dim[2] == W, INVALID,
        "%s: labels for each pixel of %lld images are (N,H,W) = (%lld,%lld,%lld), but the file has %d dimension%s%s",
        source->labels, (long long)N, (long long)N, (long long)H, (long long)W, array->rank,
        array->rank == 1 ? "" : "s", array->rank == 3 ? " of other lengths" : "");
    TRY(rm_labels_make_room(labels, N, H * W, 1));
    return copy_classes(array, source, labels);
}

/* ---- Rows of labels ----------------------------------------------------------------------------------------------- */

/* Copies one sample's row. It needs a timestep per label, and one more between two equal labels. */
static remat_status copy_row(const rm_array *array, const char *path, int64_t sample, int64_t timesteps, int64_t bound,
                             int32_t *row, int64_t *largest) {
    int64_t n = 0, needed = 0;
    for (int64_t k = 0; k < array->dim[1]; k++) {
        double label = rm_array_at(array, sample, k, 0);
        row[k] = -1;
        if (label == -1) continue;
        REQUIRE(label == floor(label) && label >= 1 && label < (double)bound, INVALID,
                "%s: label %.15g of sample %lld is outside 1..%lld: 0 is the blank, and -1 is padding", path, label,
                (long long)sample, (long long)bound - 1);
        REQUIRE(n == k, INVALID, "%s: sample %lld has a label after -1, which ends its row", path, (long long)sample);
        row[n++] = (int32_t)label;
        needed += 1 + (k > 0 && row[k] == row[k - 1]);
        if (row[k] > *largest) *largest = row[k];
    }
    REQUIRE(
        needed <= timesteps, INVALID,
        "%s: sample %lld has %lld labels, which need %lld timesteps, but it has %lld: give longer samples, or remove "
        "this one",
        path, (long long)sample, (long long)n, (long long)needed, (long long)timesteps);
    return REMAT_OK;
}

remat_status rm_labels_as_rows(const rm_array *array, const rm_data_source *source, const rm_labelled *samples,
                               rm_labels *labels) {
    const char *path = source->labels;
    int64_t largest = 0, most = array->dim[1], bound = bound_of(&labels->classes);
    REQUIRE(array->rank == 2, IO, "%s has %d dimensions, but rows of labels have 2, [N,S]: did you mean --data?", path,
            array->rank);
    REQUIRE(array->dim[0] == samples->count, INVALID,
            "%s has rows for %lld samples, but there are %lld: give matching files", path, (long long)array->dim[0],
            (long long)samples->count);
    TRY(rm_labels_make_room(labels, samples->count, 1, most));
    for (int64_t i = 0; i < samples->count; i++) {
        const int32_t *length = samples->lengths ? samples->lengths + i : NULL;
        int64_t here = length && *length < samples->timesteps ? *length : samples->timesteps;
        TRY(copy_row(array, path, i, here, bound, (int32_t *)labels->item + i * most, &largest));
    }
    REQUIRE(labels->classes || largest > 0, INVALID,
            "%s has only -1, which is padding, so there is nothing to learn: give labels", path);
    if (!labels->classes) labels->classes = largest + 1;
    return REMAT_OK;
}

/* ---- Lengths ------------------------------------------------------------------------------------------------------ */

static remat_status convert_lengths(const rm_array *array, const rm_data_source *source, const rm_labelled *samples,
                                    rm_labels *lengths) {
    const char *path = source->lengths;
    REQUIRE(array->rank == 1 && array->count == samples->count, INVALID,
            "%s: lengths of %lld samples are as many numbers in 1 dimension, but it has %lld in %d", path,
            (long long)samples->count, (long long)array->count, array->rank);
    TRY(rm_labels_make_room(lengths, samples->count, 1, 1));
    for (int64_t i = 0; i < samples->count; i++) {
        double length = rm_array_at(array, i, 0, 0);
        REQUIRE(length >= 1 && length <= (double)samples->most && length == floor(length), INVALID,
                "%s: sample %lld has length %.15g: give an integer from 1 to %lld, the timesteps in --data", path,
                (long long)i, length, (long long)samples->most);
        ((int32_t *)lengths->item)[i] = (int32_t)length;
    }
    return REMAT_OK;
}

remat_status rm_lengths_read(const rm_data_source *source, const rm_labelled *samples, int32_t **lengths) {
    rm_labels read = {0};
    remat_status status = read_file(source->lengths, source, samples, convert_lengths, &read);
    if (status) rm_labels_free(&read);
    *lengths = read.item;
    return status;
}
