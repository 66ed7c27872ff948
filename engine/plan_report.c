/* plan_report.c: see plan_report.h. */
#include <stdlib.h>

#include "engine/plan_report.h"
#include "memory/host.h"

/* ---- Stages --------------------------------------------------------------------------------------------------- */

/* Whether state(s), which the run at step i reads, is freed before anything else runs. */
static bool freed_at_once(const rm_plan *plan, int64_t i) {
    int32_t s = plan->step[i].index;
    for (i++; i < plan->n_steps; i++) {
        const rm_step *step = &plan->step[i];
        if (step->verb == RM_RUN_FORWARD || step->verb == RM_RUN_BACKWARD) return false;
        if (step->verb == RM_FREE && step->object == RM_STATE && step->index == s) return true;
    }
    return false;
}

static void note_run(const rm_plan *plan, int64_t i, rm_stage_report *f) {
    int8_t option = plan->step[i].option;
    if (f->forward_runs++ == 0) f->first = option;
    if (option != RM_DROP) f->kept = option;
    if (option == RM_DROP && !f->checkpoint) f->checkpoint = !freed_at_once(plan, i);
}

rm_stage_report *rm_session_stage_reports(const remat_session *s) {
    const rm_problem *problem = rm_session_problem(s);
    const rm_plan *plan = &rm_session_schedule(s)->plan;
    rm_stage_report *reports = rm_calloc((size_t)problem->n_stages, sizeof *reports);
    for (int64_t i = 0; reports && i < plan->n_steps; i++) {
        const rm_step *step = &plan->step[i];
        if (step->index >= problem->n_stages) continue; /* the last cut */
        rm_stage_report *f = &reports[step->index];
        if (step->verb == RM_RUN_FORWARD) note_run(plan, i, f);
        if (step->verb == RM_SAVE && step->object == RM_SAVED) f->spilled = true;
        if (step->verb == RM_SAVE && step->object == RM_STATE) f->state_spilled = true;
    }
    for (int64_t i = 0; reports && i < problem->n_stages; i++) {
        reports[i].saved_bytes = s->inference ? 0 : problem->stage[i].option[reports[i].kept].saved_bytes;
        reports[i].state_bytes = rm_list_bytes(problem, &problem->state, i);
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

/* The first cut whose list has the piece, for each piece; NULL: out of memory. Gradients: ~cut. */
static int32_t *find_cuts(const rm_problem *problem) {
    int32_t *cut = rm_calloc((size_t)problem->n_pieces + 1, sizeof *cut);
    for (int64_t c = problem->n_stages; cut && c >= 0; c--) {
        for (int64_t k = problem->state.start[c]; k < problem->state.start[c + 1]; k++)
            cut[problem->state.item[k]] = (int32_t)c;
        for (int64_t k = problem->dstate.start[c]; k < problem->dstate.start[c + 1]; k++)
            cut[problem->dstate.item[k]] = ~(int32_t)c;
    }
    return cut;
}

bool rm_session_peak(const remat_session *s, rm_peak *p) {
    const rm_lifetimes *lives = &rm_session_schedule(s)->lifetimes;
    int64_t step = rm_session_schedule(s)->verdict.peak_step;
    int32_t *cuts = find_cuts(rm_session_problem(s));
    bool got = cuts != NULL;
    *p = (rm_peak){0};
    for (int64_t i = 0; got && i < lives->count && lives->item[i].first <= step; i++) {
        const rm_lifetime *life = &lives->item[i];
        if (life->last < step) continue;
        int32_t cut = life->kind == RM_BUFFER_PIECE ? cuts[life->index] : life->index;
        remat_live kind = life->kind == RM_BUFFER_SAVED     ? REMAT_LIVE_SAVED
                          : life->kind == RM_BUFFER_SCRATCH ? REMAT_LIVE_SCRATCH
                          : cut < 0                         ? REMAT_LIVE_GRADIENTS
                                                            : REMAT_LIVE_STATES;
        p->bytes[kind] += life->bytes;
        got = add_to_group(p, kind, cut < 0 ? ~cut : cut, life->bytes);
    }
    rm_free(cuts);
    if (got && p->n_groups) qsort(p->group, (size_t)p->n_groups, sizeof *p->group, larger_group);
    if (!got) rm_peak_free(p);
    return got;
}

void rm_peak_free(rm_peak *p) {
    rm_free(p->group);
    *p = (rm_peak){0};
}
