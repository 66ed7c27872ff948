/* stream.h: copies one array between a session and a file in small pieces, because the budget leaves no room for a buffer
 * as large as the largest array. weights.h (whole arrays) and optimizer_shards.h (sharded ones) choose the arrays and their
 * names. */
#ifndef RM_STREAM_H
#define RM_STREAM_H

#include "train/state/safetensors.h"

enum { RM_STREAM_BYTES = 1 << 18 };

/* Writes the array, or all that the session holds of it. INTERNAL, naming the array, when it has non-finite values: training
 * could not continue from them. Gradients are written unchecked. out: collective over a pipeline, whose rank 0 writes; with
 * writer NULL, a rank only takes part. */
remat_status rm_stream_out(remat_session *session, remat_kind kind, int64_t index,
                           REMAT_OPTIONAL rm_file_writer *writer);
remat_status rm_stream_held(remat_session *session, remat_kind kind, int64_t index, rm_file_writer *writer);

/* Also of an array that another rank of a pipeline holds. */
uint64_t rm_stream_whole_bytes(const remat_array *array);

/* Reads `bytes` bytes of the session's array, from its byte `first` on, from the array of an open file: from its byte `from` on. Halves
 * in the file become 32-bit; all three numbers count 32-bit floats. */
remat_status rm_stream_in(remat_session *session, remat_kind kind, int64_t index, uint64_t first, uint64_t bytes,
                          const rm_safetensors *file, const rm_st_array *array, uint64_t from);

/* The array of the file, (n,m), becomes the session's, (m,n); halves become 32-bit. */
remat_status rm_stream_in_transposed(remat_session *session, remat_kind kind, int64_t index, const rm_safetensors *file,
                                     const rm_st_array *array);
/* Reads columns first .. first+count-1 of the array as rows, floats (count,n) with n = array->dim[0]. `column` is scratch for `count`
 * floats. */
remat_status rm_stream_columns(const rm_safetensors *file, const rm_st_array *array, int64_t first, int64_t count,
                               float *column, float *rows);

/* Copies an array from one session to another, which holds equally much of it. */
remat_status rm_stream_copy(remat_session *from, remat_session *to, remat_kind kind, int64_t index);

#endif
