/* ddp_sessions.h: a rank's group, DDP and session, for the tests of training on ranks that are processes. */
#ifndef DDP_SESSIONS_H
#define DDP_SESSIONS_H

#include "dist/ddp/ddp.h"

#include "tests/dist/ranks.h"

/* ---- A rank's group, ddp and session ----------------------------------------------------------------------------- */

typedef struct {
    int rank, size;
    rm_group *group;
    rm_ddp *ddp;
    remat_session *session;
} member;

static inline member join(int rank, int size, rm_kv *store, rm_ddp_config *config) {
    static rm_ddp *ddp; /* where tag_name finds it */
    member m = {.rank = rank, .size = size};
    rm_group_config group = {.engine = "local", .rank = rank, .size = size, .store = store, .timeout_ms = 60000};
    group.tag_name = rm_ddp_tag_name;
    group.context = &ddp;
    need_ok(rm_group_open(&group, &m.group));
    if (!config) return m;
    config->group = m.group;
    need_ok(rm_ddp_open(config, &ddp));
    m.ddp = ddp;
    return m;
}

static inline void leave(member *m) {
    remat_session_free(m->session);
    rm_ddp_close(m->ddp);
    rm_group_close(m->group);
}

/* All arrays of a kind, concatenated; freed by the caller. */
static inline float *read_all(remat_session *s, remat_kind kind, int64_t *count) {
    float *all = NULL;
    remat_array info;
    *count = 0;
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        need_ok(remat_array_info(s, kind, i, &info));
        all = realloc(all, (size_t)(*count + info.count + 1) * sizeof *all);
        need(all, "no memory");
        need_ok(remat_read(s, kind, i, all + *count, info.bytes));
        *count += info.count;
    }
    return all;
}

/* The `count` floats of every rank, in order of ranks; freed by the caller. */
static inline float *gather_all(rm_group *group, const float *mine, int64_t count) {
    float *all = malloc((size_t)(count * rm_group_size(group) + 1) * sizeof *all);
    need(all, "no memory");
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_ALL_GATHER, .count = count, .in = mine, .out = all}));
    return all;
}

static inline void need_same(rm_group *group, const float *mine, int64_t count, const char *what) {
    float *all = gather_all(group, mine, count);
    for (int r = 1; r < rm_group_size(group); r++)
        need(!memcmp(all, all + r * count, (size_t)count * sizeof *all), "%s of rank %d have other bits", what, r);
    free(all);
}

static inline void need_same_kind(const member *m, remat_kind kind, const char *what) {
    int64_t count;
    float *mine = read_all(m->session, kind, &count);
    need_same(m->group, mine, count, what);
    free(mine);
}

/* ---- Many ranks give the result of one rank ---------------------------------------------------------------------- */

enum { T = 12, C = 3, H = 5, OUT = 2 };

static inline remat_value lstm_net(remat_graph *g, int64_t batch, int64_t steps, int64_t hidden, bool dropout) {
    remat_init init = remat_init_uniform(0.4);
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){steps, batch, C});
    for (int layer = 0; layer < 2; layer++) {
        char name[4][32];
        static const char *const parts[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
        for (int k = 0; k < 4; k++) snprintf(name[k], sizeof name[k], "lstm.%s_l%d", parts[k], layer);
        remat_value w = remat_param(g, name[0], 2, (int64_t[]){4 * hidden, layer ? hidden : C}, init);
        remat_value u = remat_param(g, name[1], 2, (int64_t[]){4 * hidden, hidden}, init);
        remat_value b = remat_param(g, name[2], 1, (int64_t[]){4 * hidden}, init);
        remat_value c = remat_param(g, name[3], 1, (int64_t[]){4 * hidden}, init);
        x = remat_lstm(g, x, w, u, b, c);
        if (dropout) x = remat_dropout(g, x, 0.3);
    }
    remat_value w = remat_param(g, "out.weight", 2, (int64_t[]){OUT, hidden}, init);
    remat_value b = remat_param(g, "out.bias", 1, (int64_t[]){OUT}, init);
    remat_value y = remat_linear(g, x, w, b);
    return remat_mse(g, y, remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){steps, batch, OUT}));
}

static inline remat_session *open_lstm(const remat_config *config, int64_t batch, int64_t steps, int64_t hidden,
                                       bool dropout) {
    remat_graph *g;
    remat_session *s;
    need_ok(remat_graph_create(&g));
    remat_value loss = lstm_net(g, batch, steps, hidden, dropout);
    need_ok(remat_session_create(g, loss, config, &s));
    remat_graph_free(g);
    return s;
}

/* Rows first .. first + batch of the step's global batch: each number is a function of step, time, row and channel. */
static inline void write_rows(remat_session *s, int step, int64_t steps, int64_t first, int64_t batch) {
    for (int input = 0; input < 2; input++) {
        const int64_t width = input ? OUT : C;
        float *data = malloc((size_t)(steps * batch * width) * sizeof *data);
        need(data, "no memory");
        for (int64_t i = 0; i < steps * batch * width; i++) {
            int64_t c = i % width, row = first + i / width % batch, t = i / width / batch;
            uint64_t state = (uint64_t)(((input * 100 + step) * 1000 + t) * 1000 + row) * 10 + (uint64_t)c;
            data[i] = (float)(next_random(&state) % 2001) / 1000 - 1;
        }
        need_ok(remat_write(s, REMAT_INPUT, input, data, (uint64_t)(steps * batch * width) * sizeof *data));
        free(data);
    }
}

/* ---- Every strategy ---------------------------------------------------------------------------------------------- */

/* The table of a ddp, which counts the calls of reduce for each bucket. */
typedef struct {
    const remat_ranks *inner;
    int reduced[64];
} counter;

static inline remat_status count_reduce(void *context, const remat_bucket *bucket) {
    counter *c = context;
    c->reduced[bucket->index]++;
    return c->inner->reduce(c->inner->context, bucket);
}

#define PASS_ON(name, arguments, ...)                                                                                  \
    static remat_status pass_##name(void *context, __VA_ARGS__) {                                                      \
        counter *c = context;                                                                                          \
        return c->inner->name(c->inner->context, arguments);                                                           \
    }

#define TWO(a, b) a, b

PASS_ON(wait, bucket, const remat_bucket *bucket)
PASS_ON(sum, TWO(values, n), double *values, int64_t n)
PASS_ON(map, TWO(address, bytes), void *address, uint64_t bytes)
PASS_ON(prepare, bucket, const remat_bucket *bucket)
static inline void pass_unmap(void *context, void *address) {
    ((counter *)context)->inner->unmap(((counter *)context)->inner->context, address);
}

static inline remat_ranks counted(counter *c, const remat_ranks *inner) {
    remat_ranks table = *inner;
    *c = (counter){.inner = inner};
    table.context = c;
    table.agree = NULL;
    table.poll = NULL;
    table.reduce = count_reduce;
    table.wait = pass_wait;
    table.sum = pass_sum;
    table.map = pass_map;
    table.unmap = pass_unmap;
    if (inner->prepare) table.prepare = pass_prepare;
    return table;
}

#endif
