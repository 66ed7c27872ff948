/* state.h: the training state on disk: what it takes to continue a run bit for bit.
 *
 *     DIR/step-00000100/model.safetensors      parameters
 *                       optimizer.safetensors  the optimizer's arrays; none for plain sgd
 *                       state.json             step, epoch, position, the flags, and the two files' sizes and checksums
 *
 * A state is written as DIR/.tmp-step-00000100, every file and the directory fsynced, and then renamed, so a directory
 * called step-* is whole, whenever the machine died. Older ones are removed only after that.
 */
#ifndef RM_STATE_H
#define RM_STATE_H

#include "train/file.h"
#include "train/options.h"

/* Where a run is. */
typedef struct {
    int64_t step;            /* updates made */
    int64_t epoch, position; /* of the next batch, as rm_loader has them */
    int64_t samples;         /* in the data set: other data would have another order */
} rm_state_point;

/* ---- Saving ----------------------------------------------------------------------------------------------------- */

typedef struct {
    char directory[RM_PATH_BYTES];
    int lock;     /* held while open, so that two runs never save to one place; -1: closed */
    int64_t keep; /* 0: all */
} rm_state_store;

/* Creates the directory where needed, locks it, and removes what a killed run left unfinished. IO when another run is
 * saving there; INVALID when it holds a state of a step later than `step`, which a new run would mix with its own. */
remat_status rm_state_store_open(const char *directory, int64_t keep, int64_t step, rm_state_store *out);
void rm_state_store_close(rm_state_store *store);

/* A step that is already there is left as it is. On failure nothing that was there before has changed. */
remat_status rm_state_save(rm_state_store *store, remat_session *session, const rm_options *options,
                           rm_state_point point);

/* ---- Resuming --------------------------------------------------------------------------------------------------- */

/* Finds the newest state in `directory`, or `directory` itself if it is one. *found is false when there is none. */
remat_status rm_state_find(const char *directory, char state[RM_PATH_BYTES], bool *found);

/* Reads state.json: where the run was, and its flags into `options` (rm_options_adopt). */
remat_status rm_state_read(const char *state, rm_command command, rm_options *options, rm_state_point *out);

/* Reads the arrays into a session of the same model. with_optimizer also restores the optimizer and the step count. */
remat_status rm_state_restore(const char *state, const rm_state_point *point, bool with_optimizer,
                              remat_session *session);

/* The parser of state.json alone, for tests and fuzzers. */
remat_status rm_state_parse(const char *text, size_t size, const char *name, rm_command command, rm_options *options,
                            rm_state_point *out);

#endif
