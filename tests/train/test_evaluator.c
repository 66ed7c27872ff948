/* test_evaluator.c: the mean loss over a data set counts each sample once, and has the same bits for any number of
 * ranks. */
#include "train/run/evaluator.h"
#include "train/run/setup.h"

#include "tests/train/train_test.h"

#include <math.h>
#include <pthread.h>

enum { MOST = 7 };

/* ---- Ranks that sum: threads ---- */

static struct {
    pthread_barrier_t barrier;
    pthread_mutex_t lock;
    double sum[4096];
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER};

static remat_status sum(void *context, double *values, int64_t count) {
    const remat_ranks *ranks = context;
    pthread_mutex_lock(&meeting.lock);
    for (int64_t i = 0; i < count; i++) meeting.sum[i] += values[i];
    pthread_mutex_unlock(&meeting.lock);
    pthread_barrier_wait(&meeting.barrier);
    memcpy(values, meeting.sum, (size_t)count * sizeof *values);
    pthread_barrier_wait(&meeting.barrier);
    if (ranks->rank == 0) memset(meeting.sum, 0, sizeof meeting.sum);
    pthread_barrier_wait(&meeting.barrier);
    return REMAT_OK;
}

/* ---- A data set that counts reads ---- */

static _Atomic int asked[4096];
static const rm_data_kind *kind;
static rm_data_kind counting;
static remat_status count_and_fill(rm_dataset *d, int64_t index, int64_t column, int64_t batch, void *x, void *y) {
    asked[index]++;
    return kind->fill(d, index, column, batch, x, y);
}

typedef struct {
    rm_options options;
    rm_dataset *dataset;
    rm_evaluator evaluator;
    remat_ranks ranks;
    rm_eval_event event;
    remat_status status;
} member;

static void open_member(member *m, const char *flags, int64_t batch, int rank, int size) {
    char copy[512], *argv[20];
    int argc = 0;
    rm_model_spec spec;
    strcpy(copy, flags);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    ck_ok(rm_options_parse(&m->options, RM_TRAIN, argc, argv));
    ck_ok(rm_setup_dataset(&m->options, &m->dataset));
    kind = m->dataset->kind;
    counting = *kind;
    counting.fill = count_and_fill;
    m->dataset->kind = &counting;
    ck_ok(rm_setup_spec(&m->options, m->dataset, &spec));
    ck_ok(rm_evaluator_create(&m->options, &spec, m->dataset, batch, false, &m->evaluator));
    m->ranks = (remat_ranks){
        .struct_bytes = sizeof(remat_ranks), .context = &m->ranks, .rank = rank, .size = size, .sum = sum};
    m->evaluator.ranks = &m->ranks;
}

static void close_member(member *m) {
    rm_evaluator_free(&m->evaluator);
    rm_dataset_close(m->dataset);
    rm_options_free(&m->options);
}

static void *run(void *context) {
    member *m = context;
    m->status = rm_evaluator_run(&m->evaluator, rm_evaluator_session(&m->evaluator), &m->event);
    return NULL;
}

/* The result of `size` ranks, the same on all. */
static rm_eval_event evaluate(const char *flags, int64_t batch, int size, int64_t samples) {
    member m[MOST];
    pthread_t thread[MOST];
    memset(asked, 0, sizeof asked);
    memset(m, 0, sizeof m);
    for (int r = 0; r < size; r++) open_member(&m[r], flags, batch, r, size);
    pthread_barrier_init(&meeting.barrier, NULL, (unsigned)size);
    for (int r = 1; r < size; r++) ck_assert_int_eq(pthread_create(&thread[r], NULL, run, &m[r]), 0);
    run(&m[0]);
    for (int r = 1; r < size; r++) pthread_join(thread[r], NULL);
    pthread_barrier_destroy(&meeting.barrier);
    for (int64_t i = 0; i < samples; i++) ck_assert_int_eq(asked[i], 1);
    for (int r = 0; r < size; r++) {
        ck_assert_int_eq(m[r].status, REMAT_OK);
        ck_assert(!memcmp(m[r].event.score, m[0].event.score, sizeof m[0].event.score));
        ck_assert_int_eq(m[r].event.samples, samples);
        close_member(&m[r]);
    }
    return m[0].event;
}

static void same_for_any_ranks(const char *flags, int64_t batch, int64_t samples) {
    rm_eval_event alone = evaluate(flags, batch, 1, samples);
    ck_assert(alone.score[RM_LOSS] > 0.1 && alone.score[RM_LOSS] < 10);
    for (int size = 2; size <= MOST; size++) {
        rm_eval_event shared = evaluate(flags, batch, size, samples);
        ck_assert_msg(!memcmp(&shared.score[RM_LOSS], &alone.score[RM_LOSS], sizeof alone.score[RM_LOSS]),
                      "%d ranks: %.17g, one: %.17g", size, shared.score[RM_LOSS], alone.score[RM_LOSS]);
        ck_assert(!memcmp(shared.score, alone.score, sizeof alone.score));
    }
}

