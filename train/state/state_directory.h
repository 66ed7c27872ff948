/* state_directory.h: what training states look like from outside: names of directories and files, which states are there and
 * whole, how one is removed. What is in the files is the business of state.c, which writes them, and state_resume.c. */
#ifndef RM_STATE_DIRECTORY_H
#define RM_STATE_DIRECTORY_H

#include "train/file.h"

#define RM_STATE_MODEL "model.safetensors"
#define RM_STATE_OPTIMIZER "optimizer.safetensors"
#define RM_STATE_CARRIED "carried.safetensors" /* with --stateful */
#define RM_STATE_TOKENIZER "tokenizer.json"    /* with --tokenizer: a copy */
#define RM_STATE_EMA "ema.safetensors"         /* with --ema */
#define RM_STATE_JSON "state.json"
#define RM_STATE_JSON_BESIDE ".tmp-state.json" /* what takes its place, until it does */
#define RM_STATE_UNFINISHED ".tmp-"            /* in front of the name of a state that is being written */
#define RM_STATE_BEST "best"                   /* a link to the state after the best evaluation: --keep-best */
#define RM_STATE_DAMAGED "damaged-"            /* ... of one that a restarted job could not read, and put aside */

#define RM_STATE_SHARD_NAME 80
/* "optimizer-3-of-8.safetensors", and back: 8; 0 for any other name. */
void rm_state_shard_name(int64_t rank, int64_t size, char out[RM_STATE_SHARD_NAME]);
int64_t rm_state_ranks_of(const char *name);

/* Before the first link: a copy of a state that is DIR/best is renamed to `aside`, else ""; INVALID where it is somebody's, and no
 * earlier link. */
remat_status rm_state_make_way(const char *directory, char aside[RM_PATH_BYTES]);
/* Makes DIR/best a link to the state of a step, where that is there, and where the file system has links; INVALID as above. */
remat_status rm_state_link_best(const char *directory, int64_t step);

/* "DIR/step-00000100", with `prefix` before the last part. */
remat_status rm_state_path(const char *directory, const char *prefix, int64_t step, char out[RM_PATH_BYTES]);

bool rm_state_is_whole(const char *state); /* all its files are there, of shards every rank's; not a link elsewhere */
bool rm_state_is_there(const char *state); /* by its name, or a state.json in it */

/* The steps of the whole states in a directory, newest first; none where it does not exist. *steps is the caller's, freed
 * with rm_free. */
remat_status rm_state_list(const char *directory, int64_t **steps, int64_t *count);
/* The same of all that have a state's name, whole or not: as only a whole one is given it, what is not whole is damaged, or
 * an old one whose removal was cut short. */
remat_status rm_state_list_all(const char *directory, int64_t **steps, int64_t *count);

/* For whoever changes what is in it: IO where another run has it, or it is not there. Given back by close; *lock -1: not taken. */
remat_status rm_state_directory_lock(const char *directory, int *lock);

/* Out of the way under another name, whose path becomes `aside`; nothing is lost. */
remat_status rm_state_put_aside(const char *directory, int64_t step, char aside[RM_PATH_BYTES]);

void rm_state_remove(const char *state); /* only files of a state; quietly, whatever of it is there */
remat_status rm_state_discard(const char *directory,
                              int64_t step); /* the same of a whole one, so that its rest is never met */
remat_status rm_state_remove_unfinished(const char *directory);

#endif
