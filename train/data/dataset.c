/* dataset.c: from a task's name to the kind of data, and labels. */
#include "train/data/dataset.h"

#include "memory/host.h"
#include "train/data/array_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Labels are numbers, in the shape that says what an answer is. */
static remat_status open_regress(const rm_data_source *source, rm_dataset **out) {
    const char *eval = source->held_out ? "eval-" : "";
    REQUIRE(
        source->data, INVALID,
        "regress needs --%sdata=FILE (.npy features [N,T,F], or IDX images) and --%slabels=FILE.npy with numbers for "
        "each sample",
        eval, eval);
    REQUIRE(source->labels || source->unlabelled, INVALID,
            "there are no labels for %s: say --%slabels=FILE.npy, [N] or [N,V], or [N,T,V] with numbers for each "
            "timestep",
            source->data, eval);
    return rm_dataset_open_values(source, out);
}

static remat_status open_classify(const rm_data_source *source, rm_dataset **out) {
    const char *eval = source->held_out ? "eval-" : "";
    REQUIRE(
        source->data || !source->pictures, INVALID,
        "there are no pictures: say --%sdata=FILE (IDX, .npy or CIFAR-10's .bin) or --%sdata=DIR (a folder for each "
        "class)",
        eval, eval);
    REQUIRE(source->data, INVALID,
            "classify needs --%sdata=FILE (IDX images or .npy features) and --%slabels=FILE with a class for each",
            eval, eval);
    REQUIRE(!source->pixels || source->labels || source->unlabelled, INVALID,
            "each pixel has a class, and nothing says which: say --%slabels=FILE, .npy (N,H,W)", eval);
    if (source->pictures) return rm_dataset_open_pictures(source, out);
    REQUIRE(source->labels || source->unlabelled, INVALID,
            "there are no labels for %s: say --%slabels=FILE, IDX or .npy, one for each sample, [N], or for each "
            "timestep, [N,T]",
            source->data, eval);
    return rm_dataset_open_arrays(source, out);
}

static remat_status open_transcribe(const rm_data_source *source, rm_dataset **out) {
    rm_data_source transcripts = *source;
    const char *eval = source->held_out ? "eval-" : "";
    REQUIRE(
        source->data && (source->labels || source->unlabelled), INVALID,
        "transcribe needs --%sdata=FILE (.npy [N,T,F]) and --%slabels=FILE (.npy [N,S]: labels from 1 on, rows filled "
        "up with -1)",
        eval, eval);
    transcripts.transcripts = true;
    return rm_dataset_open_arrays(&transcripts, out);
}

static remat_status open_seq2seq(const rm_data_source *source, rm_dataset **out) {
    const char *eval = source->held_out ? "eval-" : "";
    bool generated = source->generate && strcmp(source->generate, "none");
    REQUIRE(source->data ? source->labels != NULL : generated, INVALID,
            "seq2seq needs two texts, of which line N of one belongs to line N of the other: say --%sdata=FILE and "
            "--%slabels=FILE%s",
            eval, eval, source->held_out ? "" : ", or --generate=copy, reverse or sort");
    return rm_dataset_open_pairs(source, out);
}

remat_status rm_dataset_open(const char *task, const rm_data_source *source, rm_dataset **out) {
    *out = NULL;
    if (!strcmp(task, "lm")) {
        REQUIRE(source->data, INVALID, "lm needs a text to learn: say --data=FILE");
        return rm_dataset_open_text(source, out);
    }
    if (!strcmp(task, "classify")) return open_classify(source, out);
    if (!strcmp(task, "regress")) return open_regress(source, out);
    if (!strcmp(task, "adding")) return rm_dataset_open_adding(source, out);
    if (!strcmp(task, "copy")) return rm_dataset_open_copy(source, out);
    if (!strcmp(task, "s5")) return rm_dataset_open_s5(source, out);
    if (!strcmp(task, "transcribe")) return open_transcribe(source, out);
    if (!strcmp(task, "seq2seq")) return open_seq2seq(source, out);
    FAIL(INVALID, "there is no task '%s': lm, classify, regress, adding, copy, s5, transcribe, seq2seq", task);
}

void rm_dataset_close(rm_dataset *dataset) {
    if (dataset) dataset->close(dataset);
}

