/* seq2seq.h: an encoder and a decoder of lstm, gru or rnn, with attention (Luong, Pham and Manning, "Effective approaches to
 * attention-based neural machine translation", 2015: global, the score "general"):
 *
 *     input (S,B) ─ embedding ─ rnn ─────────┬─ e (S,B,E) ──────────────┐
 *                                     final states                      │
 *                                            ▼                          ▼
 *     previous (T,B) ─ embedding ─ decoder_rnn ─ h (T,B,H) ─ W_a ─ attention ─ c ─ tanh(W_c [c; h]) ─ head
 *
 *     c[t] = sum over s of e[s] softmax over s of h[t]' W_a' e[s]
 *
 * Input lines are stored from end to start and padded at the end (dataset_pairs.c). rnn reads them in reversed time, so all lines end at
 * the same step. Encoder and decoder share one embedding. E is H, or 2H if the encoder is bidirectional; decoder layers then start from
 * the final states of the encoder's forward direction.
 *
 * Decoding proceeds token by token, so the graph can be built in two parts; a session runs one of them, chosen by its outputs. */
#ifndef RM_MODELS_SEQ2SEQ_H
#define RM_MODELS_SEQ2SEQ_H

#include "train/models/model.h"

/* INVALID: the model cannot be an encoder. */
remat_status rm_seq2seq_check(const rm_model_spec *spec);

/* Logits (T,B,K) for the input (S,batch), with the fields begins, padding and previous.
 *
 * With spec->encoded, builds two parts: e and each layer's final states go there, in the order of the decoder's carried states. The
 * decoder reads e as an input "encoded" (S,batch,E), and runs in a stateful session. */
remat_value rm_seq2seq_logits(remat_graph *g, const rm_model_spec *spec, int64_t batch, remat_value x);

#endif
