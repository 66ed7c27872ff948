/* 05_give_a_budget.c: give a number of bytes and get the fastest plan that fits, or learn the smallest possible budget.
 *
 * It introduces `memory_budget`, the strategy "optimal", REMAT_INFEASIBLE and remat_smallest_budget. The device "null"
 * computes nothing, so planning takes milliseconds, even for a network that this machine could not train without
 * recomputation.
 */
#include "common.h"

enum { TIMESTEPS = 100000, BATCH = 8, FEATURES = 16, HIDDEN = 256 };

static remat_value network(remat_graph *g) {
    remat_init small = remat_init_uniform(0.06);
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){TIMESTEPS, BATCH, FEATURES});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){BATCH, HIDDEN});
    remat_value w_ih = remat_param(g, "w_ih", 2, (int64_t[]){4 * HIDDEN, FEATURES}, small);
    remat_value w_hh = remat_param(g, "w_hh", 2, (int64_t[]){4 * HIDDEN, HIDDEN}, small);
    remat_value h = remat_lstm(g, x, w_ih, w_hh, REMAT_NONE, REMAT_NONE);
    return remat_mse(g, remat_last_step(g, h), target);
}

/* Prints one line of the table. The session is freed at once: all of this happens before training would start. */
static void ask(const remat_graph *g, remat_value loss, const char *name, uint64_t budget) {
    remat_config config = REMAT_CONFIG_INIT;
    config.device = "null";
    config.optimizer = "adam";
    config.strategy = "optimal";
    config.memory_budget = budget;
    remat_session *s = NULL;
    remat_status status = remat_session_create(g, loss, &config, &s);
    if (status == REMAT_INFEASIBLE) {
        printf("%-22s does not fit\n", name);
        return;
    }
    check(status);
    remat_plan_summary plan;
    check(remat_session_plan(s, &plan));
    printf("%-22s fits%s%s\n", name, plan.recompute_factor > 1 ? ", and recomputes" : ", and recomputes nothing",
           plan.budgeted_bytes <= budget ? "" : " (but not in the budget!)");
    remat_session_free(s);
}

int main(void) {
    remat_graph *g;
    check(remat_graph_create(&g));
    remat_value loss = network(g);
    check(remat_graph_check(g));
    ask(g, loss, "8 GiB", (uint64_t)8 << 30);
    ask(g, loss, "256 MiB", (uint64_t)256 << 20);
    ask(g, loss, "16 MiB", (uint64_t)16 << 20);
    uint64_t least = remat_smallest_budget(); /* after an INFEASIBLE */
    ask(g, loss, "the least", least);
    ask(g, loss, "the least but a byte", least - 1);
    remat_graph_free(g);
    return 0;
}

/* Expected output:
8 GiB                  fits, and recomputes nothing
256 MiB                fits, and recomputes
16 MiB                 does not fit
the least              fits, and recomputes
the least but a byte   does not fit
*/
