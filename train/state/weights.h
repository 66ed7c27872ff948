/* weights.h: a session's arrays to and from safetensors files: parameters (followed by buffers, because
 * PyTorch's state_dict has both), optimizer state and gradients. It sits between the format (safetensors.h) and the training
 * state, which consists of several files (state.h). */
#ifndef RM_WEIGHTS_H
#define RM_WEIGHTS_H

#include "train/state/safetensors.h"

/* Writes all arrays of a kind, one at a time; fsynced. Removes the file on failure. *writer keeps the file's bytes and
 * crc32. */
remat_status rm_weights_save(remat_session *session, remat_kind kind, const char *path, rm_file_writer *writer);
/* The same into what is open already; it is closed in any case. */
remat_status rm_weights_write(remat_session *session, remat_kind kind, rm_file_writer *writer);

/* Every array of the kind must be in the file, and nothing else: the sentence names the first that is missing,
 * unexpected, or of another shape or dtype; then nothing has been changed. */
remat_status rm_weights_load(remat_session *session, remat_kind kind, const char *path);
remat_status rm_weights_check(remat_session *session, remat_kind kind,
                              const char *path); /* that alone: loads nothing */

/* As rm_weights_load of parameters, but names may be those of other programs: prefixes "module.", "_orig_mod.", "model." and
 * "transformer." are dropped, and the first part may be lstm or gru (rnn), emb, embed or encoder (embedding), fc, linear, out, output or
 * decoder (head), where the model has no such names itself; num_batches_tracked is left out, and so is the causal mask that
 * GPT-2's attention has (INVALID where it is another mask); and they may be halves, F16 or BF16. Where the head is tied to the
 * embedding, either name will do, or both for the same numbers. Arrays of the model that begin with `anew` stay as they are, whatever the file has for them; NULL: none. */
remat_status rm_weights_import(remat_session *session, const char *path, const char *anew);

/* What tells models apart in such a file: the array that is called so, by our names (NULL: there is none); the layers of arrays called
 * "before7after", one more than the largest number; whether two arrays hold the same. */
const rm_st_array *rm_weights_named(const rm_safetensors *file, const char *ours);
int64_t rm_weights_layers(const rm_safetensors *file, const char *before, const char *after);
bool rm_weights_same(const rm_safetensors *file, const rm_st_array *a, const rm_st_array *b);

/* Copies all parameters and buffers from one session to another of the same model. */
remat_status rm_weights_copy(remat_session *from, remat_session *to);

/* "rnn.weight_hh_l0" for "module.lstm.weight_hh_l0"; into `out`, cut at out_bytes. */
void rm_weights_our_name(const char *name, char *out, size_t out_bytes);

#endif
