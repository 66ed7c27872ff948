/* remat.h: the public interface of Remat. A program describes a network and reads the plan of its training step, which
 * states how many bytes the step takes. Then it runs the step.
 *
 *     remat_graph *g;                                   // 1. describe
 *     remat_graph_create(&g);
 *     remat_value tokens  = remat_input(g, "tokens",  REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
 *     remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
 *     remat_value e = remat_embedding(g, tokens, remat_param(g, "embedding.weight", 2, (int64_t[]){256, E},
 *                                                            remat_init_normal(1.0)));
 *     remat_value h = remat_lstm(g, e, w_ih, w_hh, b_ih, b_hh);
 *     remat_value loss = remat_softmax_cross_entropy(g, remat_linear(g, h, w, b), targets);
 *
 *     remat_config config = REMAT_CONFIG_INIT;          // 2. plan
 *     config.strategy = "segments"; config.segments = 32;
 *     remat_session *s;
 *     if (remat_session_create(g, loss, &config, &s)) die(remat_last_error());
 *
 *     remat_write(s, REMAT_INPUT, 0, my_tokens, bytes);  // 3. run
 *     remat_write(s, REMAT_INPUT, 1, my_targets, bytes);
 *     remat_step_result r;
 *     remat_step(s, 1e-3, &r);                          // forward, backward, clip, update
 *
 *   remat/graph.h     errors, values, inputs and parameters        remat/ranks.h     data-parallel training
 *   remat/layers.h    layers and losses                            remat/report.h    plans, bytes and times to read
 *   remat/session.h   the plan and the training step               remat_op.h        ops of your own
 *   remat/observe.h   events, and timelines of them
 *
 * Ownership  What you _create you _free; _free(NULL) is allowed. Values belong to their graph. Configs and strings are
 *            copied. A const pointer that is returned is borrowed and valid until its owner is freed.
 * NULL       A parameter marked REMAT_OPTIONAL may be NULL, or REMAT_NONE if it is a value. No other pointer may be
 *            NULL: a function that returns a status then returns INVALID and names the argument. Every other function
 *            does nothing and returns 0, false, NULL or REMAT_NONE, or -1 if it returns an index.
 * Errors     A function that can fail returns a remat_status; remat_last_error() returns the message, with numbers.
 *            The library never exits, never prints, and opens only files that it is told to.
 * Threads    Use an object from one thread at a time. The error message is per thread. A session computes on its own
 *            OpenMP threads (remat_config.threads).
 * Forks      A child of fork lacks the threads of its parent. If the parent has computed on several threads, sessions
 *            of several threads return INVALID in the child. Sessions with threads = 1 work.
 * Shapes     Row-major, written (T,B,C): timesteps, batch, features; innermost last. Names contain units.
 * Structs    A struct that you fill starts with struct_bytes: set it to the struct's sizeof. A struct that the library
 *            fills never changes its size. A compiled program runs with every later libremat.so.0: docs/promises.md.
 * C++        The headers are C and C++. C++ has no (int64_t[]){T, B} and no &(remat_job_config){..}: use variables.
 * Bits       Loss, gradients and parameters are bit-identical for every strategy and number of segments on one
 *            device with one number of threads and one tile: docs/promises.md.
 */
#ifndef REMAT_H
#define REMAT_H

#include "remat/graph.h"
#include "remat/layers.h"
#include "remat/observe.h"
#include "remat/ranks.h"
#include "remat/report.h"
#include "remat/session.h"

#endif
