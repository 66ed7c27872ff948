/* test_rebuild.c: the recurrent cells rebuild from h exactly the aux that forward saved. For every shape of a
 * grid and every instruction set of this machine, it runs forward and rebuild, and compares the two aux bit for bit.
 * If they differ, the op's `rebuilds` must exclude the shape: then a lean stage saves its aux. No such shape is known.
 *
 *   ops_test_rebuild --table      prints the number of shapes tried, and those that differ or are excluded
 *
 * op_check.c finds other mistakes of rebuild; this test is about sizes: partial chunks of rows and partial blocks of
 * units and depth.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/cpu/kernels.h"
#include "ops/op.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

enum { VOCABULARY = 7 };
static bool print_table;

typedef struct {
    const remat_op *op;
    int64_t gates, batch, hidden, in, tau; /* in 0: folded */
    int threads;
    bool states, biases;
} shape;

/* ---- One shape ------------------------------------------------------------------------------------- */

/* Exactly of the requested size, so that a sanitizer detects access past the end. NULL for 0 bytes. */
static void *take(uint64_t bytes, int poison) {
    void *p = NULL;
    if (!bytes) return NULL;
    ck_assert_int_eq(posix_memalign(&p, RM_ALIGN, bytes), 0);
    memset(p, poison, bytes);
    return p;
}

/* Uniform in [-1, 1), a function of (salt, i). */
static float *draw(int64_t count, uint32_t salt) {
    float *x = take((uint64_t)count * sizeof *x, 0);
    for (int64_t i = 0; i < count; i++) {
        uint32_t u = ((uint32_t)i + 1) * 2654435761u ^ salt * 40503u;
        u ^= u >> 15, u *= 2246822519u, u ^= u >> 13;
        x[i] = (float)(u >> 8) * 0x1p-23f - 1;
    }
    return x;
}

static remat_tensor reals(int rank, int64_t a, int64_t b, int64_t c, bool given, uint32_t salt) {
    remat_tensor t = {.desc = rm_desc_make(REMAT_F32, rank, (int64_t[]){a, b, c})};
    if (given) t.data = draw(rm_desc_count(&t.desc), salt);
    return t;
}

static remat_tensor tokens(const shape *s) {
    remat_tensor t = {.desc = rm_desc_make(REMAT_I32, 2, (int64_t[]){s->tau, s->batch})};
    int32_t *token = t.data = take(rm_desc_bytes(&t.desc), 0);
    for (int64_t i = 0; i < s->tau * s->batch; i++) token[i] = (int32_t)(i * i % VOCABULARY);
    return t;
}

static remat_call make_call(const shape *s) {
    int64_t wide = s->gates * s->hidden;
    remat_call call = {.t_total = s->tau, .training = true, .threads = s->threads};
    call.x[0] = s->in ? reals(3, s->tau, s->batch, s->in, true, 1) : tokens(s);
    call.x[1] = s->in ? reals(2, wide, s->in, 1, true, 2) : reals(2, VOCABULARY, wide, 1, true, 2);
    call.x[2] = reals(2, wide, s->hidden, 1, true, 3);
    for (int i = 3; i < 5; i++) {
        call.x[i] = reals(1, wide, 1, 1, s->biases, (uint32_t)i + 1);
        if (!s->biases) call.x[i].desc.rank = -1;
    }
    call.y = reals(3, s->tau, s->batch, s->hidden, true, 6);
    for (int i = 0; i < s->op->n_state; i++) {
        call.state_in[i] = reals(2, s->batch, s->hidden, 1, s->states, (uint32_t)i + 7);
        call.state_out[i] = reals(2, s->batch, s->hidden, 1, true, 9);
    }
    return call;
}

static void free_call(remat_call *call) {
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) free(call->x[i].data);
    for (int i = 0; i < REMAT_MAX_STATES; i++) free(call->state_in[i].data), free(call->state_out[i].data);
    free(call->y.data);
}

static void run(remat_call *call, const remat_op *op, const remat_desc *x, remat_pass pass) {
    remat_cost cost = {0};
    op->cost(x, &call->y.desc, call->attr, pass, &cost);
    call->scratch = take(cost.scratch_bytes, 0xFF); /* NaN */
    rm_op_kernel(op, REMAT_ON_CPU, pass)(call);
    free(call->scratch);
}

