/* language_model.h: a graph for each test, a small language model in it, and shorthands to build and compare. */
#ifndef LANGUAGE_MODEL_H
#define LANGUAGE_MODEL_H

#include <check.h>

#include "engine/session/session.h"
#include "tests/says.h"

static remat_graph *graph;
static inline void set_up(void) { ck_assert_int_eq(remat_graph_create(&graph), REMAT_OK); }
static inline void tear_down(void) { remat_graph_free(graph); }
enum { T = 40, B = 2, V = 17, E = 3, H = 5 };

static inline remat_value sequence(const char *name, remat_dtype dtype, int64_t t, int64_t b, int64_t c) {
    return remat_input(graph, name, dtype, REMAT_SEQUENCE, c ? 3 : 2, (int64_t[]){t, b, c});
}

static inline remat_value matrix(const char *name, int64_t rows, int64_t columns) {
    return remat_param(graph, name, 2, (int64_t[]){rows, columns}, remat_init_uniform(0.3));
}

static inline void expect_mistake(const char *words) {
    ck_assert_int_eq(remat_graph_check(graph), REMAT_INVALID);
    ck_says_all(remat_last_error(), words);
}

/* ---- A language model ----------------------------------------------------------------------------------------- */

static inline remat_value language_model(void) {
    remat_value tokens = sequence("tokens", REMAT_I32, T, B, 0), targets = sequence("targets", REMAT_I32, T, B, 0);
    remat_value e = remat_embedding(graph, tokens, matrix("embedding.weight", V, E));
    remat_value h = remat_lstm(graph, e, matrix("w_ih", 4 * H, E), matrix("w_hh", 4 * H, H), REMAT_NONE, REMAT_NONE);
    return remat_softmax_cross_entropy(graph, remat_linear(graph, h, matrix("head", V, H), REMAT_NONE), targets);
}

static inline void expect_refused(remat_value loss, remat_config config, const char *words) {
    remat_session *s;
    ck_assert_int_ne(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    ck_says_all(remat_last_error(), words);
}

static inline void expect_invalid(remat_status status, const char *words) {
    ck_assert_int_eq(status, REMAT_INVALID);
    ck_says_all(remat_last_error(), words);
}

#endif
