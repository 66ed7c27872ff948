/* dataset.c: see dataset.h. */
#include "train/data/dataset.h"

#include "memory/host.h"
#include "train/data/images.h"

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
    rm_data_source numbers = *source;
    numbers.numbers = true;
    return rm_data_open(&rm_data_arrays, &numbers, out);
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
    if (source->pictures) return rm_data_open(rm_images_kind(source->data), source, out);
    REQUIRE(source->labels || source->unlabelled, INVALID,
            "there are no labels for %s: say --%slabels=FILE, IDX or .npy, one for each sample, [N], or for each "
            "timestep, [N,T]",
            source->data, eval);
    return rm_data_open(&rm_data_arrays, source, out);
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
    return rm_data_open(&rm_data_arrays, &transcripts, out);
}

static remat_status open_seq2seq(const rm_data_source *source, rm_dataset **out) {
    const char *eval = source->held_out ? "eval-" : "";
    bool generated = source->generate && strcmp(source->generate, "none");
    REQUIRE(source->data ? source->labels != NULL : generated, INVALID,
            "seq2seq needs two texts, of which line N of one belongs to line N of the other: say --%sdata=FILE and "
            "--%slabels=FILE%s",
            eval, eval, source->held_out ? "" : ", or --generate=copy, reverse or sort");
    return rm_data_open(source->data ? &rm_data_pairs : &rm_data_generated_pairs, source, out);
}

remat_status rm_dataset_open(const char *task, const rm_data_source *source, rm_dataset **out) {
    *out = NULL;
    if (!strcmp(task, "lm")) {
        REQUIRE(source->data, INVALID, "lm needs a text to learn: say --data=FILE");
        return rm_data_open(&rm_data_text, source, out);
    }
    if (!strcmp(task, "classify")) return open_classify(source, out);
    if (!strcmp(task, "regress")) return open_regress(source, out);
    if (!strcmp(task, "adding")) return rm_data_open(&rm_data_adding, source, out);
    if (!strcmp(task, "copy")) return rm_data_open(&rm_data_copy, source, out);
    if (!strcmp(task, "s5")) return rm_data_open(&rm_data_s5, source, out);
    if (!strcmp(task, "transcribe")) return open_transcribe(source, out);
    if (!strcmp(task, "seq2seq")) return open_seq2seq(source, out);
    FAIL(INVALID, "there is no task '%s': lm, classify, regress, adding, copy, s5, transcribe, seq2seq", task);
}

remat_status rm_data_open(const rm_data_kind *kind, const rm_data_source *source, rm_dataset **out) {
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
    if (dataset && dataset->kind->close) dataset->kind->close(dataset);
    if (dataset) rm_free(dataset->class_weights);
    rm_free(dataset);
}

/* 0 stands for none. */
remat_status rm_dataset_checksum(rm_dataset *dataset, uint32_t *crc32) {
    *crc32 = 0;
    if (!dataset->kind->checksum) return REMAT_OK;
    TRY(dataset->kind->checksum(dataset, crc32));
    if (!*crc32) *crc32 = 1;
    return REMAT_OK;
}
