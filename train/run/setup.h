/* setup.h: creates data sets, models, session configs and weights from flags, for all commands. */
#ifndef RM_SETUP_H
#define RM_SETUP_H

#include "engine/session/pipeline_cut.h"
#include "train/data/loader.h"
#include "train/models/model.h"
#include "train/flags/options.h"
#include "train/state/state.h"

/* --resume for eval and sample: finds the state and adopts its model's flags. IO when there is no state. */
remat_status rm_setup_resume(rm_options *options, rm_command command, char state[RM_PATH_BYTES], rm_state_point *point);

/* Says on stderr what the weights of --init leave open, if anything: when they have been loaded, so that nothing is refused any more. */
void rm_setup_say_assumed(const rm_options *options);

/* Adopts layers, hidden, embed, classes and the cell from the shapes in --init's file. INVALID when given flags contradict it.
 * Does nothing without --init. */
remat_status rm_setup_init(rm_options *options);

/* Describes the data, and opens it. Held-out data are those of --eval-data or --eval-split, or other samples of a generated task;
 * with --eval-split they lie in the memory of `training`, which must outlive them. */
rm_data_source rm_setup_source(const rm_options *options, bool held_out);
bool rm_setup_splits(const rm_options *options);    /* does --eval-split divide the data? */
bool rm_setup_generates(const rm_options *options); /* does the task generate its data? */
remat_status rm_setup_dataset(const rm_options *options, rm_dataset **out);
remat_status rm_setup_held_out(const rm_options *options, const rm_dataset *training, rm_dataset **out);

/* The model for the data set's shape; dataset NULL: for the shape that follows from the flags (lm, adding, copy, s5). Writes what
 * the data determines (seq_len, classes, a tokenizer's vocab) back to the options. */
remat_status rm_setup_spec(rm_options *options, const rm_dataset *dataset, rm_model_spec *out);

/* The file of measured times. NULL: none (off); "": measured times are not kept. */
const char *rm_setup_calibration_file(const rm_options *options);

/* Warns on stderr if --calibration names a file that cannot be written, because every run would measure again. */
void rm_setup_warn_of_calibration(const rm_options *options);

/* Ranks and micro steps. options->world_size below 1 counts as 1. rm_setup_world: INVALID when --deterministic-world does not fit
 * the ranks and --batch, or --pipeline does not. rm_setup_ranks: those with samples of their own; the ranks of a pipeline count as one. rm_setup_micro_steps: per update of a rank. rm_setup_rows: per micro step. */
remat_status rm_setup_world(const rm_options *options);
int64_t rm_setup_ranks(const rm_options *options);
/* The P of --pipeline; 1 for a flag that rm_setup_pipeline refuses. */
int64_t rm_setup_parts(const rm_options *options);
/* --pipeline: size and cut of *out, which points into the flag. cut: chooses one, also where the flag has none; lighter:
 * >= 0: another than the cut of `pipeline`, with fewer layers on this rank, or none. dataset: its bytes count in the
 * budget, as do other_bytes; may be NULL. Free *out even after an error. `pipeline` needs no functions. */
remat_status rm_setup_pipeline(const rm_options *options, remat_pipeline *out);
remat_status rm_setup_cut(const rm_options *options, const rm_model_spec *spec, const remat_pipeline *pipeline,
                          const rm_dataset *dataset, uint64_t other_bytes, int lighter, rm_cut_choice *out);
int64_t rm_setup_micro_steps(const rm_options *options);
int64_t rm_setup_rows(const rm_options *options);
/* The number of windows per sample with --tbptt, each a micro step of the session, and the k-th window. Call after rm_setup_spec,
 * which sets --seq-len. */
int64_t rm_setup_windows(const rm_options *options);
rm_window rm_setup_window(const rm_options *options, int64_t k);
/* Can samples be divided into such windows? */
bool rm_setup_windows_fit(const rm_options *options);
/* The batch for rm_evaluator_open: the rows of a shard, so that results have the same bits on any number of ranks; 0 without
 * shards. */
int64_t rm_setup_eval_batch(const rm_options *options);

/* The config without ranks and budget (budget.h sets the budget). With a budget, --checkpoint defaults to "optimal". */
remat_config rm_setup_training_config(const rm_options *options);
remat_config rm_setup_inference_config(const rm_options *options);
/* Calls remat_session_create, with the logits of whole samples as the first output, for training accuracy. Messages name flags. */
remat_status rm_setup_session(const rm_model *model, const remat_config *config, remat_session **out);

/* INVALID: neither --resume nor --init was given. */
remat_status rm_setup_need_weights(const rm_options *options);

/* Loads the weights of --resume's state (if `state` is not empty; with --ema their average) or of --init, for eval and sample.
 * INVALID: neither was given. */
remat_status rm_setup_weights(const rm_options *options, const char *state, const rm_state_point *point,
                              remat_session *session);

/* INVALID when the data's class names differ from those in the state. */
remat_status rm_setup_check_classes(const char *state, const rm_dataset *dataset, const char *data);

#endif