/* Whether rebuild gives the aux of forward. */
static bool same_bits(const shape *s, bool *claimed) {
    remat_call call = make_call(s);
    remat_desc x[REMAT_MAX_INPUTS];
    for (int i = 0; i < REMAT_MAX_INPUTS; i++) x[i] = call.x[i].desc;
    *claimed = !s->op->rebuilds || s->op->rebuilds(x, NULL);
    uint64_t bytes = s->op->aux_bytes(x, NULL),
             packed_bytes = s->op->on[REMAT_ON_CPU].packed_bytes(x, NULL, s->threads);
    void *packed = take(packed_bytes, 0xFF), *kept = take(bytes, 0xFF), *rebuilt = take(bytes, 0xFF);
    s->op->on[REMAT_ON_CPU].pack(&call, packed);
    call.packed = packed;
    call.aux = kept;
    run(&call, s->op, x, REMAT_FORWARD);
    call.aux = rebuilt;
    for (int i = 0; i < REMAT_MAX_STATES; i++) free(call.state_out[i].data), call.state_out[i].data = NULL;
    run(&call, s->op, x, REMAT_REBUILD);
    bool same = !memcmp(kept, rebuilt, bytes);
    free(packed), free(kept), free(rebuilt);
    free_call(&call);
    return same;
}

/* ---- The grid --------------------------------------------------------------------------------------- */

static const int64_t batches[] = {1, 2, 3, 8, 16, 33}, hiddens[] = {1, 7, 16, 31, 64, 128, 200};
static const int64_t ins[] = {0, 5, 64}, taus[] = {1, 5, 64};
#define COUNT(a) ((int64_t)(sizeof(a) / sizeof *(a)))

static const struct {
    const char *name;
    int64_t gates;
} cells[] = {{"lstm", 4}, {"gru", 3}};

/* The i-th shape of one cell, the fastest index last; states and biases at random. False past the last one. */
static bool shape_at(int64_t i, const char *cell, int64_t gates, shape *out) {
    *out = (shape){.op = rm_op_find(cell), .gates = gates, .threads = (int)(i % 2) + 1};
    out->states = (uint32_t)i * 2654435761u >> 30 & 1, out->biases = (uint32_t)i * 2246822519u >> 30 & 1;
    i /= 2;
    out->tau = taus[i % COUNT(taus)], i /= COUNT(taus);
    out->in = ins[i % COUNT(ins)], i /= COUNT(ins);
    out->hidden = hiddens[i % COUNT(hiddens)], i /= COUNT(hiddens);
    if (i >= COUNT(batches)) return false;
    out->batch = batches[i];
    return true;
}

static const char *say(const shape *s) {
    static char text[160];
    snprintf(text, sizeof text, "| %s | %s | B %d H %d C %d%s tau %d, %d thread%s%s%s |", rm_cell_kernels_get()->isa,
             s->op->name, (int)s->batch, (int)s->hidden, (int)s->in, s->in ? "" : " (folded)", (int)s->tau, s->threads,
             s->threads > 1 ? "s" : "", s->states ? ", states" : "", s->biases ? ", biases" : "");
    return text;
}

/* The number of shapes of a cell that differ although `rebuilds` does not exclude them. */
static int64_t sweep(const char *cell, int64_t gates) {
    int64_t tried = 0, different = 0, excluded = 0, wrong = 0;
    shape s;
    for (int64_t i = 0; shape_at(i, cell, gates, &s); i += SANITIZED ? 5 : 1, tried++) {
        bool claimed, same = same_bits(&s, &claimed);
        different += !same, excluded += !claimed, wrong += claimed && !same;
        if ((print_table && !(same && claimed)) || (claimed && !same))
            printf("%s %s | %s |\n", say(&s), same ? "same" : "DIFFERENT", claimed ? "rebuilt" : "saved");
    }
    if (print_table)
        printf("| %s | %s | %d shapes tried | %d differ | %d excluded by `rebuilds` |\n", rm_cell_kernels_get()->isa,
               cell, (int)tried, (int)different, (int)excluded);
    fflush(stdout);
    return wrong;
}

START_TEST(rebuilt_aux_equals_saved_aux) {
    const rm_cell_kernels *kernels = rm_cell_kernels_list(_i);
    if (!kernels) {
        printf("instruction set %d: not on this machine\n", _i);
        return;
    }
    rm_cell_kernels_use(kernels);
    for (int64_t i = 0; i < COUNT(cells); i++)
        ck_assert_msg(sweep(cells[i].name, cells[i].gates) == 0,
                      "%s: shapes above are rebuilt with other bits, and `rebuilds` does not exclude them",
                      cells[i].name);
    rm_cell_kernels_use(NULL);
}
END_TEST

/* Ops with a new rebuild must be added to the table. */
START_TEST(every_op_with_rebuild_is_covered) {
    for (int i = 0; i < rm_n_ops; i++) {
        bool swept = false;
        for (int64_t k = 0; k < COUNT(cells); k++) swept |= !strcmp(cells[k].name, rm_ops[i]->name);
        ck_assert_msg(swept == (rm_ops[i]->on[REMAT_ON_CPU].rebuild != NULL), "%s", rm_ops[i]->name);
    }
}
END_TEST

int main(int argc, char **argv) {
    print_table = argc > 1 && !strcmp(argv[1], "--table");
    TCase *tests = tcase_create("rebuild");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, rebuilt_aux_equals_saved_aux, 0, RM_CELL_ISAS);
    tcase_add_test(tests, every_op_with_rebuild_is_covered);
    return run_cases("rebuild", tests);
}
