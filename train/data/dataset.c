/* dataset.c: see dataset.h. */
#include "train/data/dataset.h"

#include <string.h>

#include "memory/host.h"
#include "memory/words.h"
#include "train/data/tokenizer.h"
#include "train/data/vocabulary.h"

#include <float.h>
#include <math.h>

static const rm_data_kind *const kinds[] = {
#define KIND(name) &rm_data_##name,
#include "train/data/kinds.def"
#undef KIND
};

static const rm_data_kind *kind_of(const rm_data_source *source) {
    int i = 0;
    while (!kinds[i]->reads || !kinds[i]->reads(source))
        i++; /* image_array accepts all images, arrays everything else */
    return kinds[i];
}

remat_status rm_data_open(const rm_data_kind *kind, const rm_data_source *source, rm_dataset **out) {
    if (!kind) kind = kind_of(source);
    rm_dataset *data = rm_calloc(1, kind->bytes);
    *out = NULL;
    REQUIRE(data, MEMORY, "no memory to open %s", source->data ? source->data : "generated data");
    data->kind = kind;
    remat_status status = kind->open(data, source);
    if (status)
        rm_dataset_close(data);
    else
        *out = data;
    return status;
}

void rm_dataset_close(rm_dataset *dataset) {
    void (*close)(rm_dataset *) = !dataset ? NULL : dataset->borrows ? dataset->kind->close_view : dataset->kind->close;
    if (close) close(dataset);
    if (dataset) rm_free(dataset->class_weights);
    if (dataset) rm_free(dataset->tokenizer);
    rm_free(dataset);
}

rm_answer rm_data_answer(const rm_data_shape *s) {
    if (s->labels) return RM_ANSWER_ROW;
    if (!s->classes) return RM_ANSWER_VALUES;
    if (s->answer_steps) return RM_ANSWER_PAIR;
    if (s->pixels) return RM_ANSWER_PIXELS;
    return s->tracked ? RM_ANSWER_STEPS : s->every_step ? RM_ANSWER_TOKENS : RM_ANSWER_CLASS;
}

bool rm_answer_has(rm_answer answer, const char *score) {
    static const char *const scores[] = {
#define ANSWER(NAME, LOSS, SCORES) SCORES,
#include "train/data/answers.def"
#undef ANSWER
    };
    return rm_has_word(scores[answer], score);
}

bool rm_data_takes(const rm_data_source *source, double number) {
    return fabs(number) <= (double)FLT_MAX || (source->allow_nan && isnan(number));
}

remat_status rm_dataset_view(const rm_dataset *dataset, rm_dataset **out) {
    rm_dataset *view = rm_malloc(dataset->kind->bytes);
    *out = NULL;
    REQUIRE(view, MEMORY, "no memory for a view of the data");
    memcpy(view, dataset, dataset->kind->bytes);
    view->borrows = true;
    view->held_bytes = 0;
    view->class_weights = NULL;
    view->tokenizer = NULL;
    remat_status status = view->kind->view ? view->kind->view(view) : REMAT_OK;
    if (status)
        rm_dataset_close(view);
    else
        *out = view;
    return status;
}

/* 0 is reserved: there is no checksum. */
remat_status rm_dataset_checksum(rm_dataset *dataset, uint32_t *crc32) {
    *crc32 = 0;
    if (!dataset->kind->checksum) return REMAT_OK;
    TRY(dataset->kind->checksum(dataset, crc32));
    if (!*crc32) *crc32 = 1;
    return REMAT_OK;
}

/* Only training states need the tokenizer's file, so held-out data does not keep it. */
remat_status rm_dataset_read_tokenizer(rm_dataset *base, const rm_data_source *source, rm_tokenizer **out,
                                       int64_t *vocabulary) {
    size_t size;
    TRY(rm_vocabulary_json(source->tokenizer, &source->vocabulary, &base->tokenizer, &size));
    TRY(rm_tokenizer_parse((const char *)base->tokenizer, size, source->tokenizer, out));
    if (source->held_out) {
        rm_free(base->tokenizer);
        base->tokenizer = NULL;
        size = 0;
    }
    base->tokenizer_bytes = size;
    base->held_bytes += size;
    return rm_tokenizer_fit(*out, source->tokenizer, source->vocab, vocabulary);
}
