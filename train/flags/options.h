/* options.h: the flags of `remat`. One table (options_table.c) drives the parsing of the command line and --config files, --help, and
 * the flags in training states; values go into this struct. A new flag is a member here and a line there.
 *
 *     rm_options o;
 *     status = rm_options_parse(&o, RM_TRAIN, argc, argv);   // INVALID: the message names the remedy; exit 2
 *     ...
 *     rm_options_free(&o);                                   // in any case
 */
#ifndef RM_OPTIONS_H
#define RM_OPTIONS_H

#include "dist/ddp/ddp.h"
#include "dist/large_batch/learning_rate.h"
#include "train/data/loader.h"
#include "train/models/model.h"
#include "train/report/scores.h"

#include <stdio.h>

typedef enum {
    RM_TRAIN = 1,
    RM_PLAN = 2,
    RM_EVAL = 4,
    RM_SAMPLE = 8,
    RM_INFO = 16,
    RM_REPORT = 32,
    RM_PREDICT = 64,
    RM_EXPORT = 128,
} rm_command; /* bits: an option names the commands that take it */

#define RM_MAX_FLAGS 192

/* --tbptt=LENGTH:STEP: a window of `length` timesteps starts every `step` timesteps; gradients do not leave it. Both 0: full BPTT. */
typedef struct {
    int64_t length, step;
} rm_windows;

/* The evaluation data of a training run. */
typedef struct {
    const char *data, *labels, *lengths;
    const char *split; /* instead, a part of the training data (data/part.h), or "none" */
} rm_held_out_flags;

/* The flags, in the structs of the modules that read them; each line of the table names a member. setup.h fills in members that follow
 * from several flags or from the data. The options own their strings. */
typedef struct {
    const char *task;
    rm_data_source data; /* 0 in timesteps: the task's default */
    rm_held_out_flags held_out;
    rm_model_spec model;    /* 0 in embed: hidden */
    remat_config session;   /* memory_budget: of the whole program; NULL in calibration, "off": as --calibration says */
    rm_loader_config order; /* micro_steps: --accumulate-steps, batches per update */
    rm_learning_rate rate;  /* a negative lr: the optimizer's default */
    rm_ddp_config ddp;
    const char *class_weights;
    /* Training. */
    int64_t steps, epochs, early_stop; /* 0 in early_stop: off */
    rm_windows tbptt;
    double ema;
    /* NULL in preset (presets.h), milestones: not given. */
    const char *preset, *milestones;
    bool lr_by_epoch;
    rm_score_name metric; /* that early stop and plateau judge by */
    int64_t patience;
    double warmup_epochs, threshold;
    /* Ranks. -1 in world_size, rank, local_rank: not given. Once ranks have connected (ranks.h), world_size is their number. */
    const char *init_method, *dist_backend, *devices;
    int64_t world_size, rank, local_rank;
    const char *pipeline; /* "P[:CUT]" (rm_setup_pipeline); NULL: each rank has the whole network */
    double bucket_cap_mb, join_timeout, hang_timeout;
    bool metrics_per_rank;
    /* Files. */
    const char *save, *keep_best, *resume, *init, *init_head, *metrics, *tensorboard, *dump_grads, *out, *names, *config;
    const char *timeline, *resume_batch, *autotune;
    char assumed[400]; /* "": nothing; what the model of --init has by assumption (rm_setup_init) */
    int64_t save_every, keep, eval_every, log_every;
    /* plan, place, sample, report. 0 in a size: not given. */
    bool pareto;
    const char *plot;
    uint64_t assume_memory;
    bool json, steps_text, problem, require_identical;
    const char *prompt;
    int64_t length, top_k, beam;
    double temperature, top_p;

    char **argument; /* positional arguments (of `report` only); borrowed from argv */
    int n_arguments;
    bool help;
    /* By line of the table. said: on the command line or in the config file; in_file: in the config file only; given: said, or set
     * by a preset or by the training state that is resumed. */
    bool given[RM_MAX_FLAGS], said[RM_MAX_FLAGS], in_file[RM_MAX_FLAGS];
} rm_options;

/* Applies the defaults, then the file of --config, then the command line (argv[0] is the first argument after the command), and
 * checks the result. If a flag repeats on the command line, the last one counts, because scripts append flags; in a file it is an
 * error. With --resume, the caller runs rm_options_check after it has read the state. */
remat_status rm_options_parse(rm_options *options, rm_command command, int argc, char **argv);
/* Replaces a string member by a copy of `text`. MEMORY. */
remat_status rm_options_replace(const char **member, const char *text);
void rm_options_free(rm_options *options);

/* Refuse flags that cannot be combined (options_check.c): INVALID names them and the remedy. _said checks pairs that exclude each
 * other by name alone. The other needs all values, those of a training state included: it refuses flags that contradict or need
 * each other, and flags of the user that have no effect. Flags from a state or a preset may have no effect. */
remat_status rm_options_check_said(const rm_options *options);
remat_status rm_options_check(const rm_options *options, rm_command command);
/* INVALID: `command` would overwrite a file that the flags `saved` of a training state name. */
remat_status rm_options_check_saved_files(const rm_options *options, rm_command command, const rm_options *saved,
                                          const char *state);

/* The parts, for tests and fuzzers. */
remat_status rm_options_defaults(rm_options *options);
remat_status rm_options_parse_config(rm_options *options, const char *text, size_t size, const char *file);

/* "length, prompt": flags in the config file that belong to other commands; "": none. A file may serve several commands. */
const char *rm_options_idle(const rm_options *options, rm_command command, char *list, size_t bytes);

bool rm_options_given(const rm_options *options, const char *name);
bool rm_options_said(const rm_options *options, const char *name);
remat_status rm_options_reset(rm_options *options, const char *name);    /* back to its default, not given */
void rm_options_mark(rm_options *options, const char *name, bool given); /* whatever its value */

/* How a training state keeps a flag, as text by name. OF_MODEL: the saved arrays fit this value only.
 * OF_RUN: training continues bit for bit with this value only. REMEMBERED: may change when resuming. */
typedef enum { RM_FORGOTTEN, RM_REMEMBERED, RM_OF_RUN, RM_OF_MODEL } rm_option_memory;
int rm_options_count(void);
const char *rm_options_name(int index);
rm_option_memory rm_options_memory(int index);
bool rm_options_has_value(const rm_options *options,
                          int index); /* false: a number without a default that was not given */
bool rm_options_has_default(int index);
/* Writes the value as on the command line into `text`. */
const char *rm_options_text(const rm_options *options, int index, char *text, size_t text_bytes);
const char *rm_options_text_of(const rm_options *options, const char *name, char *text, size_t text_bytes);
/* Adopts a saved value if the flag was not given; INVALID if it was given, is binding for `command`, and differs. `source` names the
 * file for the message. Adopted values count as given. */
remat_status rm_options_adopt(rm_options *options, rm_command command, const char *name, const char *saved,
                              const char *source);

/* The same for a value that follows from the weights in the file `source`. */
remat_status rm_options_learn(rm_options *options, const char *name, const char *value, const char *source);

void rm_options_help(rm_command command, FILE *out);

#endif
