/* test_plans.c: random networks under random plans on the emulated device "cuda" (device.h). Every plan has the same
 * bits, and the results are near the CPU's. test_sessions.c trains the usual networks under the usual strategies. */
#ifdef HAVE_CUDA_HEADERS

#include <math.h>

#include "tests/cases.h"
#include "tests/cuda/device.h"
#include "tests/engine/random_net.h"
#include "tests/suite.h"

enum { STEPS = 3, PLANS = 3 };
#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

typedef struct {
    double number[2 * STEPS];
    float *gradient;
    size_t bytes;
} outcome;

static void read_gradients(remat_session *s, outcome *o) {
    for (int64_t i = 0; i < remat_count(s, REMAT_GRADIENT); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_GRADIENT, i, &info));
        o->gradient = realloc(o->gradient, o->bytes + info.bytes);
        CHECKED(remat_read(s, REMAT_GRADIENT, i, (char *)o->gradient + o->bytes, info.bytes));
        o->bytes += info.bytes;
    }
}

static outcome run(const net *n, remat_value loss, const remat_config *config, uint64_t seed) {
    outcome o = {.bytes = 0};
    remat_session *s;
    CHECKED(remat_session_create(n->graph, loss, config, &s));
    for (int step = 0; step < STEPS; step++) {
        remat_step_result r;
        fill_inputs(s, seed + (uint64_t)step);
        CHECKED(outside_gradients(s, &r));
        CHECKED(remat_update(s, 0.01, &r));
        o.number[2 * step] = r.loss, o.number[2 * step + 1] = r.grad_norm;
    }
    read_gradients(s, &o);
    remat_session_free(s);
    return o;
}

static char *plan_for(const net *n, remat_value loss, remat_config config) {
    remat_session *s;
    config.plan_only = true;
    CHECKED(remat_session_create(n->graph, loss, &config, &s));
    char *plan = random_plan(s);
    remat_session_free(s);
    return plan;
}

/* Relative to the largest gradient. Some of these networks are deep, and some have layer norms of nearly constant
 * rows. */
static void expect_near(const outcome *cpu, const outcome *cuda) {
    float largest = 0, worst = 0;
    for (int i = 0; i < 2 * STEPS; i++)
        ck_assert_msg(fabs(cpu->number[i] - cuda->number[i]) <= 1e-4 * fabs(cpu->number[i]) + 1e-7,
                      "number %d: %.9g, and %.9g on the CPU", i, cuda->number[i], cpu->number[i]);
    for (size_t i = 0; i < cpu->bytes / sizeof(float); i++) {
        float off = fabsf(cpu->gradient[i] - cuda->gradient[i]), size = fabsf(cpu->gradient[i]);
        largest = size > largest ? size : largest;
        worst = !(off <= worst) ? off : worst;
    }
    ck_assert_msg(worst <= 1e-3f * largest, "a gradient is off by %.3g; the largest is %.3g", (double)worst,
                  (double)largest);
}

START_TEST(random_plans_have_the_same_bits) {
    net n;
    outcome first = {.bytes = 0};
    remat_config config = REMAT_CONFIG_INIT;
    rng_state = (uint64_t)_i * 7919 + 11;
    bool timed = _i % 4 > 0;
    rm_emulated_clusters = _i % 3 == 2 ? 2 : 0; /* with clusters, more than 16 units use other kernels */
    random_net_wider = rm_emulated_clusters ? 16 : 0;
    remat_value loss = random_net_with(&n, timed, _i % 2 == 1);
    if (_i % 3 == 0) loss = differentiate_some(&n);
    ask_for_outputs(&config, &n);
    config.device = "cuda";
    config.threads = 1;
    config.tile = timed ? 1 + draw(4) : draw(3);
    config.seed = (uint64_t)_i;
    config.optimizer = "sgd";
    for (int k = 0; k < PLANS; k++) {
        uint64_t kept = rng_state;
        emulated_device_reset((uint64_t)k);
        rm_emulate_in((rm_emulated_order)((_i + k) % RM_ORDERS));
        config.plan_steps = NULL;
        char *plan = k ? plan_for(&n, loss, config) : NULL;
        config.plan_steps = plan;
        outcome o = run(&n, loss, &config, (uint64_t)_i + 99);
        ck_assert_msg(!fake_cuda_violation(), "%s", fake_cuda_violation());
        ck_assert_int_eq(fake_cuda_live(), 0);
        if (k)
            ck_assert_msg(!memcmp(first.number, o.number, sizeof o.number) && first.bytes == o.bytes &&
                              !memcmp(first.gradient, o.gradient, o.bytes),
                          "network %d: different bits under the plan\n%s", _i, plan);
        if (k)
            free(o.gradient);
        else
            first = o;
        free(plan);
        rng_state = kept * 3 + 1;
    }
    config.device = "cpu";
    config.plan_steps = NULL;
    outcome cpu = run(&n, loss, &config, (uint64_t)_i + 99);
    expect_near(&cpu, &first);
    free(cpu.gradient), free(first.gradient);
    remat_graph_free(n.graph);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("plans");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, random_plans_have_the_same_bits, 0, rm_cases(60, 18));
    return run_cases("plans", c);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
