/* carried.h: the carried states of all batch rows on disk, independent of the ranks that compute them: safetensors, "lstm.0.h" and so
 * on, of shape (W B, H). Row i of rank r of W is row r + W i on disk, as the loader counts rows. */
#ifndef RM_CARRIED_H
#define RM_CARRIED_H

#include "train/state/state.h"

/* Collective. Rank 0 writes; `mine` is this rank's status so far. If one rank fails, all fail. Leaves bytes and crc32 of the file in
 * rank 0's *writer. */
remat_status rm_carried_save(remat_session *session, const rm_state_ranks *ranks, const char *path, remat_status mine,
                             rm_file_writer *writer);

/* Reads this rank's rows. INVALID, and nothing changes: another number of rows, or another model. */
remat_status rm_carried_load(const char *path, int64_t rank, int64_t size, remat_session *session);

/* Sets all carried states to zero. */
remat_status rm_carried_clear(remat_session *session);

#endif
