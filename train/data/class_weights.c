/* class_weights.c: see class_weights.h. */
#include "train/data/class_weights.h"

#include "memory/host.h"
#include "train/data/array_file.h"
#include "train/file.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static remat_status wrong_number(const char *text, int64_t found, int64_t classes) {
    FAIL(INVALID, "--class-weights=%.60s has %lld numbers for %lld classes: give one per class", text, (long long)found,
         (long long)classes);
}

/* A path has no commas. */
static remat_status read_list(const char *text, int64_t classes, float *out) {
    int64_t found = 1;
    REQUIRE(strlen(text) < RM_PATH_BYTES, INVALID,
            "--class-weights=%.60s... is too long: save the list as .npy and give its path", text);
    for (const char *at = text; *at; at++) found += *at == ',';
    if (found != classes) return wrong_number(text, found, classes);
    for (int64_t k = 0; k < classes; k++) {
        char *end;
        out[k] = strtof(text, &end);
        REQUIRE(end > text && (!*end || *end == ','), INVALID, "--class-weights: '%.60s' does not start with a number",
                text);
        text = end + 1;
    }
    return REMAT_OK;
}

static remat_status read_file(const char *path, uint64_t budget, int64_t classes, float *out) {
    rm_array_file file;
    remat_status status = rm_array_file_read(path, budget, &file);
    const rm_array *a = &file.array;
    if (!status && a->rank != 1)
        status =
            rm_fail(REMAT_INVALID, "--class-weights=%.60s has %d dimensions: save it with .reshape(-1)", path, a->rank);
    if (!status && a->count != classes) status = wrong_number(path, a->count, classes);
    for (int64_t k = 0; !status && k < classes; k++) out[k] = (float)rm_array_at(a, k, 0, 0);
    rm_array_file_free(&file);
    return status;
}

static remat_status check(const float *weight, int64_t classes) {
    float sum = 0;
    for (int64_t k = 0; k < classes; k++) {
        REQUIRE(weight[k] >= 0 && weight[k] <= FLT_MAX, INVALID,
                "--class-weights: the weight of class %lld is %g: give a finite, non-negative number", (long long)k,
                (double)weight[k]);
        sum += weight[k];
    }
    REQUIRE(sum > 0, INVALID, "--class-weights are all 0, so the model would not learn: give at least one above 0");
    return REMAT_OK;
}

remat_status rm_class_weights_read(const char *text, uint64_t budget, rm_dataset *dataset) {
    int64_t classes = dataset->shape.classes;
    float *weights = dataset->class_weights = rm_calloc((size_t)classes, sizeof *weights);
    REQUIRE(weights, MEMORY, "no memory for the weights of %lld classes", (long long)classes);
    dataset->shape.weighted = true;
    TRY(strchr(text, ',') ? read_list(text, classes, weights) : read_file(text, budget, classes, weights));
    return check(weights, classes);
}
