/* options.h: the flags of `remat`: one table (options_table.c) by which the command line and --config files are parsed, --help
 * is printed, and flags go into the training state; and this struct, which it fills. A new flag is a member here and a line there.
 *
 *     rm_options o;
 *     status = rm_options_parse(&o, RM_TRAIN, argc, argv);   // INVALID: the sentence names the remedy; exit 2
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
} rm_command; /* bits: an option names the commands that take it */

#define RM_MAX_FLAGS 192

/* Of --tbptt=LENGTH:STEP: gradients reach back over windows of `length` timesteps, of which one begins every `step`; both 0: all. */
typedef struct {
    int64_t length, step;
} rm_windows;

/* Of a run that trains, the data that it is evaluated on. */
typedef struct {
    const char *data, *labels, *lengths;
    const char *split; /* instead: a share of the data (data/part.h), or "none" */
} rm_held_out_flags;

/* The flags, in the structs of those who read them: a line of the table names a member there. What follows from several flags, or
 * from the data, setup.h fills in. Texts belong to the options. */
typedef struct {
    const char *task;
    rm_data_source data; /* 0 in timesteps: the task's own */
    rm_held_out_flags held_out;
    rm_model_spec model;    /* 0 in embed: as hidden */
    remat_config session;   /* memory_budget: of the whole program; NULL in calibration, "off": as --calibration says */
    rm_loader_config order; /* micro_steps: --accumulate-steps, which batches add to an update */
    rm_learning_rate rate;  /* a negative lr: the optimizer's own */
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
    /* Ranks. -1 in world_size, rank, local_rank: not given; world_size is how many there are once they have met (ranks.h). */
    const char *init_method, *dist_backend, *devices;
    int64_t world_size, rank, local_rank;
    double bucket_cap_mb, join_timeout, hang_timeout;
    bool metrics_per_rank;
    /* Files. */
    const char *save, *keep_best, *resume, *init, *init_head, *metrics, *tensorboard, *dump_grads, *out, *config;
    int64_t save_every, keep, eval_every, log_every;
    /* plan, place, sample, report. 0 in a size: not given. */
    bool pareto;
    const char *plot;
    uint64_t assume_memory;
    bool json, steps_text, problem, require_identical;
    const char *prompt;
    int64_t length, top_k, beam;
    double temperature, top_p;

    char **argument; /* what is not a flag (only `report` takes any); borrowed from argv */
    int n_arguments;
    bool help;
    /* By line of the table. said: on the command line or in the config file; in_file: there alone; given: said, or by a preset
     * or the training state that is resumed. */
    bool given[RM_MAX_FLAGS], said[RM_MAX_FLAGS], in_file[RM_MAX_FLAGS];
} rm_options;

/* Defaults, then the file of --config, then the command line (argv[0] is the first argument after the command), and what can
 * be checked of it. On a line the last of a flag counts, as scripts append to what they are given; in a file, to which nobody
 * appends, twice is a mistake. with --resume, rm_options_check waits until the state has been read. */
remat_status rm_options_parse(rm_options *options, rm_command command, int argc, char **argv);
/* Of a member that is a text: another one, copied. MEMORY. */
remat_status rm_options_replace(const char **member, const char *text);
void rm_options_free(rm_options *options);

/* Flags that do not go together (options_check.c): INVALID names them and the remedy. _said: on one line; that is known at
 * once. The other: those that contradict or need each other, and those that were said and that nothing would read; once
 * all values are known, those of a training state included. What a state or a preset says is not refused for having no effect. */
remat_status rm_options_check_said(const rm_options *options);
remat_status rm_options_check(const rm_options *options, rm_command command);

/* The parts, for tests and fuzzers. */
remat_status rm_options_defaults(rm_options *options);
remat_status rm_options_parse_config(rm_options *options, const char *text, size_t size, const char *file);

/* "length, prompt": what stands in the config file and belongs to other commands, which it may serve too; "" nothing. */
const char *rm_options_idle(const rm_options *options, rm_command command, char *list, size_t bytes);

bool rm_options_given(const rm_options *options, const char *name);
bool rm_options_said(const rm_options *options, const char *name);
remat_status rm_options_reset(rm_options *options, const char *name);    /* as if nobody had said it */
void rm_options_mark(rm_options *options, const char *name, bool given); /* whatever its value */

/* What a training state keeps of the flags, as texts by name. OF_MODEL: its arrays mean nothing under another value.
 * OF_RUN: training could not continue bit for bit under another value. REMEMBERED: may be changed when resuming. */
typedef enum { RM_FORGOTTEN, RM_REMEMBERED, RM_OF_RUN, RM_OF_MODEL } rm_option_memory;
int rm_options_count(void);
const char *rm_options_name(int index);
rm_option_memory rm_options_memory(int index);
bool rm_options_has_value(const rm_options *options, int index); /* or is a number without a default that nobody said */
bool rm_options_has_default(int index);
/* The value as the command line would say it, into `text`. */
const char *rm_options_text(const rm_options *options, int index, char *text, size_t text_bytes);
const char *rm_options_text_of(const rm_options *options, const char *name, char *text, size_t text_bytes);
/* Takes a saved value over where the flag was not given; INVALID where it was given, is binding for `command`, and
 * differs. `source` is where it was saved, for the sentence. Values taken over count as given. */
remat_status rm_options_adopt(rm_options *options, rm_command command, const char *name, const char *saved,
                              const char *source);

/* The same of a value that the weights in the file `source` decide. */
remat_status rm_options_learn(rm_options *options, const char *name, const char *value, const char *source);

void rm_options_help(rm_command command, FILE *out);

#endif