#define COPY "--task=copy --seq-len=21 --hidden=5 --layers=1 --threads=1 "

START_TEST(evaluation_bits_do_not_depend_on_ranks) {
    same_for_any_ranks(COPY "--samples=37", 5, 37); /* the last batch is short */
    same_for_any_ranks(COPY "--samples=40", 5, 40);
    same_for_any_ranks(COPY "--samples=3", 5, 3); /* fewer than a batch, and than ranks */
}
END_TEST

/* More batches than are summed at a time. */
START_TEST(many_batches_are_summed) {
    rm_eval_event one = evaluate(COPY "--samples=2051", 1, 1, 2051),
                  three = evaluate(COPY "--samples=2051", 1, 3, 2051);
    ck_assert(!memcmp(&one.score[RM_LOSS], &three.score[RM_LOSS], sizeof one.score[RM_LOSS]));
    rm_eval_event tens =
        evaluate(COPY "--samples=2051", 10, 2, 2051); /* other batches: the same mean, different last bits */
    ck_assert(fabs(tens.score[RM_LOSS] - one.score[RM_LOSS]) < 1e-6);
}
END_TEST

START_TEST(accuracy_counts_each_sample_once) {
    enum { N = 23, SIDE = 3 };
    uint8_t images[16 + N * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    uint8_t labels[8 + N] = {0, 0, 8, 1, 0, 0, 0, N};
    char flags[600];
    for (int i = 0; i < N * SIDE * SIDE; i++) images[16 + i] = (uint8_t)(i * 37);
    for (int i = 0; i < N; i++) labels[8 + i] = (uint8_t)(i % 2);
    snprintf(flags, sizeof flags, "--task=classify --data=%s --labels=%s --hidden=4 --layers=1 --threads=1 --batch=4",
             make_file("images", images, sizeof images), make_file("labels", labels, sizeof labels));
    same_for_any_ranks(flags, 0, N);
    rm_eval_event event = evaluate(flags, 0, 3, N);
    double right = event.score[RM_ACCURACY] * N;
    ck_assert(event.score[RM_ACCURACY] > 0 && event.score[RM_ACCURACY] < 1 && fabs(right - round(right)) < 1e-9);
}
END_TEST

/* Zero weights predict class 0 everywhere. */
START_TEST(s5_counts_every_timestep) {
    enum { N = 23, T = 40 };
    static const float zeros[4 * 5 * 120];
    int32_t x[T], y[T], none = 0;
    member m = {0};
    open_member(&m, "--task=s5 --seq-len=40 --samples=23 --hidden=5 --layers=1 --threads=1 --batch=4", 0, 0, 1);
    pthread_barrier_init(&meeting.barrier, NULL, 1);
    remat_session *session = rm_evaluator_session(&m.evaluator);
    for (int64_t i = 0; i < remat_count(session, REMAT_PARAM); i++) {
        remat_array array = {0};
        ck_ok(remat_array_info(session, REMAT_PARAM, i, &array));
        ck_assert(array.bytes <= sizeof zeros);
        ck_ok(remat_write(session, REMAT_PARAM, i, zeros, array.bytes));
    }
    run(&m);
    ck_ok(m.status);
    for (int64_t i = 0; i < N; i++) {
        ck_ok(kind->fill(m.dataset, i, 0, 1, x, y));
        for (int t = 0; t < T; t++) none += y[t] == 0;
    }
    ck_assert_int_gt(none, 0);
    ck_assert_msg(fabs(m.event.score[RM_ACCURACY] - (double)none / (N * T)) < 1e-12, "%g, not %d of %d",
                  m.event.score[RM_ACCURACY], none, N * T);
    ck_assert_double_eq_tol(m.event.score[RM_LOSS], log(120), 1e-6);
    pthread_barrier_destroy(&meeting.barrier);
    close_member(&m);
    same_for_any_ranks("--task=s5 --seq-len=9 --hidden=5 --layers=1 --threads=1 --samples=37", 5, 37);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("evaluator");
    tcase_add_test(tests, evaluation_bits_do_not_depend_on_ranks);
    tcase_add_test(tests, many_batches_are_summed);
    tcase_add_test(tests, accuracy_counts_each_sample_once);
    tcase_add_test(tests, s5_counts_every_timestep);
    return run_suite("train/evaluator", tests);
}
