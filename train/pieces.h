/* pieces.h: the optimizer's state on disk, whole or shared out, read into sessions that hold all of it or their part. A file
 * of pieces is a safetensors file whose arrays are stretches of the session's, in row-major order:
 *
 *     "rnn.weight_hh_l0.exp_avg[0:512]"    F32 (512)   elements 0 .. 511
 *     "rnn.weight_hh_l0.exp_avg[512:576]"  F32 (64)    of another rank, perhaps, in another file
 *
 * A name without brackets is a whole array, as weights.h writes them. It does not matter who wrote which: all files together
 * must have each element once, and any session then takes what it holds. Weights, which every rank holds whole, are
 * weights.h's. */
#ifndef RM_PIECES_H
#define RM_PIECES_H

#include "train/safetensors.h"

/* Writes what this session holds of the optimizer's arrays; fsynced. On failure what was written is removed. bytes and crc32
 * of the file are left in *writer. */
remat_status rm_pieces_save(remat_session *session, const char *path, rm_file_writer *writer);

/* A file as it was written. */
typedef struct {
    char path[RM_PATH_BYTES];
    uint64_t bytes;
    uint32_t crc32;
} rm_saved_file;

remat_status rm_saved_file_check(const rm_saved_file *file);      /* IO unless it still is */
remat_status rm_saved_file_check_size(const rm_saved_file *file); /* IO unless it is there, and as long */

/* Reading the session's part of all optimizer arrays from `n` files, in two halves: the first looks at everything and changes
 * nothing. IO: a file is missing, or is not what was written (summed up are those that something is read from, and all if
 * they make no sense); INVALID: it is another model's, or another optimizer's. `file` is borrowed until closed. */
typedef struct rm_pieces rm_pieces;
remat_status rm_pieces_open(remat_session *session, const rm_saved_file *file, int64_t n, rm_pieces **out);
remat_status rm_pieces_fill(rm_pieces *pieces, remat_session *session);
void rm_pieces_close(rm_pieces *pieces); /* NULL allowed */

/* ---- For tests and fuzzers: both halves at once, and the parts --------------------------------------------------- */

remat_status rm_pieces_load(remat_session *session, const rm_saved_file *file, int64_t n);

/* Elements first .. first + count - 1 of array `array`, in file `file`, of which they are entry `entry`. */
typedef struct {
    int32_t file, entry;
    int64_t array, first, count;
} rm_piece;

/* "X[512:576]" -> 'X', first, count; a name without brackets: count -1. `name` is cut there; false: the brackets make no
 * sense. */
bool rm_piece_parse(char *name, int64_t *first, int64_t *count);

/* Which piece of `n_files` parsed files is where in arrays of these names and shapes: in the order of arrays, and of elements
 * in each, every one once. INVALID and IO as above. *pieces is the caller's, freed with rm_free. */
remat_status rm_pieces_match(const remat_array *array, int64_t n_arrays, const rm_safetensors *files, int64_t n_files,
                             rm_piece **pieces, int64_t *n_pieces);

#endif
