/* carried.h: the carried states of all rows of a batch on disk, whichever ranks compute them: safetensors, "lstm.0.h" and so on, of
 * shape (W B, H). Row i of rank r of W is row r + W i there, as the loader counts rows. */
#ifndef RM_CARRIED_H
#define RM_CARRIED_H

#include "train/state/state.h"

/* Collective. Rank 0 writes; `mine` is what this rank has come to before, and when one rank fails, all do. bytes and crc32 of the
 * file are left in rank 0's *writer. */
remat_status rm_carried_save(remat_session *session, const rm_state_ranks *ranks, const char *path, remat_status mine,
                             rm_file_writer *writer);

/* This rank's rows. INVALID, and nothing has changed, where they are not those of so many rows, or of this model. */
remat_status rm_carried_load(const char *path, int64_t rank, int64_t size, remat_session *session);

/* Zeros. */
remat_status rm_carried_clear(remat_session *session);

#endif
