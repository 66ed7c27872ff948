/* plan_report.c: see plan_report.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/report/plan_report.h"
#include "memory/host.h"

/* ---- Stages --------------------------------------------------------------------------------------------------- */

/* Is the state that the run at step i reads from the stage before freed before anything else runs? */
static bool freed_at_once(const rm_problem *problem, const rm_plan *plan, int64_t i) {
    int32_t s = plan->step[i].index;
    for (i++; s > 0 && i < plan->n_steps; i++) {
        const rm_step *step = &plan->step[i];
        if (step->verb == RM_RUN_FORWARD || step->verb == RM_RUN_BACKWARD) return false;
        bool state = step->verb == RM_FREE && step->object == RM_STATE;
        if (state && step->index >= problem->made[s - 1] && step->index < problem->made[s]) return true;
    }
    return false;
}

static void note_run(const rm_problem *problem, const rm_plan *plan, int64_t i, rm_stage_report *f) {
    int8_t option = plan->step[i].option;
    if (f->forward_runs++ == 0) f->first = option;
    if (option != RM_DROP) f->kept = option;
    if (option == RM_DROP && !f->checkpoint) f->checkpoint = !freed_at_once(problem, plan, i);
}

/* The state of a stage is the one that the stage before it makes. */
static void note_spilled(const rm_problem *problem, int64_t state, rm_stage_report *reports) {
    int64_t next = rm_state_maker(problem, state) + 1;
    if (next < problem->n_stages) reports[next].state_spilled = true;
}

rm_stage_report *rm_session_stage_reports(const remat_session *s) {
    const rm_problem *problem = rm_session_problem(s);
    const rm_plan *plan = &rm_session_schedule(s)->plan;
    rm_stage_report *reports = rm_calloc((size_t)problem->n_stages, sizeof *reports);
    for (int64_t i = 0; reports && i < plan->n_steps; i++) {
        const rm_step *step = &plan->step[i];
        if (step->verb == RM_RUN_FORWARD) note_run(problem, plan, i, &reports[step->index]);
        if (step->verb == RM_SAVE && step->object == RM_SAVED) reports[step->index].spilled = true;
        if (step->verb == RM_SAVE && step->object == RM_STATE) note_spilled(problem, step->index, reports);
    }
    for (int64_t i = 0; reports && i < problem->n_stages; i++) {
        reports[i].saved_bytes = s->inference ? 0 : problem->stage[i].option[reports[i].kept].saved_bytes;
        reports[i].state_bytes = i > 0 ? rm_made_bytes(problem, i - 1) : 0;
        reports[i].checkpoint |= i > 0 && reports[i].first != RM_DROP && reports[i - 1].first == RM_DROP;
        reports[i].checkpoint &= reports[i].state_bytes > 0;
    }
    return reports;
}

/* ---- The peak ------------------------------------------------------------------------------------------------- */

static bool add_to_group(rm_peak *p, remat_live kind, int32_t index, uint64_t bytes) {
    int64_t i = 0;
    while (i < p->n_groups && (p->group[i].kind != kind || p->group[i].bytes != bytes)) i++;
    if (!rm_grow(&p->group, &p->capacity, i + 1, sizeof *p->group)) return false;
    rm_peak_group *g = &p->group[i];
    if (i == p->n_groups) p->n_groups++, *g = (rm_peak_group){(uint8_t)kind, 0, index, index, bytes};
    g->count++;
    if (index < g->first) g->first = index;
    if (index > g->last) g->last = index;
    return true;
}

static int larger_group(const void *a, const void *b) {
    const rm_peak_group *x = a, *y = b;
    uint64_t p = x->bytes * (uint64_t)x->count, q = y->bytes * (uint64_t)y->count;
    return p != q ? (p < q ? 1 : -1) : (int)x->kind - (int)y->kind;
}

