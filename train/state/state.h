/* state.h: the training state on disk. A run continues from it bit for bit on the same number of ranks, and exactly on any
 * other number.
 *
 *     DIR/step-00000100/model.safetensors             parameters
 *                       optimizer.safetensors         the optimizer's arrays; none for plain sgd
 *                       optimizer-R-of-W.safetensors  instead with --zero=1: the shards of rank R of W (optimizer_shards.h)
 *                       carried.safetensors           with --stateful, the carried states of all ranks' rows (carried.h)
 *                       tokenizer.json                a copy of the --tokenizer file, so that the state is complete
 *                       ema.safetensors               with --ema, the average of the parameters
 *                       state.json                    step, epoch, position, flags; sizes and checksums of the other files
 *
 * A state is written as DIR/.tmp-step-00000100: replicated data by rank 0, shards by their owners, state.json by rank 0 after all
 * ranks have finished. Every file and the directory are fsynced before the rename, so a directory called step-* is complete even after
 * a crash. Older states are removed after that, except the one after the best evaluation (--keep-best), to which DIR/best links. If one
 * rank fails, all fail, with its message.
 */
#ifndef RM_STATE_H
#define RM_STATE_H

#include "train/data/class_names.h"
#include "train/file.h"
#include "train/flags/options.h"
#include "train/run/watch.h"

/* The position of a run. */
typedef struct {
    char run[20];            /* random name of the run; "": unknown (older states) */
    int64_t step;            /* updates made */
    int64_t epoch, consumed; /* start of the next update, as in rm_loader */
    int64_t samples;         /* in the data set: other data would have another order */
    uint32_t data_crc32;     /* of rm_dataset_checksum; 0: unknown (generated data, older states) */
    double last_lr;          /* of the last update: remat_set_last_lr. -1: unknown (format 1) */
    int64_t shards;          /* --deterministic-world; 0: off */
    int64_t world_size;      /* number of ranks that saved it; set by rm_state_save, as is `zero` */
    int64_t update;          /* samples of an update in the run that saved it; set by rm_start_read */
    int64_t pipeline;        /* that each of `world_size / pipeline` networks was divided among; 1: none was */
    int zero;                /* 1: each rank kept its part of the optimizer's state */
    rm_watch watch;          /* of its evaluations */
    bool evaluation_due;     /* a signal stopped the run before the evaluation after this step */
    bool stateful;           /* has the carried states of --stateful */
    bool tokenizer;          /* has tokenizer.json */
    bool ema;                /* has the average of --ema */
    bool lengths;            /* the run had --lengths */
    bool mean_unsaid;  /* has no --loss-mean: from a version without other means, or the loss counts all targets */
    char precision[8]; /* of matrix products; "fp32" in states of versions without --precision */
} rm_state_point;

/* The ranks of a run, as saving needs them (implemented by train/ranks/patient_barrier.h). `agree` returns once every rank has called
 * it, however long that takes. If all statuses are OK it returns OK, and values[] become their sums over ranks. Otherwise every rank
 * gets the status of the first that failed; the message is on that rank, and may be "" on others. */
typedef struct {
    int64_t rank, size;
    int64_t replica, replicas, part, parts; /* as in rm_ranks */
    bool shard_optimizer;                   /* each rank writes its shards */
    void *context;
    remat_status (*agree)(void *context, remat_status status, double *values, int64_t count);
} rm_state_ranks;

/* ---- Saving ----------------------------------------------------------------------------------------------------- */

typedef struct {
    char directory[RM_PATH_BYTES];
    int lock; /* held while open, so that two runs never save to one directory; -1: closed, or held by another rank */
    int64_t keep; /* 0: all */
    int64_t
        best; /* the step of the best evaluation, set before saving: its state is kept, and DIR/best links to it; 0: none */
    rm_state_ranks ranks;
    const uint8_t *tokenizer; /* borrowed, set after opening; copied into each state; NULL: none */
    size_t tokenizer_bytes;
    const rm_class_names *classes; /* borrowed; written to state.json; NULL: none */
    remat_session *ema;            /* borrowed: rank 0's session with the average of the weights; NULL: none */
} rm_state_store;

