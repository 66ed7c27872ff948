/* dead.c: adds the FREE steps to a plan that only says what runs. One pass from the last step to the first tracks, for
 * every object, whether a later step still needs its current contents. Main entry: rm_plan_free_dead. */
#include "memory/plan.h"

#include <string.h>

#include "memory/host.h"

/* The next use of an object. */
enum { NOTHING, NEEDED, FREED }; /* not read before it is made again; read by a later step; freed by the plan itself */

typedef struct {
    const rm_problem *problem;
    uint8_t *next[3]; /* by rm_object, by index */
    int32_t *last_adder;
    rm_plan out; /* built from its end */
    remat_status status;
} walk;

/* The object is alive at this step. If no later step needs it, it is freed after this step. */
static void free_if_dead(walk *w, rm_object object, int64_t i) {
    if (w->next[object][i] == NOTHING && !w->status) w->status = rm_plan_free_object(&w->out, object, i);
}

static void each_state(walk *w, const rm_lists *lists, int64_t s, void (*visit)(walk *, rm_object, int64_t)) {
    for (int64_t k = lists->start[s + 1] - 1; k >= lists->start[s]; k--) visit(w, RM_STATE, lists->item[k]);
}

static void each_made(walk *w, rm_object object, int64_t s, void (*visit)(walk *, rm_object, int64_t)) {
    for (int64_t i = w->problem->made[s + 1] - 1; i >= w->problem->made[s]; i--)
        if (object == RM_STATE || w->last_adder[i] >= 0) visit(w, object, i);
}

static void need(walk *w, rm_object object, int64_t i) { w->next[object][i] = NEEDED; }
static void make(walk *w, rm_object object, int64_t i) { w->next[object][i] = NOTHING; }

static void forward(walk *w, rm_step step) {
    if (step.option != RM_DROP) free_if_dead(w, RM_SAVED, step.index);
    each_made(w, RM_STATE, step.index, free_if_dead);
    each_state(w, &w->problem->reads, step.index, free_if_dead);
    if (step.option != RM_DROP) make(w, RM_SAVED, step.index);
    each_made(w, RM_STATE, step.index, make);
    each_state(w, &w->problem->reads, step.index, need);
}

/* A gradient is alive from the first stage that adds to it until the stage that made its state has read it. */
static void backward(walk *w, rm_step step) {
    each_made(w, RM_DSTATE, step.index, free_if_dead);
    each_state(w, &w->problem->keeps, step.index, free_if_dead);
    free_if_dead(w, RM_SAVED, step.index);
    each_state(w, &w->problem->keeps, step.index, need);
    need(w, RM_SAVED, step.index);
}

static void take(walk *w, rm_step step) {
    rm_object object = (rm_object)step.object;
    switch (step.verb) {
    case RM_RUN_FORWARD:
        forward(w, step);
        break;
    case RM_RUN_BACKWARD:
        backward(w, step);
        break;
    case RM_FREE:
        w->next[object][step.index] = FREED;
        break;
    case RM_SAVE:
        free_if_dead(w, object, step.index);
        need(w, object, step.index);
        break;
    case RM_LOAD:
        free_if_dead(w, object, step.index);
        make(w, object, step.index);
        break;
    }
    if (!w->status) w->status = rm_plan_add(&w->out, step);
}

static void turn_round(rm_plan *plan) {
    for (int64_t i = 0, k = plan->n_steps - 1; i < k; i++, k--) {
        rm_step step = plan->step[i];
        plan->step[i] = plan->step[k];
        plan->step[k] = step;
    }
}

remat_status rm_plan_free_dead(const rm_problem *problem, rm_plan *plan) {
    size_t states = (size_t)problem->n_states, stages = (size_t)problem->n_stages;
    walk w = {.problem = problem, .last_adder = rm_malloc(states * sizeof *w.last_adder)};
    uint8_t *next = rm_calloc(2 * states + stages, 1);
    if (w.last_adder && next) {
        w.next[RM_STATE] = next;
        w.next[RM_SAVED] = next + states;
        w.next[RM_DSTATE] = next + states + stages;
        rm_last_adders(problem, w.last_adder);
        for (int64_t i = plan->n_steps - 1; i >= 0 && !w.status; i--) take(&w, plan->step[i]);
        turn_round(&w.out);
    } else {
        w.status = rm_fail(REMAT_MEMORY, "out of host memory for a plan of %lld steps", (long long)plan->n_steps);
    }
    rm_free(w.last_adder);
    rm_free(next);
    rm_plan_free(w.status ? &w.out : plan);
    if (!w.status) *plan = w.out;
    return w.status;
}
