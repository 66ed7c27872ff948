/* optimizer_shards.h: the optimizer's state on disk, whole or sharded, for sessions that hold all of it or a part. A file of shards is a
 * safetensors file whose arrays are ranges of the session's arrays, in row-major order:
 *
 *     "rnn.weight_hh_l0.exp_avg[0:512]"    F32 (512)   elements 0 .. 511
 *     "rnn.weight_hh_l0.exp_avg[512:576]"  F32 (64)    perhaps of another rank, in another file
 *
 * A name without brackets is a whole array, as weights.h writes it. All files together must have each element once, whichever rank wrote
 * it; a session reads the part that it holds. weights.h handles the weights, which every rank holds whole. */
#ifndef RM_OPTIMIZER_SHARDS_H
#define RM_OPTIMIZER_SHARDS_H

#include "train/state/safetensors.h"

/* Writes the part of the optimizer's arrays that this session holds; fsynced. Removes the file on failure. Leaves bytes and crc32 of
 * the file in *writer. */
remat_status rm_optimizer_shards_save(remat_session *session, const char *path, rm_file_writer *writer);

/* A file, with its size and checksum when it was written. */
typedef struct {
    char path[RM_PATH_BYTES];
    uint64_t bytes;
    uint32_t crc32;
} rm_saved_file;

remat_status rm_saved_file_check(const rm_saved_file *file);      /* IO: missing or changed */
remat_status rm_saved_file_check_size(const rm_saved_file *file); /* IO: missing, or of another size */

/* Reads the session's part of all optimizer arrays from `n` files in two steps: the first checks everything and changes nothing. IO: a
 * file is missing or changed (checksums cover the files that are read, or all if a header is invalid). INVALID: another model or
 * another optimizer. `file` is borrowed until closed. */
typedef struct rm_optimizer_shards rm_optimizer_shards;
remat_status rm_optimizer_shards_open(remat_session *session, const rm_saved_file *file, int64_t n,
                                      rm_optimizer_shards **out);
remat_status rm_optimizer_shards_fill(rm_optimizer_shards *shards, remat_session *session);
void rm_optimizer_shards_close(rm_optimizer_shards *shards); /* NULL allowed */

/* ---- For tests and fuzzers: both halves at once, and the parts --------------------------------------------------- */

remat_status rm_optimizer_shards_load(remat_session *session, const rm_saved_file *file, int64_t n);

/* Elements first .. first + count - 1 of array `array`: entry `entry` of file `file`. */
typedef struct {
    int32_t file, entry;
    int64_t array, first, count;
} rm_shard;

/* "X[512:576]" -> "X", first, count; without brackets count is -1. Cuts `name` at the bracket. False: invalid brackets. */
bool rm_shard_parse(char *name, int64_t *first, int64_t *count);

/* Matches the shards of `n_files` parsed files to arrays of these names and shapes, sorted by array and by element. INVALID and IO as
 * above. The caller frees *shards with rm_free. */
remat_status rm_optimizer_shards_match(const remat_array *array, int64_t n_arrays, const rm_safetensors *files,
                                       int64_t n_files, rm_shard **shards, int64_t *n_shards);

#endif