/* Creates the directory if needed, locks it, and removes unfinished states of a killed run. IO: another run is saving there; INVALID: it
 * has a state of a step later than `step`, which a new run would mix with its own. `ranks` (NULL: one rank) is copied; with ranks
 * this is collective, and rank 0 does the work. */
remat_status rm_state_store_open(const char *directory, int64_t keep, int64_t step, const rm_state_ranks *ranks,
                                 rm_state_store *out);
void rm_state_store_close(rm_state_store *store);

/* Collective. Leaves an existing state of this step as it is. On failure, earlier states are unchanged. */
remat_status rm_state_save(rm_state_store *store, remat_session *session, const rm_options *options,
                           rm_state_point point);

/* ---- Resuming --------------------------------------------------------------------------------------------------- */

/* Finds the newest state in `directory`, or `directory` itself if it is a state. *found is false if there is none. Also finds a state
 * that lacks a file; reading it will fail. */
remat_status rm_state_find(const char *directory, char state[RM_PATH_BYTES], bool *found);

/* Reads state.json: the position, and flags into `options` (rm_options_adopt). IO, naming the file: it is damaged, or a file that it
 * lists is missing or has another size. The state's tokenizer becomes --tokenizer; INVALID: another one was given. */
remat_status rm_state_read(const char *state, rm_command command, rm_options *options, rm_state_point *out);

/* INVALID: a flag of `command` would overwrite a file that the state's run read, such as its --data. A state that cannot be read is left
 * to those who need it. */
remat_status rm_state_spare_files(const char *state, rm_command command, const rm_options *options);

/* The names of the classes; empty if they had none, or in older states. Free *out even on errors. */
remat_status rm_state_class_names(const char *state, rm_class_names *out);

/* IO: a file that state.json lists is missing, or any byte of it changed. */
remat_status rm_state_check(const char *state);

/* For a job that its launcher or Slurm restarted after a failure: finds the newest undamaged state in `directory`, if the newest states
 * are the job's own (state_job.h). `state` is "" on the first attempt, if the job has saved none, or if another job's state is newer:
 * then it starts as on the first attempt. Renames newer damaged states, because the run will reach their steps again, and reports that
 * in `note`, else "". IO: all states of the job are damaged. For rank 0, before anything else reads `directory`. */
#define RM_STATE_NOTE 2048
remat_status rm_state_after_restart(const char *directory, char state[RM_PATH_BYTES], char note[RM_STATE_NOTE]);
bool rm_state_restarted(void); /* whether this job was restarted */

/* After rm_state_read or rm_state_restore failed with `status`. If the state is damaged and was the newest in `directory`, the message
 * tells how to continue from the newest readable one before it. Returns `status`. An older state is never used without the user's
 * request, because that would silently lose training. */
remat_status rm_state_advise(const char *directory, const char *state, remat_status status);

/* Reads the arrays into a session of the same model, on every rank: all parameters, and the part of the optimizer's state that the
 * session holds, however it was sharded when saved. with_optimizer restores the optimizer, the step count and the last learning
 * rate. Sizes, checksums, names and shapes are checked first: a damaged state, or one of another model, changes nothing. */
remat_status rm_state_restore(const char *state, const rm_state_point *point, bool with_optimizer,
                              remat_session *session);

/* Reads the average of the parameters (--ema) in place of the parameters. */
remat_status rm_state_restore_ema(const char *state, remat_session *session);

/* Reads the carried states (--stateful) of this rank's rows. */
remat_status rm_state_restore_carried(const char *state, int64_t rank, int64_t size, remat_session *session);

#define RM_STATE_FORMAT 2 /* format 1 (one rank, positions in batches) can be read */

/* The parser of state.json alone, for tests and fuzzers. */
remat_status rm_state_parse(const char *text, size_t size, const char *name, rm_command command, rm_options *options,
                            rm_state_point *out);

#endif
