/* state.h: the training state on disk: what it takes to continue a run bit for bit, on as many ranks as it had, or exactly,
 * on any other number.
 *
 *     DIR/step-00000100/model.safetensors             parameters
 *                       optimizer.safetensors         the optimizer's arrays; none for plain sgd
 *                       optimizer-R-of-W.safetensors  instead, where W ranks share them out: the shards of rank R (optimizer_shards.h)
 *                       carried.safetensors           the states that --stateful carries on, of all ranks' rows (carried.h)
 *                       tokenizer.json                a copy of --tokenizer's, so that the state can write and read text anywhere
 *                       ema.safetensors               the average of the parameters, with --ema
 *                       state.json                    step, epoch, position, flags; sizes and checksums of the other files
 *
 * A state is written as DIR/.tmp-step-00000100: what all ranks have alike by rank 0, shards by their owners, state.json by
 * rank 0 when all have finished. Every file and the directory are fsynced, and then it is renamed, so a directory called
 * step-* is whole, whenever the machine died. Older ones are removed only after that, but for the one after the best evaluation
 * (--keep-best), which the link DIR/best leads to. When one rank fails, all fail, with
 * its sentence.
 */
#ifndef RM_STATE_H
#define RM_STATE_H

#include "train/data/class_names.h"
#include "train/file.h"
#include "train/flags/options.h"
#include "train/run/watch.h"

/* Where a run is. */
typedef struct {
    char run[20];            /* its name, drawn when it began; "": not known, in older states */
    int64_t step;            /* updates made */
    int64_t epoch, consumed; /* where the next one begins, as rm_loader has them */
    int64_t samples;         /* in the data set: other data would have another order */
    uint32_t data_crc32;     /* rm_dataset_checksum's; 0: not known, of generated data and older states */
    double last_lr;          /* of the last update: remat_set_last_lr. -1: not known (a state of format 1) */
    int64_t shards;          /* --deterministic-world's V; 0: plain */
    int64_t world_size;      /* of the ranks that saved it; rm_state_save fills these in itself */
    int zero;                /* 1: each kept its part of the optimizer's state */
    rm_watch watch;          /* of its evaluations */
    bool evaluation_due;     /* a signal stopped the run before the one after this step */
    bool stateful;           /* --stateful's states are there */
    bool tokenizer;          /* tokenizer.json is there */
    bool ema;                /* --ema's average is there */
    bool lengths;            /* its samples had --lengths */
    bool mean_unsaid;        /* it does not say --loss-mean: saved by a version that had parts alone, or its loss counts all */
    char precision[8];       /* of its products; "fp32" in states of versions that had no other */
} rm_state_point;

/* The other ranks of a run, as far as saving needs them (train/ranks/patient_barrier.h is one such). `agree` returns when every rank
 * has called it, however long that takes: OK where all came with OK, and then values[] are their sums over ranks; on every
 * rank the status of the first that failed otherwise. Its sentence is on that rank at least; others may have "". */
typedef struct {
    int64_t rank, size;
    bool shard_optimizer; /* each writes its shards */
    void *context;
    remat_status (*agree)(void *context, remat_status status, double *values, int64_t count);
} rm_state_ranks;

/* ---- Saving ----------------------------------------------------------------------------------------------------- */

typedef struct {
    char directory[RM_PATH_BYTES];
    int lock;     /* held while open, so that two runs never save to one place; -1: closed, or another rank's */
    int64_t keep; /* 0: all */
    int64_t
        best; /* the step of the best evaluation, set before saving: its state is not removed, and DIR/best leads there; 0: none */
    rm_state_ranks ranks;
    const uint8_t *tokenizer; /* borrowed: what each state has a copy of; NULL: nothing. Set once it is open */
    size_t tokenizer_bytes;
    const rm_class_names *classes; /* borrowed: what state.json names; NULL: nothing */
    remat_session *ema; /* borrowed: rank 0's session with the average of the weights; NULL: there is none */
} rm_state_store;

