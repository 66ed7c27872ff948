/* setup.h: from flags to things: the data set, the model, the session's config and its weights, as all commands need them.
 * Holds no loop of its own. */
#ifndef RM_SETUP_H
#define RM_SETUP_H

#include "train/data/loader.h"
#include "train/models/model.h"
#include "train/flags/options.h"
#include "train/state/state.h"

/* --resume for eval and sample: finds the state, takes its model over into the options. IO when there is none. */
remat_status rm_setup_resume(rm_options *options, rm_command command, char state[RM_PATH_BYTES], rm_state_point *point);

/* --init alone says what model it is of: layers, hidden, embed, classes and the cell are taken over from the shapes in the
 * file; INVALID where they were given, and differ. Nothing to do without --init. */
remat_status rm_setup_init(rm_options *options);

/* What the flags say of the data, and opens those: the training data, or held_out: --eval-data, the share
 * of --eval-split, or other samples of a generated task. */
rm_data_source rm_setup_source(const rm_options *options, bool held_out);
bool rm_setup_splits(const rm_options *options);    /* --eval-split divides the data */
bool rm_setup_generates(const rm_options *options); /* the task makes its own data */
remat_status rm_setup_dataset(const rm_options *options, bool held_out, rm_dataset **out);

/* The data's shape: the data set's if there is one, else (dataset NULL) what the flags alone say of lm, adding, copy and s5.
 * Writes what the data decided (seq_len, classes, of a tokenizer vocab) back into the options. */
remat_status rm_setup_spec(rm_options *options, const rm_dataset *dataset, rm_model_spec *out);

/* One line on stderr when --calibration names a place where nothing can be written: every run would measure again. It is
 * no reason not to train. */
void rm_setup_warn_of_calibration(const rm_options *options);

/* Ranks and micro steps. options->world_size below 1 counts as 1. rm_setup_world: INVALID where --deterministic-world does not
 * fit so many ranks and --batch. Of each rank: how many micro steps an update has, and how many rows a micro step. */
remat_status rm_setup_world(const rm_options *options);
int64_t rm_setup_ranks(const rm_options *options);
int64_t rm_setup_micro_steps(const rm_options *options);
int64_t rm_setup_rows(const rm_options *options);
/* How many windows --tbptt cuts a sample into, each a micro step of the session, and the k-th of several; once --seq-len is known
 * (rm_setup_spec). */
int64_t rm_setup_windows(const rm_options *options);
rm_window rm_setup_window(const rm_options *options, int64_t k);
/* Whether samples can be cut so. */
bool rm_setup_windows_fit(const rm_options *options);
/* For rm_evaluator_open: a shard's rows, where there are shards, so that what is found has the same bits for any ranks. */
int64_t rm_setup_eval_batch(const rm_options *options);

/* All but the ranks and the budget, which is what budget.h leaves of it. A budget and no --checkpoint mean "optimal". */
remat_config rm_setup_training_config(const rm_options *options);
remat_config rm_setup_inference_config(const rm_options *options);
/* remat_session_create, with the logits of whole samples as an output (its first: training accuracy); what is wrong with a flag is
 * said of the flag. */
remat_status rm_setup_session(const rm_model *model, const remat_config *config, remat_session **out);

/* Weights from --resume's state (if `state` is not empty; with --ema their average) or from --init; neither: INVALID. For eval and sample. */
remat_status rm_setup_weights(const rm_options *options, const char *state, const rm_state_point *point,
                              remat_session *session);

/* INVALID where the data's classes have other names than those that the state's run was trained on. */
remat_status rm_setup_check_classes(const char *state, const rm_dataset *dataset, const char *data);

#endif
