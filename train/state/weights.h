/* weights.h: a session's arrays to and from safetensors files: parameters (and buffers behind them, as PyTorch's state_dict has
 * both), optimizer state, gradients. Between the
 * format (safetensors.h) and the training state, which is several files (state.h). */
#ifndef RM_WEIGHTS_H
#define RM_WEIGHTS_H

#include "train/state/safetensors.h"

/* Writes all arrays of a kind, one at a time; fsynced. On failure what was written is removed. bytes and crc32 of the file
 * are left in *writer. */
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

/* What the shapes in such a file say of its model; 0: nothing. gates: 4 lstm, 3 gru, 1 rnn. minimal: 1 mingru, 2 minlstm. pictures: the
 * model's name, where it is one of pictures. */
typedef struct {
    const char *pictures;
    bool cifar_stem; /* of a resnet */
    int64_t layers, hidden, gates, minimal, embed, outputs, gpt2_positions;
    bool biases, bidirectional; /* there are any; layers in both directions */
    bool tied;                  /* a head that has a bias alone: its weight is the embedding's */
    bool untied;                /* gpt2's lm_head.weight is there, and is not its wte.weight */
    int64_t projection;         /* an lstm's proj_size */
    bool symbols, pairs;        /* there is an embedding; an encoder and a decoder */
} rm_weights_shape;
remat_status rm_weights_shape_of(const char *path, rm_weights_shape *out);

/* Copies all parameters and buffers from one session to another of the same model. */
remat_status rm_weights_copy(remat_session *from, remat_session *to);

/* "rnn.weight_hh_l0" for "module.lstm.weight_hh_l0"; into `out`, cut at out_bytes. */
void rm_weights_our_name(const char *name, char *out, size_t out_bytes);

#endif
