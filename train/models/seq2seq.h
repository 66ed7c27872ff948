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
 * The input has lines from their ends to their beginnings, padded behind (dataset_pairs.c): rnn reads it in reversed time, so all
 * lines end where it does. Both sides share one embedding. E is H, or 2H where the encoder runs in both directions; a decoder's layer
 * then begins with the final states of the encoder's layer that reads forwards.
 *
 * For decoding, which goes on from token to token, the graph has the two as parts, and a session is of one of them, by its outputs. */
#ifndef RM_MODELS_SEQ2SEQ_H
#define RM_MODELS_SEQ2SEQ_H

#include "train/models/model.h"

/* INVALID: what cannot be an encoder. */
remat_status rm_seq2seq_check(const rm_model_spec *spec);

/* (T,B,K) of the input (S,batch), with the fields begins, padding and previous.
 *
 * With spec->encoded, in two parts: what the encoder makes is left there, e, then the final states of each layer, in the order of
 * the decoder's carried states; the decoder reads e as an input "encoded" (S,batch,E), and is for a stateful session. */
remat_value rm_seq2seq_logits(remat_graph *g, const rm_model_spec *spec, int64_t batch, remat_value x);

#endif
