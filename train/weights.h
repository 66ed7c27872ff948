/* weights.h: a session's arrays to and from safetensors files: parameters, optimizer state, gradients. Between the
 * format (safetensors.h) and the training state, which is several files (state.h). */
#ifndef RM_WEIGHTS_H
#define RM_WEIGHTS_H

#include "train/safetensors.h"

/* Writes all arrays of a kind, one at a time; fsynced. On failure what was written is removed. bytes and crc32 of the file
 * are left in *writer. */
remat_status rm_weights_save(remat_session *session, remat_kind kind, const char *path, rm_file_writer *writer);

/* Every array of the kind must be in the file, and nothing else: the sentence names the first that is missing,
 * unexpected, or of another shape or dtype; then nothing has been changed. */
remat_status rm_weights_load(remat_session *session, remat_kind kind, const char *path);
remat_status rm_weights_check(remat_session *session, remat_kind kind,
                              const char *path); /* that alone: loads nothing */

/* As rm_weights_load of parameters, but names may be those of other programs: prefixes "module.", "_orig_mod." and "model."
 * are dropped, and the first part may be lstm or gru (rnn), emb, embed or encoder (embedding), fc, linear, out, output or
 * decoder (head). */
remat_status rm_weights_import(remat_session *session, const char *path);

/* Copies all parameters from one session to another of the same model. */
remat_status rm_weights_copy(remat_session *from, remat_session *to);

/* "rnn.weight_hh_l0" for "module.lstm.weight_hh_l0"; into `out`, cut at out_bytes. */
void rm_weights_our_name(const char *name, char *out, size_t out_bytes);

#endif