/* 0 stands for none. */
remat_status rm_dataset_checksum(rm_dataset *dataset, uint32_t *crc32) {
    *crc32 = 0;
    if (!dataset->checksum) return REMAT_OK;
    TRY(dataset->checksum(dataset, crc32));
    if (!*crc32) *crc32 = 1;
    return REMAT_OK;
}

/* ---- Labels ----------------------------------------------------------------------------------------------------- */

/* "sample 3", "sample 3, timestep 5" (t -1: it has one label). */
static const char *place_text(int64_t sample, int64_t t, char text[64]) {
    int n = snprintf(text, 64, "sample %lld", (long long)sample);
    if (t >= 0) snprintf(text + n, 64 - (size_t)n, ", timestep %lld", (long long)t);
    return text;
}

/* A class; -1 for what is ignored. */
static remat_status take_label(const rm_data_source *source, double label, int64_t sample, int64_t t, int64_t bound,
                               int32_t *out) {
    char place[64];
    bool whole = !(fabs(label) < 1e15) || label == floor(label);
    *out = -1;
    if (source->ignores && label == (double)source->ignored) return REMAT_OK;
    REQUIRE(whole, INVALID, "%s: label %g of %s is not whole: labels number the classes, from 0 on", source->labels,
            label, place_text(sample, t, place));
    REQUIRE(label >= 0 && label < (double)bound, INVALID,
            "%s: label %.15g of %s is outside 0..%lld: check --labels or --classes; or, if such %s are not to count, "
            "say --ignore-index",
            source->labels, label, place_text(sample, t, place), (long long)bound - 1, t < 0 ? "samples" : "timesteps");
    *out = (int32_t)label;
    return REMAT_OK;
}

static int64_t bound_of(const int64_t *classes) { return *classes ? *classes : 1000000; }

static remat_status settle_classes(const rm_data_source *source, int64_t largest, int64_t *classes) {
    REQUIRE(largest >= 0, INVALID,
            "%s has no label but %lld, which --ignore-index leaves out: nothing is left to count", source->labels,
            (long long)source->ignored);
    REQUIRE(
        *classes || largest > 0, INVALID,
        "%s: all labels are 0, and with one class there is nothing to be learnt: give labels of "
        "two classes or more",
        source->labels);
    if (!*classes) *classes = largest + 1;
    return REMAT_OK;
}

static remat_status copy_labels(const rm_array *array, const rm_data_source *source, int32_t *labels,
                                int64_t *classes) {
    int64_t largest = -1, width = array->rank == 3 ? array->dim[2] : 1, places = array->count / array->dim[0];
    for (int64_t i = 0; i < array->count; i++) {
        int64_t place = i % places;
        double label = rm_array_at(array, i / places, place / width, place % width);
        TRY(take_label(source, label, i / places, -1, bound_of(classes), &labels[i]));
        if (labels[i] > largest) largest = labels[i];
    }
    return settle_classes(source, largest, classes);
}

static remat_status copy_step_labels(const rm_array *array, const rm_data_source *source, rm_labelled samples,
                                     int32_t *labels, int64_t *classes) {
    int64_t largest = -1, T = samples.timesteps;
    for (int64_t i = 0; i < samples.count; i++)
        for (int64_t t = 0; t < T; t++) {
            int32_t *label = labels + i * T + t;
            *label = -1;
            if (samples.lengths && t >= samples.lengths[i]) continue;
            TRY(take_label(source, rm_array_at(array, i, t, 0), i, t, bound_of(classes), label));
            if (*label > largest) largest = *label;
        }
    return settle_classes(source, largest, classes);
}

static remat_status convert_labels(const rm_array *array, const rm_data_source *source, int64_t count, int32_t **labels,
                                   int64_t *classes) {
    const char *path = source->labels;
    REQUIRE(array->rank == 1, IO, "%s has %d dimensions; labels have one: is this the file for --data?", path,
            array->rank);
    REQUIRE(array->count == count, INVALID, "%s has %lld labels for %lld samples: give the two files of one set", path,
            (long long)array->count, (long long)count);
    *labels = rm_calloc((size_t)count, sizeof **labels);
    REQUIRE(*labels, MEMORY, "no memory for %lld labels", (long long)count);
    return copy_labels(array, source, *labels, classes);
}

