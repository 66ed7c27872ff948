/* dataset.c: from a task's name to the kind of data, and the labels that two kinds share. */
#include "train/dataset.h"

#include "memory/host.h"
#include "train/file.h"
#include "train/idx.h"
#include "train/npy.h"

#include <string.h>

static bool is_npy(const char *path) {
    size_t length = strlen(path);
    return length > 4 && !strcmp(path + length - 4, ".npy");
}

static remat_status open_classify(const rm_data_source *source, rm_dataset **out) {
    REQUIRE(source->data && source->labels, INVALID,
            "classify needs --data=FILE (IDX images or .npy features) and --labels=FILE");
    return is_npy(source->data) ? rm_dataset_open_features(source, out) : rm_dataset_open_images(source, out);
}

remat_status rm_dataset_open(const char *task, const rm_data_source *source, rm_dataset **out) {
    *out = NULL;
    if (!strcmp(task, "lm")) {
        REQUIRE(source->data, INVALID, "lm needs a text to learn: say --data=FILE");
        return rm_dataset_open_text(source, out);
    }
    if (!strcmp(task, "classify")) return open_classify(source, out);
    if (!strcmp(task, "adding")) return rm_dataset_open_adding(source, out);
    if (!strcmp(task, "copy")) return rm_dataset_open_copy(source, out);
    FAIL(INVALID, "there is no task '%s': lm, classify, adding, copy", task);
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

typedef struct {
    bool npy;
    rm_idx idx;
    rm_npy array;
    int rank;
    int64_t count;
} label_file;

static remat_status parse_labels(const uint8_t *data, size_t size, const char *path, label_file *out) {
    out->npy = is_npy(path);
    if (out->npy) {
        TRY(rm_npy_parse(data, size, path, &out->array));
        REQUIRE(rm_npy_is_integer(&out->array), INVALID,
                "%s holds real numbers; labels must be whole: save it with "
                ".astype('int32')",
                path);
        out->rank = out->array.rank;
        out->count = out->array.count;
    } else {
        TRY(rm_idx_parse(data, size, path, &out->idx));
        out->rank = out->idx.rank;
        out->count = out->idx.count;
    }
    return REMAT_OK;
}

static int64_t label_at(const label_file *file, int64_t i) {
    return file->npy ? rm_npy_integer(&file->array, i) : file->idx.item[i];
}

static remat_status copy_labels(const label_file *file, const char *path, int32_t *labels, int64_t *classes) {
    int64_t bound = *classes ? *classes : 1000000, largest = 0;
    for (int64_t i = 0; i < file->count; i++) {
        int64_t label = label_at(file, i);
        REQUIRE(label >= 0 && label < bound, INVALID,
                "%s: label %lld of sample %lld is outside 0..%lld: check --labels or --classes", path, (long long)label,
                (long long)i, (long long)bound - 1);
        labels[i] = (int32_t)label;
        if (label > largest) largest = label;
    }
    if (!*classes) *classes = largest + 1;
    return REMAT_OK;
}

static remat_status convert_labels(const uint8_t *data, size_t size, const char *path, int64_t count, int32_t *labels,
                                   int64_t *classes) {
    label_file file = {0};
    TRY(parse_labels(data, size, path, &file));
    REQUIRE(file.rank == 1, IO, "%s has %d dimensions; labels have one: is this the file for --data?", path, file.rank);
    REQUIRE(file.count == count, INVALID, "%s has %lld labels for %lld samples: give the two files of one set", path,
            (long long)file.count, (long long)count);
    return copy_labels(&file, path, labels, classes);
}

remat_status rm_labels_read(const char *path, int64_t count, int32_t **labels, int64_t *classes) {
    uint8_t *data;
    size_t size;
    TRY(rm_file_read(path, RM_DATA_LIMIT, &data, &size));
    *labels = rm_calloc((size_t)count, sizeof **labels);
    remat_status status = *labels ? convert_labels(data, size, path, count, *labels, classes)
                                  : rm_fail(REMAT_MEMORY, "no memory for %lld labels", (long long)count);
    rm_free(data);
    if (status) {
        rm_free(*labels);
        *labels = NULL;
    }
    return status;
}
