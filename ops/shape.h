/* shape.h: helpers of op files for shapes: checks whose error names the op, costs of ops that only stream their
 * operands, and the loop size from which on a second thread pays off. Includes tile.h: the tile's position in time. All
 * static inline. */
#ifndef RM_SHAPE_H
#define RM_SHAPE_H

#include "ops/real.h"

#include "ops/op.h"
#include "ops/math/parallel.h"
#include "ops/tile.h"

/* Initialisers for samples. */
#define RM_SCALAR(type)                                                                                                \
    {                                                                                                                  \
        type, 0, { 1, 1, 1, 1, 1, 1, 1, 1 }                                                                            \
    }
#define RM_SHAPE1(type, a)                                                                                             \
    {                                                                                                                  \
        type, 1, { a, 1, 1, 1, 1, 1, 1, 1 }                                                                            \
    }
#define RM_SHAPE2(type, a, b)                                                                                          \
    {                                                                                                                  \
        type, 2, { a, b, 1, 1, 1, 1, 1, 1 }                                                                            \
    }
#define RM_SHAPE3(type, a, b, c)                                                                                       \
    {                                                                                                                  \
        type, 3, { a, b, c, 1, 1, 1, 1, 1 }                                                                            \
    }
#define RM_SHAPE4(type, a, b, c, d)                                                                                    \
    {                                                                                                                  \
        type, 4, { a, b, c, d, 1, 1, 1, 1 }                                                                            \
    }
#define RM_ABSENT                                                                                                      \
    {                                                                                                                  \
        RM_REAL, -1, { 1, 1, 1, 1, 1, 1, 1, 1 }                                                                        \
    }

/* Waking a second thread costs some microseconds, so loops over fewer elements stay on one thread. The choice depends
 * on the shape alone, and no result depends on the choice. */
enum { RM_PARALLEL_MIN = 1 << 16, RM_PARALLEL_MIN_HEAVY = 1 << 14 /* an exp or more per element */ };

/* ---- Checks: OK, or INVALID with an error message ------------------------------------------------- */

static inline remat_status rm_want_real(const char *op, const char *input, const remat_desc *x) {
    char text[REMAT_DESC_TEXT];
    REQUIRE(x->dtype == RM_REAL, INVALID, "%s: %s is %s; it must be real numbers of the graph's precision, not %s", op,
            input, rm_desc_text(x, text), x->dtype == REMAT_I32 ? "integers" : "another one");
    return REMAT_OK;
}

static inline remat_status rm_want_integer(const char *op, const char *input, const remat_desc *x) {
    char text[REMAT_DESC_TEXT];
    REQUIRE(x->dtype == REMAT_I32, INVALID, "%s: %s is %s; it must be integers (i32)", op, input,
            rm_desc_text(x, text));
    return REMAT_OK;
}

static inline remat_status rm_want_rank(const char *op, const char *input, const remat_desc *x, int least, int most) {
    char text[REMAT_DESC_TEXT];
    const bool fits = x->rank >= least && x->rank <= most;
    REQUIRE(fits || least < most, INVALID, "%s: %s is %s, of rank %d; it must have rank %d", op, input,
            rm_desc_text(x, text), x->rank, least);
    REQUIRE(fits, INVALID, "%s: %s is %s, of rank %d; it must have rank %d to %d", op, input, rm_desc_text(x, text),
            x->rank, least, most);
    return REMAT_OK;
}

static inline remat_status rm_want_same(const char *op, const char *a_is, const remat_desc *a, const char *b_is,
                                        const remat_desc *b) {
    char a_text[REMAT_DESC_TEXT], b_text[REMAT_DESC_TEXT];
    REQUIRE(rm_desc_equal(a, b), INVALID, "%s: %s is %s and %s is %s; they must have the same shape", op, a_is,
            rm_desc_text(a, a_text), b_is, rm_desc_text(b, b_text));
    return REMAT_OK;
}

/* A vector of `size` reals, such as a bias. */
static inline remat_status rm_want_vector(const char *op, const char *input, const remat_desc *x, int64_t size) {
    char text[REMAT_DESC_TEXT];
    REQUIRE(x->dtype == RM_REAL && x->rank == 1 && x->dim[0] == size, INVALID,
            "%s: %s is %s; it must be a real vector of %lld", op, input, rm_desc_text(x, text), (long long)size);
    return REMAT_OK;
}

/* Where rows of a sequence (T,B,..) start a new sequence. */
static inline remat_status rm_want_reset(const char *op, const remat_desc *reset, const remat_desc *x) {
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real(op, "reset", reset));
    REQUIRE(reset->rank == 2 && reset->dim[0] == x->dim[0] && reset->dim[1] == x->dim[1], INVALID,
            "%s: reset is %s; it must be (T,B) = (%lld,%lld)", op, rm_desc_text(reset, text), (long long)x->dim[0],
            (long long)x->dim[1]);
    return REMAT_OK;
}

/* ---- Costs ---------------------------------------------------------------------------------------- */

/* Every element of y costs `flops`; `streams` arrays of its shape (x, y, dy, dx) are read or written once. */
static inline remat_cost rm_cost_streaming(const remat_desc *y, double flops, double streams) {
    double n = (double)rm_desc_count(y);
    return (remat_cost){.flops = flops * n, .moved_bytes = streams * n * sizeof(real)};
}

#endif
