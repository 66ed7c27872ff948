/* weights.h: a session's arrays to and from safetensors files: parameters (followed by buffers, because
 * PyTorch's state_dict has both), optimizer state and gradients. It sits between the format (safetensors.h) and the training
 * state, which consists of several files (state.h). */
#ifndef RM_WEIGHTS_H
#define RM_WEIGHTS_H

#include "train/state/safetensors.h"

/* Writes all arrays of a kind, one at a time; fsynced. Removes the file on failure. *writer keeps the file's bytes and
 * crc32. Collective over a pipeline: rank 0 writes, and the others have no path. */
remat_status rm_weights_save(remat_session *session, remat_kind kind, REMAT_OPTIONAL const char *path,
                             rm_file_writer *writer);
/* The same for an open writer, which it closes even on errors. */
remat_status rm_weights_write(remat_session *session, remat_kind kind, rm_file_writer *writer);

/* The file must have exactly the arrays of the kind. Otherwise the message names the first that is missing, unexpected, or of another
 * shape or dtype, and nothing changes. */
remat_status rm_weights_load(remat_session *session, remat_kind kind, const char *path);
remat_status rm_weights_check(remat_session *session, remat_kind kind,
                              const char *path); /* only the check: loads nothing */

/* Loads parameters like rm_weights_load, and accepts files of other programs: drops the prefixes "module.", "_orig_mod.", "model." and
 * "transformer."; the first part of a name may be lstm or gru (rnn), emb, embed or encoder (embedding), fc, linear, out, output or
 * decoder (head), unless the model has such names itself; ignores num_batches_tracked and GPT-2's causal mask (INVALID: another mask);
 * converts F16 and BF16; transposes the products of nanoGPT's files (nanogpt.h). A head tied to the embedding may have either name, or both with equal values. Arrays of the model whose names
 * start with `anew` keep their values; NULL: none. */
remat_status rm_weights_import(remat_session *session, const char *path, const char *anew);

/* To recognise a model from such a file: the array with one of our names (NULL: none); the number of layers in names "before7after", one
 * more than the largest; whether two arrays are equal. */
const rm_st_array *rm_weights_named(const rm_safetensors *file, const char *ours);
int64_t rm_weights_layers(const rm_safetensors *file, const char *before, const char *after);
bool rm_weights_same(const rm_safetensors *file, const rm_st_array *a, const rm_st_array *b);

/* Copies all parameters and buffers from one session to another of the same model. */
remat_status rm_weights_copy(remat_session *from, remat_session *to);

/* Without "module.", "_orig_mod.", "model." and "transformer.". */
const char *rm_weights_without_prefixes(const char *name);
/* Writes our name, "rnn.weight_hh_l0" for "module.lstm.weight_hh_l0", into `out`, cut at out_bytes. */
void rm_weights_our_name(const char *name, char *out, size_t out_bytes);

#endif
