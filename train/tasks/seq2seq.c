/* seq2seq.c: --task=seq2seq: token sequence to token sequence, from the lines of two texts, or generated. */
#include "train/data/tokenizer.h"
#include "train/tasks/task.h"

#include <string.h>

static remat_status open(const rm_data_source *source, rm_dataset **out) {
    const char *eval = source->held_out ? "eval-" : "";
    bool generated = source->generate && strcmp(source->generate, "none");
    REQUIRE(source->data ? source->labels != NULL : generated, INVALID,
            "seq2seq needs two texts, where line N of one corresponds to line N of the other: give --%sdata=FILE and "
            "--%slabels=FILE%s",
            eval, eval, source->held_out ? "" : ", or --generate=copy, reverse or sort");
    return rm_data_open(source->data ? &rm_data_pairs : &rm_data_generated_pairs, source, out);
}

static remat_status shape(const rm_data_source *source, rm_data_shape *out) {
    int64_t tokens = RM_PAIR_BYTES;
    if (!source->timesteps) return rm_task_needs_data(rm_task_of_pairs());
    if (source->tokenizer) TRY(rm_tokenizer_fit_file(source->tokenizer, source->vocab, &tokens));
    *out = rm_pair_shape(source->timesteps - 1, source->timesteps - 1, tokens);
    return REMAT_OK;
}

const rm_task rm_task_seq2seq = {
    .name = "seq2seq",
    .flags = " embed data labels eval-data eval-labels samples generate tokenizer bucket-by-length label-smoothing beam ",
    .open = open,
    .shape = shape,
    .writes = RM_WRITES_LINES,
    .pairs = true};
