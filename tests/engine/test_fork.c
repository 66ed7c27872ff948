/* test_fork.c: processes that are forked from one that has computed on several threads. OpenMP's threads are not forked
 * with it, and gcc's OpenMP waits for them for ever. */
#include <check.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/remat.h"
#include "ops/math/parallel.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { B = 64, C = 64 };

static remat_session *create(int threads) {
    remat_graph *graph;
    remat_session *s;
    static float x[B * C];
    const int64_t dim[] = {B, C};
    for (int i = 0; i < B * C; i++) x[i] = (float)(i % 11) / 11;
    ck_assert_int_eq(remat_graph_create(&graph), REMAT_OK);
    remat_value in = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, dim);
    remat_value w = remat_param(graph, "w", 2, (int64_t[]){C, C}, remat_init_uniform(0.1));
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "sgd";
    config.threads = threads;
    remat_status status =
        remat_session_create(graph, remat_mse(graph, remat_linear(graph, in, w, REMAT_NONE), in), &config, &s);
    remat_graph_free(graph);
    if (status) return NULL;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, x, sizeof x), REMAT_OK);
    return s;
}

static bool refuses(remat_status status) {
    return status == REMAT_INVALID && says_all(remat_last_error(), "fork|threads|launch");
}

/* In the child: 0 if all is well. A hang ends by SIGALRM. */
static int child(remat_session *s) {
    remat_step_result result;
    alarm(280);
    if (!refuses(remat_update(s, 0.1, NULL)) || !refuses(remat_gradients(s, &result))) return 1;
    if (!refuses(remat_evaluate(s, &result)) || !refuses(remat_forward(s)) || !refuses(remat_step(s, 0.1, NULL)))
        return 2;
    if (create(2) || !says_all(remat_last_error(), "fork|threads")) return 3;
    remat_session *alone = create(1);
    return alone && !remat_step(alone, 0.1, &result) && result.loss > 0 ? 0 : 4;
}

static int fork_and_wait(int (*run)(remat_session *), remat_session *s) {
    int status;
    pid_t pid = fork();
    if (!pid) _exit(run(s));
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

START_TEST(child_of_several_threads_is_refused) {
    remat_session *s = create(2);
    remat_step_result result;
    rm_parallel_pretend(1); /* always use both threads */
    ck_assert_int_eq(remat_gradients(s, &result), REMAT_OK);
    ck_assert_int_eq(fork_and_wait(child, s), 0);
    ck_assert_int_eq(remat_update(s, 0.1, &result), REMAT_OK); /* the parent goes on */
    ck_assert_int_eq(remat_step(s, 0.1, &result), REMAT_OK);
    remat_session_free(s);
}
END_TEST

static int first_team(remat_session *s) {
    alarm(280);
    return remat_step(s, 0.1, NULL) != REMAT_OK;
}

START_TEST(child_of_one_thread_may_use_several) {
    remat_session *s = create(2);
    rm_parallel_pretend(1);
    ck_assert_int_eq(fork_and_wait(first_team, s), 0);
    remat_session_free(s);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("fork");
    tcase_add_test(tests, child_of_several_threads_is_refused);
    tcase_add_test(tests, child_of_one_thread_may_use_several);
    return run_cases("fork", tests);
}