static remat_status convert_step_labels(const rm_array *array, const rm_data_source *source, rm_labelled samples,
                                        int32_t **labels, int64_t *classes) {
    const char *path = source->labels;
    REQUIRE(array->dim[0] == samples.count, INVALID,
            "%s has labels for %lld samples, and there are %lld: give the two files of one set", path,
            (long long)array->dim[0], (long long)samples.count);
    REQUIRE(array->dim[1] == samples.most, INVALID,
            "%s has labels for %lld timesteps, and samples have %lld: give one for each, or [N], one for each sample",
            path, (long long)array->dim[1], (long long)samples.most);
    size_t kept = (size_t)(samples.count * samples.timesteps);
    *labels = rm_calloc(kept, sizeof **labels);
    REQUIRE(*labels, MEMORY, "no memory for %zu labels", kept);
    return copy_step_labels(array, source, samples, *labels, classes);
}

static remat_status convert_sequence_labels(const rm_array *array, const rm_data_source *source, rm_labelled samples,
                                            bool *every_step, int32_t **labels, int64_t *classes) {
    *every_step = array->rank == 2;
    REQUIRE(array->rank <= 2, IO,
            "%s has %d dimensions; labels are [N], one for each sample, or [N,T], one for each timestep: is this the "
            "file for --data?",
            source->labels, array->rank);
    REQUIRE(!source->steps_known || *every_step == source->every_step, INVALID,
            "%s has one label a %s, and the model gives one a %s: give labels of that kind, or change "
            "--every-step",
            source->labels, *every_step ? "timestep" : "sample", source->every_step ? "timestep" : "sample");
    return *every_step ? convert_step_labels(array, source, samples, labels, classes)
                       : convert_labels(array, source, samples.count, labels, classes);
}

static remat_status convert_pixel_labels(const rm_array *array, const rm_data_source *source, const int64_t dim[3],
                                         int32_t **labels, int64_t *classes) {
    REQUIRE(array->rank == 3 && array->dim[0] == dim[0] && array->dim[1] == dim[1] && array->dim[2] == dim[2], INVALID,
            "%s: a class for each pixel of %lld pictures is (N,H,W) = (%lld,%lld,%lld), and it has %d dimension%s%s",
            source->labels, (long long)dim[0], (long long)dim[0], (long long)dim[1], (long long)dim[2], array->rank,
            array->rank == 1 ? "" : "s", array->rank == 3 ? " of other lengths" : "");
    *labels = rm_calloc((size_t)array->count, sizeof **labels);
    REQUIRE(*labels, MEMORY, "no memory for %lld labels", (long long)array->count);
    return copy_labels(array, source, *labels, classes);
}

remat_status rm_pixel_labels_read(const rm_data_source *source, int64_t count, int64_t height, int64_t width,
                                  int32_t **labels, int64_t *classes) {
    rm_array_file file;
    remat_status status = rm_array_file_read(source->labels, source->budget, &file);
    *labels = NULL;
    if (!status) status = convert_pixel_labels(&file.array, source, (int64_t[]){count, height, width}, labels, classes);
    rm_array_file_free(&file);
    if (status) {
        rm_free(*labels);
        *labels = NULL;
    }
    return status;
}

static remat_status convert_lengths(const rm_array *array, const char *path, int64_t count, int64_t most,
                                    int32_t *lengths) {
    REQUIRE(array->rank == 1 && array->count == count, INVALID,
            "%s: the lengths of %lld samples are one dimension of so many numbers; it has %lld in %d", path,
            (long long)count, (long long)array->count, array->rank);
    for (int64_t i = 0; i < count; i++) {
        double length = rm_array_at(array, i, 0, 0);
        REQUIRE(length >= 1 && length <= (double)most && length == floor(length), INVALID,
                "%s: sample %lld has length %.15g; here it is a whole number from 1 to %lld, the timesteps in --data",
                path, (long long)i, length, (long long)most);
        lengths[i] = (int32_t)length;
    }
    return REMAT_OK;
}

remat_status rm_lengths_read(const rm_data_source *source, int64_t count, int64_t most, int32_t **lengths) {
    rm_array_file file;
    remat_status status = rm_array_file_read(source->lengths, source->budget, &file);
    *lengths = status ? NULL : rm_calloc((size_t)count, sizeof **lengths);
    if (!status && !*lengths) status = rm_fail(REMAT_MEMORY, "no memory for %lld lengths", (long long)count);
    if (!status) status = convert_lengths(&file.array, source->lengths, count, most, *lengths);
    rm_array_file_free(&file);
    if (status) {
        rm_free(*lengths);
        *lengths = NULL;
    }
    return status;
}

