/* state_directory.h: training states on disk: names of directories and files, which states exist and are complete, and how to
 * remove one. state.c writes the contents of the files and state_resume.c reads them. */
#ifndef RM_STATE_DIRECTORY_H
#define RM_STATE_DIRECTORY_H

#include "train/file.h"

#define RM_STATE_MODEL "model.safetensors"
#define RM_STATE_OPTIMIZER "optimizer.safetensors"
#define RM_STATE_CARRIED "carried.safetensors" /* with --stateful */
#define RM_STATE_TOKENIZER "tokenizer.json"    /* with --tokenizer: a copy */
#define RM_STATE_EMA "ema.safetensors"         /* with --ema */
#define RM_STATE_JSON "state.json"
#define RM_STATE_JSON_BESIDE ".tmp-state.json" /* the new file, until it replaces state.json */
#define RM_STATE_UNFINISHED ".tmp-"            /* prefix of a state that is being written */
#define RM_STATE_BEST "best"                   /* a link to the state after the best evaluation: --keep-best */
#define RM_STATE_DAMAGED "damaged-"            /* prefix of a state that a restarted job could not read */

#define RM_STATE_SHARD_NAME 80
/* "optimizer-3-of-8.safetensors", and back: 8; 0 for any other name. */
void rm_state_shard_name(int64_t rank, int64_t size, char out[RM_STATE_SHARD_NAME]);
int64_t rm_state_ranks_of(const char *name);

/* Call before the first link. If DIR/best is a copy of a state, renames it to `aside`; else `aside` is "". INVALID: DIR/best is
 * neither a link of ours nor a state. */
remat_status rm_state_make_way(const char *directory, char aside[RM_PATH_BYTES]);
/* Makes DIR/best a link to the state of a step, if it exists and the file system has links; INVALID as above. */
remat_status rm_state_link_best(const char *directory, int64_t step);

/* "DIR/step-00000100", with `prefix` before the last part. */
remat_status rm_state_path(const char *directory, const char *prefix, int64_t step, char out[RM_PATH_BYTES]);

bool rm_state_is_whole(const char *state); /* has all files, including every rank's shard; not a link */
bool rm_state_is_there(const char *state); /* by its name, or because it contains state.json */

/* The steps of the complete states in a directory, newest first; none if it does not exist. The caller frees *steps with rm_free. */
remat_status rm_state_list(const char *directory, int64_t **steps, int64_t *count);
/* The same for every directory named like a state. States get their name only when complete, so an incomplete one is damaged
 * or its removal was interrupted. */
remat_status rm_state_list_all(const char *directory, int64_t **steps, int64_t *count);

/* Locks a directory before changing it. IO when another run holds the lock or the directory does not exist. Close *lock to
 * unlock; -1: not locked. */
remat_status rm_state_directory_lock(const char *directory, int *lock);

/* Renames the state and stores its new path in `aside`; deletes nothing. */
remat_status rm_state_put_aside(const char *directory, int64_t step, char aside[RM_PATH_BYTES]);

void rm_state_remove(const char *state); /* only files of a state; ignores missing ones */
remat_status rm_state_discard(const char *directory,
                              int64_t step); /* the same for a complete state, which is never seen partly removed */
remat_status rm_state_remove_unfinished(const char *directory);

#endif
