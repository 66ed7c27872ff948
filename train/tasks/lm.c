/* lm.c: --task=lm: the next token of a text. */
#include "train/data/tokenizer.h"
#include "train/tasks/task.h"

static remat_status shape(const rm_data_source *source, rm_data_shape *out) {
    int64_t vocabulary = source->vocab;
    if (source->tokenizer) TRY(rm_tokenizer_fit_file(source->tokenizer, source->vocab, &vocabulary));
    *out = rm_text_shape(source->timesteps, vocabulary);
    return REMAT_OK;
}

const rm_task rm_task_lm = {.name = "lm",
                            .flags = " embed data eval-data document-end tie-embeddings vocab tokenizer stateful sampler tbptt "
                                     "label-smoothing temperature top-k top-p ",
                            .kind = &rm_data_text,
                            .shape = shape,
                            .writes = RM_WRITES_TEXT,
                            .next_token = true};