/* For each piece the stage that makes it, or ~stage for the gradient of that stage's state. NULL: out of memory. */
static int32_t *find_makers(const rm_problem *problem) {
    int32_t *maker = rm_calloc((size_t)problem->n_pieces + 1, sizeof *maker);
    for (int64_t s = 0; maker && s < problem->n_stages; s++) {
        int64_t from = problem->made[s], to = problem->made[s + 1];
        for (int64_t k = problem->state[from]; k < problem->state[to]; k++) maker[k] = (int32_t)s;
        for (int64_t k = problem->dstate[from]; k < problem->dstate[to]; k++) maker[k] = ~(int32_t)s;
    }
    return maker;
}

bool rm_session_peak(const remat_session *s, rm_peak *p) {
    const rm_lifetimes *lives = &rm_session_schedule(s)->lifetimes;
    int64_t step = rm_session_schedule(s)->verdict.peak_step;
    int32_t *makers = find_makers(rm_session_problem(s));
    bool got = makers != NULL;
    *p = (rm_peak){0};
    for (int64_t i = 0; got && i < lives->count && lives->item[i].first <= step; i++) {
        const rm_lifetime *life = &lives->item[i];
        if (life->last < step) continue;
        int32_t stage = life->kind == RM_BUFFER_PIECE ? makers[life->index] : life->index;
        remat_live kind = life->kind == RM_BUFFER_SAVED     ? REMAT_LIVE_SAVED
                          : life->kind == RM_BUFFER_SCRATCH ? REMAT_LIVE_SCRATCH
                          : stage < 0                       ? REMAT_LIVE_GRADIENTS
                                                            : REMAT_LIVE_STATES;
        p->bytes[kind] += life->bytes;
        got = add_to_group(p, kind, stage < 0 ? ~stage : stage, life->bytes);
    }
    rm_free(makers);
    if (got && p->n_groups) qsort(p->group, (size_t)p->n_groups, sizeof *p->group, larger_group);
    if (!got) rm_peak_free(p);
    return got;
}

void rm_peak_free(rm_peak *p) {
    rm_free(p->group);
    *p = (rm_peak){0};
}

/* ---- Names ------------------------------------------------------------------------------------------------------ */

/* The name of a parameter that the node reads, or NULL. */
static const char *parameter_of(const remat_graph *graph, const rm_node *node) {
    for (int i = 0; i < node->op->n_in; i++)
        if (node->x[i] && graph->value[node->x[i]].origin == RM_VALUE_PARAM) return graph->value[node->x[i]].name;
    return NULL;
}

static const char *parameter_of_stage(const rm_chain *chain, int64_t stage) {
    const rm_sweep *sweep = rm_stage_sweep(chain, stage);
    const char *name = NULL;
    for (int32_t i = 0; !name && i < sweep->n_nodes + sweep->n_tail; i++)
        name = parameter_of(chain->graph, &chain->graph->node[chain->order[sweep->first_node + i]]);
    return name;
}

/* The name without its last part. */
static const char *layer_of(const char *name, char text[RM_LAYER_TEXT]) {
    const char *dot = name ? strrchr(name, '.') : NULL;
    *text = 0;
    if (name) snprintf(text, RM_LAYER_TEXT, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
    for (char *c = rm_printable(text); *c; c++)
        if (*c == '"' || *c == '\\') *c = '?'; /* the name goes into JSON */
    return text;
}

const char *rm_node_layer(const remat_session *s, const rm_node *node, char text[RM_LAYER_TEXT]) {
    return layer_of(parameter_of(s->graph, node), text);
}

const char *rm_session_layer(const remat_session *s, int64_t first, int64_t end, bool backwards,
                             char text[RM_LAYER_TEXT]) {
    const char *name = NULL;
    for (int64_t i = first; !name && !s->chain.timed && (backwards ? i >= end : i < end); i += backwards ? -1 : 1)
        name = parameter_of_stage(&s->chain, i);
    return layer_of(name, text);
}
