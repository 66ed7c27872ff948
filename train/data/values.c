/* values.c: reads labels that are numbers. See labels.h. */
#include "train/data/labels.h"

#include <math.h>
#include <stdio.h>

static remat_status take_shape(const rm_data_source *source, const rm_array *a, const rm_labelled *samples,
                               rm_labels *out) {
    const char *path = source->labels;
    REQUIRE(a->rank >= 1 && a->rank <= 3, IO,
            "%s has %d dimensions: give numbers as [N] or [N,V], one answer per sample, or [N,T,V], one per timestep",
            path, a->rank);
    REQUIRE(a->dim[0] == samples->count, INVALID,
            "%s has numbers for %lld samples, but there are %lld: give matching files", path, (long long)a->dim[0],
            (long long)samples->count);
    bool known = source->values > 0;
    out->every_step = a->rank == 3 || (source->every_step && a->rank == 2);
    out->steps = out->every_step ? a->dim[1] : 1;
    out->width = out->every_step ? a->dim[2] : a->dim[1];
    REQUIRE(!out->every_step || out->steps == samples->most, INVALID,
            "%s has answers for %lld timesteps, but samples have %lld: give one per timestep", path,
            (long long)out->steps, (long long)samples->most);
    REQUIRE(out->every_step == source->every_step || (!known && out->every_step), INVALID,
            "%s has one answer per %s, but the model has one output per %s: give labels like those of the training, or "
            "change --every-step",
            path, out->every_step ? "timestep" : "sample", source->every_step ? "timestep" : "sample");
    REQUIRE(!known || out->width == source->values, INVALID,
            "%s has %lld numbers per answer, but the model has %lld outputs: give labels like those of the training, "
            "or change --values",
            path, (long long)out->width, (long long)source->values);
    return REMAT_OK;
}

enum { PLACE_BYTES = 96 };
static const char *place(const rm_labels *of, int64_t sample, int64_t t, int64_t v, char text[PLACE_BYTES]) {
    int n = snprintf(text, PLACE_BYTES, "number %lld ", (long long)v);
    if (of->every_step) n += snprintf(text + n, (size_t)(PLACE_BYTES - n), "at timestep %lld ", (long long)t);
    snprintf(text + n, (size_t)(PLACE_BYTES - n), "of sample %lld", (long long)sample);
    return text;
}

static remat_status check_number(const rm_data_source *source, const rm_labels *of, double value, int64_t i, int64_t t,
                                 int64_t v) {
    char text[PLACE_BYTES];
    REQUIRE(rm_data_takes(source, value), INVALID,
            "%s: %s is %g: replace it by a finite number, or remove the sample%s", source->labels,
            place(of, i, t, v, text), value, isnan(value) ? ", or allow NaN with --allow-nan" : "");
    REQUIRE(!source->yes_or_no || !(value < 0 || value > 1), INVALID,
            "%s: %s is %g: --loss=bce needs labels from 0 to 1", source->labels, place(of, i, t, v, text), value);
    return REMAT_OK;
}

static remat_status copy(const rm_array *a, const rm_data_source *source, const int32_t *lengths, rm_labels *out) {
    for (int64_t i = 0; i < a->dim[0]; i++) {
        int64_t steps = lengths && lengths[i] < out->steps ? lengths[i] : out->steps;
        float *to = (float *)out->item + i * out->steps * out->width;
        for (int64_t t = 0; t < steps; t++)
            for (int64_t v = 0; v < out->width; v++) {
                double value = out->every_step ? rm_array_at(a, i, t, v) : rm_array_at(a, i, v, 0);
                TRY(check_number(source, out, value, i, t, v));
                *to++ = (float)value;
            }
    }
    return REMAT_OK;
}

remat_status rm_labels_as_values(const rm_array *a, const rm_data_source *source, const rm_labelled *samples,
                                 rm_labels *out) {
    TRY(take_shape(source, a, samples, out));
    TRY(rm_labels_make_room(out, samples->count, out->steps, out->width));
    return copy(a, source, samples->lengths, out);
}
