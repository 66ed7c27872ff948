/* test_ddp_faults.c: training on ranks that differ, die in a step, or fail. */
#include "dist/ddp/ddp_state.h"
#include "tests/dist/ddp_sessions.h"
#include "tests/suite.h"

/* ---- Ranks that disagree ----------------------------------------------------------------------------------------- */

static void another_shape(member *m, remat_config *config, bool odd) {
    config->ranks = rm_ddp_ranks(m->ddp);
    m->session = open_lstm(config, 2, T, odd ? H + 1 : H, false);
    char words[300];
    snprintf(words, sizeof words,
             "ranks 0 and %d disagree about the parameters (name, shape, type): 'lstm.weight_ih_l0 (20,3) f32' on "
             "rank 0, but 'lstm.weight_ih_l0 (24,3) f32' on rank %d",
             m->size - 1, m->size - 1);
    need_peer(rm_ddp_broadcast(m->ddp, m->session), words);
}

/* The first collective that differs is that of the first bucket that differs. */
static void another_cap(member *m, remat_config *config, bool odd) {
    remat_ranks table = *rm_ddp_ranks(m->ddp);
    if (odd) table.first_bucket_bytes = 500;
    config->ranks = &table;
    m->session = open_lstm(config, 2, T, H, false);
    need_ok(rm_ddp_broadcast(m->ddp, m->session));
    remat_step_result r;
    char words[100];
    write_rows(m->session, 0, T, 0, 2);
    snprintf(words, sizeof words, "ranks 0 and %d disagree about the count", m->size - 1);
    need_peer(remat_gradients(m->session, &r), words);
    need(strstr(remat_last_error(), "bucket 0, which begins with out."), "%s", remat_last_error());
    need(strstr(remat_last_error(), "all_reduce of"), "%s", remat_last_error());
}

/* Exchanges buckets 0 and 1, which have the same size. */
static remat_status reduce_swapped(void *context, const remat_bucket *bucket) {
    static remat_bucket held;
    const remat_ranks *inner = context;
    if (bucket->index == 0) return held = *bucket, REMAT_OK;
    TRY(inner->reduce(inner->context, bucket));
    return bucket->index == 1 ? inner->reduce(inner->context, &held) : REMAT_OK;
}

static remat_status wait_swapped(void *context, const remat_bucket *bucket) {
    const remat_ranks *inner = context;
    return inner->wait(inner->context, bucket);
}

static remat_status sum_swapped(void *context, double *values, int64_t n) {
    const remat_ranks *inner = context;
    return inner->sum(inner->context, values, n);
}

static void another_order(member *m, remat_config *config, bool odd) {
    remat_ranks table = *rm_ddp_ranks(m->ddp), inner = table;
    table.first_bucket_bytes = table.bucket_bytes = inner.first_bucket_bytes = inner.bucket_bytes =
        1; /* one array per bucket */
    table.context = &inner;
    table.reduce = reduce_swapped;
    table.wait = wait_swapped;
    table.sum = sum_swapped;
    table.agree = NULL;
    table.poll = NULL;
    table.map = NULL;
    table.unmap = NULL;
    config->ranks = odd ? &table : &inner;
    inner.agree = NULL;
    m->session = open_lstm(config, 2, T, H, false);
    need_ok(rm_ddp_broadcast(m->ddp, m->session));
    remat_step_result r;
    write_rows(m->session, 0, T, 0, 2);
    char words[100];
    snprintf(words, sizeof words, "ranks 0 and %d disagree about the ", m->size - 1);
    need_peer(remat_gradients(m->session, &r), words);
    need(strstr(remat_last_error(), "bucket 0, which begins with") &&
             strstr(remat_last_error(), "bucket 1, which begins with"),
         "%s", remat_last_error());
}

