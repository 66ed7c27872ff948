/* test_memory.c: the second promise. The planned peak is the arena's size and the measured high-water mark, to the
 * byte. Nothing is allocated after the first step. If an allocation fails, creating or stepping a session returns
 * MEMORY and leaks nothing (the sanitizers' leak check covers this test, too). */
#define _GNU_SOURCE
#include "tests/engine/interpose.h"

#include <string.h>

#include "engine/abi.h"
#include "engine/session/session.h"
#include "memory/arena.h"
#include "memory/host.h"
#include "tests/net.h"
#include "tests/suite.h"
#include "tests/zeros.h"

static const net nets[] = {
    {NET_LSTM, 2, 17, 8, 12, 100, 4, 0.1}, {NET_GRU, 1, 300, 8, 16, 331, 1, 0},   {NET_RNN, 3, 17, 8, 12, 64, 5, 0.3},
    {NET_LSTM, 1, 5, 3, 4, 1, 1, 0},       {NET_LSTM, 2, 256, 32, 64, 700, 2, 0},
};
enum { NETS = sizeof nets / sizeof *nets };

typedef struct {
    const char *strategy;
    int64_t segments, tile;
} choice;
static const choice choices[] = {
    {"none", 0, 0}, {"sqrt", 0, 8}, {"segments", 1, 8}, {"segments", 5, 8}, {"segments", 64, 1}};
enum { CHOICES = sizeof choices / sizeof *choices };

static remat_config configured(const choice *c) {
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = c->strategy;
    config.segments = c->segments;
    config.tile = c->tile;
    config.threads = 2;
    config.optimizer = "adam";
    config.clip_grad_norm = 1;
    return config;
}