/* Creates the directory where needed, locks it, and removes what a killed run left unfinished. IO when another run is
 * saving there; INVALID when it holds a state of a step later than `step`, which a new run would mix with its own. `ranks`
 * (NULL: there are no others) is copied; then this is collective, and rank 0 does it. */
remat_status rm_state_store_open(const char *directory, int64_t keep, int64_t step, const rm_state_ranks *ranks,
                                 rm_state_store *out);
void rm_state_store_close(rm_state_store *store);

/* Collective. A step that is already there is left as it is. On failure nothing that was there before has changed. */
remat_status rm_state_save(rm_state_store *store, remat_session *session, const rm_options *options,
                           rm_state_point point);

/* ---- Resuming --------------------------------------------------------------------------------------------------- */

/* Finds the newest state in `directory`, or `directory` itself if it is one. *found is false when there is none. A state that
 * lacks a file is found like any other, for reading it to refuse. */
remat_status rm_state_find(const char *directory, char state[RM_PATH_BYTES], bool *found);

/* Reads state.json: where the run was, and its flags into `options` (rm_options_adopt). IO, naming the file, when it is not as
 * it was saved, or one that it lists is missing or has another size. A tokenizer that is there becomes --tokenizer; INVALID where
 * another was said. */
remat_status rm_state_read(const char *state, rm_command command, rm_options *options, rm_state_point *out);

/* What the classes were called that the run was trained on; none where they had no names, and in states of versions that kept
 * none. Free in any case. */
remat_status rm_state_class_names(const char *state, rm_class_names *out);

/* IO unless all that state.json lists is there and as it was saved, every byte of it. */
remat_status rm_state_check(const char *state);

/* For a job that was started again after a failure, by its launcher or by Slurm: the newest state in `directory` that is as it
 * was saved, if the newest there are the job's own (state_job.h). `state` is "" where this is the first attempt, or it has
 * saved none, or another's is newer: then it starts as it did the first time. Newer ones that are damaged are put aside under
 * other names, as a run that goes on will come to their steps again, and `note` says so; else that is "". IO when all that
 * the job has saved is damaged. For rank 0, before anything else looks at `directory`. */
#define RM_STATE_NOTE 2048
remat_status rm_state_after_restart(const char *directory, char state[RM_PATH_BYTES], char note[RM_STATE_NOTE]);
bool rm_state_restarted(void); /* is this such a job? */

/* After rm_state_read or rm_state_restore has failed with `status`: where the state is damaged and was the newest in
 * `directory`, whose name was given, the remedy becomes what to do to go on from the newest before it that can be read. Returns
 * `status`. An older one is never taken unasked: what was trained since would be gone, and nobody would know. */
remat_status rm_state_advise(const char *directory, const char *state, remat_status status);

/* Reads the arrays into a session of the same model: every rank for itself, parameters whole, of the optimizer's state what
 * the session holds, however it was shared out when it was saved. with_optimizer also restores that, the step count and the
 * last learning rate. Sizes, checksums, names and shapes of all that is read are checked first: a state that is damaged, or
 * another model's, changes nothing. */
remat_status rm_state_restore(const char *state, const rm_state_point *point, bool with_optimizer,
                              remat_session *session);

/* Of a state with --ema, the average of the parameters, in their place. */
remat_status rm_state_restore_ema(const char *state, remat_session *session);

/* Of a state that was stateful, the carried states of this rank's rows. */
remat_status rm_state_restore_carried(const char *state, int64_t rank, int64_t size, remat_session *session);

#define RM_STATE_FORMAT 2 /* 1, of one rank and positions in batches, is read too */

/* The parser of state.json alone, for tests and fuzzers. */
remat_status rm_state_parse(const char *text, size_t size, const char *name, rm_command command, rm_options *options,
                            rm_state_point *out);

#endif