/* One rank stops after its first step. */
static void a_missing_step(member *m, remat_config *config, bool odd) {
    config->ranks = rm_ddp_ranks(m->ddp);
    config->optimizer = "sgd";
    m->session = open_lstm(config, 2, T, H, false);
    remat_step_result r;
    need_ok(rm_ddp_broadcast(m->ddp, m->session));
    write_rows(m->session, 0, T, 0, 2);
    need_ok(remat_step(m->session, 0.1, &r));
    if (odd) return;
    char words[100];
    snprintf(words, sizeof words, "rank %d on ", m->size - 1);
    remat_status status = REMAT_OK;
    for (int k = 0; k < 100 && !status; k++) status = remat_step(m->session, 0.1, &r);
    need_peer(status, words);
    need(strstr(remat_last_error(), "left the group") && strstr(remat_last_error(), "bucket 0, which begins with out."),
         "%s", remat_last_error());
}

/* Fails before the first step, on all ranks; the group remains usable. */
static void another_setting(member *m, remat_config *config, bool odd) {
    config->ranks = rm_ddp_ranks(m->ddp);
    config->optimizer = "sgd";
    config->momentum = odd ? 0.5 : 0.9;
    m->session = open_lstm(config, 2, T, H, false);
    char words[200];
    snprintf(words, sizeof words, "rank %d has momentum 0.5, but rank 0 has momentum 0.9; settings of the session",
             m->size - 1);
    need_peer(rm_ddp_broadcast(m->ddp, m->session), words);
    remat_session_free(m->session);
    config->momentum = 0.9;
    config->train_only = odd ? "lstm" : NULL;
    m->session = open_lstm(config, 2, T, H, false);
    snprintf(words, sizeof words, "rank %d has out.weight not trained, but rank 0 has nothing more", m->size - 1);
    need_peer(rm_ddp_broadcast(m->ddp, m->session), words);
    remat_session_free(m->session);
    config->train_only = NULL;
    config->deterministic_world = m->size != 3;
    m->session = open_lstm(config, 2, T, H, false);
    if (config->deterministic_world)
        need(rm_ddp_broadcast(m->ddp, m->session) == REMAT_INVALID &&
                 strstr(remat_last_error(), "deterministic_world is on for the session"),
             "%s", remat_last_error());
    else
        need_ok(rm_ddp_broadcast(m->ddp, m->session));
}

/* Fails in the step itself, on all ranks, without changing any rank's parameters. */
static void another_rate(member *m, remat_config *config, bool odd) {
    config->ranks = rm_ddp_ranks(m->ddp);
    config->optimizer = "adam";
    m->session = open_lstm(config, 2, T, H, false);
    remat_step_result r;
    char words[100];
    need_ok(rm_ddp_broadcast(m->ddp, m->session));
    write_rows(m->session, 0, T, 2 * m->rank, 2);
    need_ok(remat_step(m->session, 0.1, &r));
    need_ok(remat_gradients(m->session, &r));
    need_ok(remat_update(m->session, 0.1, &r));
    snprintf(words, sizeof words, "rank %d has learning rate 0.01 in update 3, rank 0 has 0.02", m->size - 1);
    need_peer(remat_step(m->session, odd ? 0.01 : 0.02, &r), words);
    need_same_kind(m, REMAT_PARAM, "parameters");
}

static void (*const oddities[])(member *, remat_config *, bool) = {another_shape,  another_cap,     another_order,
                                                                   a_missing_step, another_setting, another_rate};

static void with_an_odd_one(int rank, int size, rm_kv *store, void *context) {
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = 3;
    rm_ddp_config ddp = {.rows = 2};
    member m = join(rank, size, store, &ddp);
    oddities[*(int *)context](&m, &config, rank == size - 1);
    leave(&m);
}

START_TEST(disagreeing_rank_is_named_with_the_difference) {
    for (int size = 2; size <= 3; size++) run_ranks(size, with_an_odd_one, &_i);
}
END_TEST

/* ---- A rank that dies during a step ------------------------------------------------------------------------------ */

static remat_status die_at_bucket_2(void *context, const remat_bucket *bucket) {
    const remat_ranks *inner = context;
    const rm_ddp *ddp = inner->context;
    if (bucket->index == 2) {
        while (!rm_group_done(ddp->config.group, ddp->issued)) nap_ms(1); /* buckets 0 and 1 */
        raise(SIGKILL);
    }
    return inner->reduce(inner->context, bucket);
}