/* The planned peak equals the used arena, whatever is resident, and the parts add up. */
START_TEST(planned_peak_is_the_measured_peak) {
    const net *n = &nets[_i / CHOICES];
    remat_config config = configured(&choices[_i % CHOICES]);
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    CHECKED(remat_session_create(g, net_build(g, n), &config, &s));
    remat_plan_summary plan = rm_plan_summary_of(s);
    ck_assert_uint_ge(plan.activations_peak_bytes, plan.activations_floor_bytes);
    ck_assert_uint_gt(plan.activations_floor_bytes, 0);
    uint64_t parts = plan.params_bytes + plan.gradients_bytes + plan.optimizer_bytes + plan.inputs_bytes +
                     plan.packed_bytes + plan.other_bytes + plan.activations_peak_bytes;
    ck_assert_uint_eq(parts, plan.planned_peak_bytes);
    for (int step = 0; step < 3; step++) {
        remat_step_result r;
        net_feed(s, n, step);
        CHECKED(remat_step(s, 0.01, &r));
        ck_assert_uint_eq(r.arena_peak_bytes, plan.planned_peak_bytes);
    }
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

/* Checks the bytes really written: paints the activations, runs a step, and finds the last changed byte in the last
 * buffer. A buffer ends with at most 63 bytes of padding, and not every kernel uses its whole scratch buffer. A guard
 * page follows the arena, so a write past the plan crashes. */
START_TEST(a_step_uses_the_whole_arena) {
    const net *n = &nets[_i / CHOICES];
    remat_config config = configured(&choices[_i % CHOICES]);
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    CHECKED(remat_graph_create(&g));
    CHECKED(remat_session_create(g, net_build(g, n), &config, &s));
    rm_arena *arena = (rm_arena *)s->runner.block; /* the cpu's type of a block */
    remat_plan_summary plan = rm_plan_summary_of(s);
    uint64_t resident = plan.planned_peak_bytes - plan.activations_peak_bytes, last = 0;
    ck_assert_uint_eq(rm_arena_bytes(arena), plan.planned_peak_bytes);
    for (int64_t i = 0; i < s->training.lifetimes.count; i++) {
        uint64_t begin = s->training.placement.offset[i];
        if (begin + s->training.lifetimes.item[i].bytes == s->training.placement.bytes && begin > last) last = begin;
    }
    rm_arena_paint(arena, resident);
    net_feed(s, n, 0);
    CHECKED(remat_step(s, 0.01, &r));
    ck_assert_uint_le(rm_arena_written_until(arena), plan.planned_peak_bytes);
    ck_assert_uint_gt(rm_arena_written_until(arena), resident + last);
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

/* Segments never need more activations than none; for long T, many segments need far less. */
START_TEST(segments_need_fewer_bytes) {
    const net *n = &nets[4];
    uint64_t bytes[CHOICES];
    for (int i = 0; i < CHOICES; i++) {
        remat_config config = configured(&choices[i]);
        config.tile = 8;
        config.plan_only = true;
        remat_graph *g;
        remat_session *s;
        CHECKED(remat_graph_create(&g));
        CHECKED(remat_session_create(g, net_build(g, n), &config, &s));
        bytes[i] = rm_plan_summary_of(s).activations_peak_bytes;
        remat_session_free(s);
        remat_graph_free(g);
    }
    for (int i = 1; i < CHOICES; i++) ck_assert_uint_le(bytes[i], bytes[0]);
    ck_assert_uint_lt(bytes[1] * 4, bytes[0]);
}
END_TEST

/* Steps 2..5 call no malloc, free or mmap, in any library. (Check's assertions allocate, so none is in between.) */
START_TEST(nothing_is_allocated_after_the_first_step) {
    const net *n = &nets[_i];
    remat_config config = configured(&choices[3]);
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    CHECKED(remat_graph_create(&g));
    CHECKED(remat_session_create(g, net_build(g, n), &config, &s));
    net_feed(s, n, 0);
    CHECKED(remat_step(s, 0.01, &r));
    remat_status status = REMAT_OK;
    interposed before = interposed_now();
    int64_t ours = rm_host_allocations();
    for (int step = 1; step < 5 && !status; step++) status = remat_step(s, 0.01, &r);
    interposed after = interposed_now();
    CHECKED(status);
    ck_assert_int_eq(after.calls - before.calls, 0);
    ck_assert_int_eq(after.outstanding - before.outstanding, 0);
    ck_assert_int_eq(rm_host_allocations() - ours, 0);
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

/* The interposer counts. */
START_TEST(allocations_are_counted) {
    interposed before = interposed_now();
    void *volatile block = malloc(100); /* volatile: so that the compiler keeps the pair */
    interposed between = interposed_now();
    free(block);
    interposed after = interposed_now();
#ifndef INTERPOSE_BLIND
    ck_assert_int_eq(between.outstanding - before.outstanding, 1);
    ck_assert_int_eq(after.outstanding - before.outstanding, 0);
    ck_assert_int_eq(after.calls - before.calls, 2);
#else
    (void)before, (void)between, (void)after;
#endif
    int64_t ours = rm_host_allocations();
    rm_free(rm_malloc(100));
    ck_assert_int_eq(rm_host_allocations() - ours, 1);
    rm_host_fail_at(1);
    ck_assert_ptr_null(rm_malloc(1));
    void *next = rm_malloc(1);
    ck_assert_ptr_nonnull(next);
    rm_free(next);
}
END_TEST

/* Graph, session, one step; the n-th allocation fails. Returns the first status other than OK. */
static remat_status attempt(const net *n, const choice *c, int64_t nth) {
    remat_config config = configured(c);
    remat_graph *g = NULL;
    remat_session *s = NULL;
    remat_step_result r;
    rm_host_fail_at(nth);
    remat_status status = remat_graph_create(&g);
    remat_value loss = REMAT_NONE;
    if (!status) loss = net_build(g, n);
    if (!status) status = remat_graph_check(g);
    if (!status) status = remat_session_create(g, loss, &config, &s);
    if (!status) status = write_zeros(s);
    if (!status) status = remat_step(s, 0.01, &r);
    rm_host_fail_at(0);
    if (status) ck_assert_msg(strlen(remat_last_error()) > 10, "allocation %ld: no message", (long)nth);
    remat_session_free(s);
    remat_graph_free(g);
    return status;
}

START_TEST(a_failing_allocation_is_reported) {
    const net *n = &nets[_i % 4];
    const choice *c = &choices[_i / 4 ? 3 : 0];
    CHECKED(attempt(n, c, 0));
    int64_t before = rm_host_allocations();
    CHECKED(attempt(n, c, 0));
    int64_t needed = rm_host_allocations() - before;
    ck_assert_int_gt(needed, 5);
    for (int64_t nth = 1; nth <= needed; nth++) {
        remat_status status = attempt(n, c, nth);
        ck_assert_msg(status == REMAT_MEMORY, "allocation %ld of %ld failed, the status was %d (%s)", (long)nth,
                      (long)needed, status, remat_last_error());
    }
    CHECKED(attempt(n, c, needed + 1));
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("budget");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, planned_peak_is_the_measured_peak, 0, NETS * CHOICES);
    tcase_add_loop_test(tcase, a_step_uses_the_whole_arena, 0, NETS * CHOICES);
    tcase_add_test(tcase, segments_need_fewer_bytes);
    tcase_add_test(tcase, allocations_are_counted);
    tcase_add_loop_test(tcase, nothing_is_allocated_after_the_first_step, 0, NETS);
    tcase_add_loop_test(tcase, a_failing_allocation_is_reported, 0, 8);
    return run_cases("memory", tcase);
}