remat_status rm_labels_read(const rm_data_source *source, int64_t count, int32_t **labels, int64_t *classes) {
    rm_array_file file;
    remat_status status = rm_array_file_read(source->labels, source->budget, &file);
    *labels = NULL;
    if (!status) status = convert_labels(&file.array, source, count, labels, classes);
    rm_array_file_free(&file);
    if (status) {
        rm_free(*labels);
        *labels = NULL;
    }
    return status;
}

remat_status rm_sequence_labels_read(const rm_data_source *source, rm_labelled samples, bool *every_step,
                                     int32_t **labels, int64_t *classes) {
    rm_array_file file;
    remat_status status = rm_array_file_read(source->labels, source->budget, &file);
    *labels = NULL;
    if (!status) status = convert_sequence_labels(&file.array, source, samples, every_step, labels, classes);
    rm_array_file_free(&file);
    if (status) {
        rm_free(*labels);
        *labels = NULL;
    }
    return status;
}

/* ---- Rows of labels ----------------------------------------------------------------------------------------------- */

/* One sample's row, and the timesteps that it needs: one a label, and one more between two that are the same. */
static remat_status copy_row(const rm_array *array, const char *path, int64_t sample, int64_t timesteps, int64_t bound,
                             int32_t *row, int64_t *largest) {
    int64_t n = 0, needed = 0;
    for (int64_t k = 0; k < array->dim[1]; k++) {
        double label = rm_array_at(array, sample, k, 0);
        row[k] = -1;
        if (label == -1) continue;
        REQUIRE(label == floor(label) && label >= 1 && label < (double)bound, INVALID,
                "%s: label %.15g of sample %lld is none of 1..%lld: 0 is the blank, and -1 fills up rows", path, label,
                (long long)sample, (long long)bound - 1);
        REQUIRE(n == k, INVALID, "%s: sample %lld has a label behind -1, which ends its row", path, (long long)sample);
        row[n++] = (int32_t)label;
        needed += 1 + (k > 0 && row[k] == row[k - 1]);
        if (row[k] > *largest) *largest = row[k];
    }
    REQUIRE(
        needed <= timesteps, INVALID,
        "%s: sample %lld has %lld labels, which need %lld timesteps, and there are %lld: give longer samples, or leave "
        "it out",
        path, (long long)sample, (long long)n, (long long)needed, (long long)timesteps);
    return REMAT_OK;
}

static remat_status convert_rows(const rm_array *array, const char *path, int64_t count, int64_t timesteps,
                                 const int32_t *lengths, int32_t **labels, int64_t *most, int64_t *classes) {
    int64_t largest = 0, bound = *classes ? *classes : 1000000;
    REQUIRE(array->rank == 2, IO, "%s has %d dimensions; rows of labels have two, [N,S]: is this the file for --data?",
            path, array->rank);
    REQUIRE(array->dim[0] == count, INVALID,
            "%s has rows for %lld samples, and there are %lld: give the two files of one set", path,
            (long long)array->dim[0], (long long)count);
    *most = array->dim[1];
    *labels = rm_calloc((size_t)array->count, sizeof **labels);
    REQUIRE(*labels, MEMORY, "no memory for %lld labels", (long long)array->count);
    for (int64_t i = 0; i < count; i++) {
        int64_t here = lengths && lengths[i] < timesteps ? lengths[i] : timesteps;
        TRY(copy_row(array, path, i, here, bound, *labels + i * *most, &largest));
    }
    REQUIRE(*classes || largest > 0, INVALID,
            "%s has no label but -1, which fills up rows: nothing is there to be learnt", path);
    if (!*classes) *classes = largest + 1;
    return REMAT_OK;
}

remat_status rm_transcripts_read(const rm_data_source *source, int64_t count, int64_t timesteps, const int32_t *lengths,
                                 int32_t **labels, int64_t *most, int64_t *classes) {
    rm_array_file file;
    remat_status status = rm_array_file_read(source->labels, source->budget, &file);
    *labels = NULL;
    if (!status) status = convert_rows(&file.array, source->labels, count, timesteps, lengths, labels, most, classes);
    rm_array_file_free(&file);
    if (!status) return status;
    rm_free(*labels);
    *labels = NULL;
    return status;
}
