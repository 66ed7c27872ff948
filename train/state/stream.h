/* stream.h: one array between a session and a file, a little at a time: saving and loading take no memory that grows with
 * the largest array, as the budget leaves no room for that. Which arrays, and what their names are, is the business of
 * weights.h (whole arrays) and optimizer_shards.h (shared out ones). */
#ifndef RM_STREAM_H
#define RM_STREAM_H

#include "train/file.h"

enum { RM_STREAM_BYTES = 1 << 18 };

/* Writes all that the session holds of the array. INTERNAL, naming it, where an element is not finite: nobody could go on from that.
 * Gradients are written as they are. */
remat_status rm_stream_out(remat_session *session, remat_kind kind, int64_t index, rm_file_writer *writer);

/* `bytes` bytes at `at` of the open file become those of the array from byte `first` on. */
remat_status rm_stream_in(remat_session *session, remat_kind kind, int64_t index, uint64_t first, uint64_t bytes,
                          int fd, const char *path, uint64_t at);

/* The same of floats of 16 bits, which are made whole ones: `bytes` and `first` are the array's. */
remat_status rm_stream_in_halves(remat_session *session, remat_kind kind, int64_t index, uint64_t first, uint64_t bytes,
                                 int fd, const char *path, uint64_t at, bool bf16);

/* The array of one session becomes that of another, which holds as much of it. */
remat_status rm_stream_copy(remat_session *from, remat_session *to, remat_kind kind, int64_t index);

#endif