static void one_dies(int rank, int size, rm_kv *store, void *context) {
    remat_config config = REMAT_CONFIG_INIT;
    rm_ddp_config ddp = {.rows = 2, .first_bucket_bytes = 1, .bucket_bytes = 1};
    member m = join(rank, size, store, &ddp);
    remat_ranks inner = *rm_ddp_ranks(m.ddp), table = inner;
    (void)context;
    table.context = &inner;
    table.reduce = die_at_bucket_2;
    table.agree = NULL, table.map = NULL, table.unmap = NULL, table.poll = NULL;
    inner.agree = NULL;
    config.threads = 1;
    config.ranks = rank == size - 1 ? &table : &inner;
    m.session = open_lstm(&config, 2, T, H, false);
    remat_step_result r;
    char words[100];
    need_ok(rm_ddp_broadcast(m.ddp, m.session));
    write_rows(m.session, 0, T, 0, 2);
    snprintf(words, sizeof words, "rank %d on ", size - 1);
    need_peer(remat_gradients(m.session, &r), words);
    const char *said = remat_last_error();
    need(strstr(said, "signal 9 (Killed)") && strstr(said, "bucket 1, which begins with "), "%s", said);
    leave(&m);
}

START_TEST(dead_rank_is_named_with_its_last_bucket) {
    pid_t pid[MOST_RANKS];
    start_ranks(3, one_dies, NULL, pid);
    for (int r = 0; r < 3; r++) ck_assert_int_eq(end_of(pid[r]), r == 2 ? 128 + SIGKILL : 0);
}
END_TEST

/* ---- A rank whose step fails ------------------------------------------------------------------------------------- */

static remat_status fail_at_bucket_2(void *context, const remat_bucket *bucket) {
    counter *c = context;
    if (bucket->index == 2) return rm_fail(REMAT_IO, "the disk is full");
    return c->inner->reduce(c->inner->context, bucket);
}

/* The buckets that it has already issued are still running when its session and group are freed, since the other ranks
 * are late. */
static void one_fails(int rank, int size, rm_kv *store, void *context) {
    const char *wires = context;
    remat_config config = REMAT_CONFIG_INIT;
    rm_ddp_config ddp = {.rows = 2, .first_bucket_bytes = 1, .bucket_bytes = 1};
    if (*wires) ddp.compress = RM_COMPRESS_BF16;
    member m = join(rank, size, store, &ddp);
    counter c;
    remat_ranks table = counted(&c, rm_ddp_ranks(m.ddp));
    const bool odd = rank == size - 1;
    if (odd) table.reduce = fail_at_bucket_2;
    config.threads = 1;
    config.ranks = &table;
    m.session = open_lstm(&config, 2, T, 40, false);
    remat_step_result r;
    need_ok(rm_ddp_broadcast(m.ddp, m.session));
    write_rows(m.session, 0, T, 0, 2);
    if (!odd) nap_ms(300);
    double start = seconds();
    remat_status status = remat_gradients(m.session, &r);
    if (odd)
        need(status == REMAT_IO && strstr(remat_last_error(), "the disk is full"), "%s", remat_last_error());
    else
        need_peer(status, "step failed while gradients");
    leave(&m);
    need(seconds() - start < 10, "%.1f s until it was over", seconds() - start);
}

START_TEST(failed_step_fails_on_all_ranks) { run_ranks(3, one_fails, (void *)(_i ? "bf16" : "")); }
END_TEST

int main(void) {
    TCase *odd = tcase_create("odd");
    tcase_add_loop_test(odd, disagreeing_rank_is_named_with_the_difference, 0,
                        (int)(sizeof oddities / sizeof *oddities));
    tcase_add_test(odd, dead_rank_is_named_with_its_last_bucket);
    tcase_add_loop_test(odd, failed_step_fails_on_all_ranks, 0, 2);
    return run_cases("dist/ddp_faults", odd);
}
