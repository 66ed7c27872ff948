/* optimizer_shards.h: the optimizer's state on disk, whole or shared out, read into sessions that hold all of it or their part. A file
 * of shards is a safetensors file whose arrays are stretches of the session's, in row-major order:
 *
 *     "rnn.weight_hh_l0.exp_avg[0:512]"    F32 (512)   elements 0 .. 511
 *     "rnn.weight_hh_l0.exp_avg[512:576]"  F32 (64)    of another rank, perhaps, in another file
 *
 * A name without brackets is a whole array, as weights.h writes them. It does not matter who wrote which: all files together
 * must have each element once, and any session then takes what it holds. Weights, which every rank holds whole, are
 * weights.h's. */
#ifndef RM_OPTIMIZER_SHARDS_H
#define RM_OPTIMIZER_SHARDS_H

#include "train/state/safetensors.h"

/* Writes what this session holds of the optimizer's arrays; fsynced. On failure what was written is removed. bytes and crc32
 * of the file are left in *writer. */
remat_status rm_optimizer_shards_save(remat_session *session, const char *path, rm_file_writer *writer);

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
typedef struct rm_optimizer_shards rm_optimizer_shards;
remat_status rm_optimizer_shards_open(remat_session *session, const rm_saved_file *file, int64_t n,
                                      rm_optimizer_shards **out);
remat_status rm_optimizer_shards_fill(rm_optimizer_shards *shards, remat_session *session);
void rm_optimizer_shards_close(rm_optimizer_shards *shards); /* NULL allowed */

/* ---- For tests and fuzzers: both halves at once, and the parts --------------------------------------------------- */

remat_status rm_optimizer_shards_load(remat_session *session, const rm_saved_file *file, int64_t n);

/* Elements first .. first + count - 1 of array `array`, in file `file`, of which they are entry `entry`. */
typedef struct {
    int32_t file, entry;
    int64_t array, first, count;
} rm_shard;

/* "X[512:576]" -> 'X', first, count; a name without brackets: count -1. `name` is cut there; false: the brackets make no
 * sense. */
bool rm_shard_parse(char *name, int64_t *first, int64_t *count);

/* Which shard of `n_files` parsed files is where in arrays of these names and shapes: in the order of arrays, and of elements
 * in each, every one once. INVALID and IO as above. *shards is the caller's, freed with rm_free. */
remat_status rm_optimizer_shards_match(const remat_array *array, int64_t n_arrays, const rm_safetensors *files,
                                       int64_t n_files, rm_shard **shards, int64_t *n_shards);

#endif
