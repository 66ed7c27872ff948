/* pareto.c: memory against time: the plans of every strategy for a session's own graph, device and tile, each judged
 * and placed as the one that runs is. Nothing is allocated on the device. Main entry: remat_plan_pareto. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/session/budget.h"
#include "engine/session/planning.h"
#include "memory/family.h"
#include "memory/host.h"

typedef struct {
    const remat_session *session;
    remat_pareto_point *item;       /* freed with remat_text_free, so it is the C library's */
    int64_t count, capacity, range; /* range: where the strategy at hand begins */
} points;

/* ---- One point ------------------------------------------------------------------------------------------------ */

static remat_status add_point(points *p, const char *strategy, const rm_schedule *schedule) {
    if (p->count == p->capacity) {
        int64_t capacity = 2 * p->capacity + 64;
        remat_pareto_point *grown = realloc(p->item, (size_t)capacity * sizeof *grown);
        REQUIRE(grown, MEMORY, "out of memory for %lld plans", (long long)capacity);
        p->item = grown;
        p->capacity = capacity;
    }
    remat_session with = *p->session; /* the same in all else */
    with.training = *schedule;
    uint64_t evaluation = with.evaluation.placement.bytes, training = schedule->placement.bytes;
    p->item[p->count++] = (remat_pareto_point){.strategy = strategy,
                                               .segments = schedule->proposal.segments,
                                               .activations_peak_bytes = training > evaluation ? training : evaluation,
                                               .budgeted_bytes = rm_session_budgeted_bytes(&with),
                                               .spill_bytes = schedule->verdict.save_bytes,
                                               .step_ns = schedule->verdict.total_ns,
                                               .recompute_factor = schedule->verdict.recompute_factor};
    return REMAT_OK;
}

static rm_plan_request request_of(const remat_session *s) {
    return (rm_plan_request){.segments = 1,
                             .no_recompute = s->recompute == RM_RECOMPUTE_OFF,
                             .least_block_bytes = s->evaluation.placement.bytes};
}

/* A strategy that cannot serve this session (it would recompute where that is off) has no point. */
static remat_status add_proposal(points *p, const rm_strategy *strategy, int64_t segments) {
    rm_schedule schedule = {0};
    rm_plan_request request = request_of(p->session);
    request.segments = segments;
    remat_status status = rm_schedule_propose(&p->session->chain.problem, strategy, &request, &schedule);
    bool serves = !status && !(request.no_recompute && schedule.verdict.recomputed_stages);
    if (serves) status = add_point(p, strategy->name, &schedule);
    rm_schedule_free(&schedule);
    return status == REMAT_INVALID || status == REMAT_INFEASIBLE ? REMAT_OK : status;
}

/* ---- Many ----------------------------------------------------------------------------------------------------- */

/* Long chains take longer to judge and place, and get fewer points. */
static int64_t points_for(int64_t n_stages) {
    enum { MOST = 24, LEAST = 8, STAGES = 8192 };
    int64_t n = n_stages > STAGES ? MOST * STAGES / n_stages : MOST;
    return n < LEAST ? LEAST : n;
}

/* Numbers of segments spread geometrically from 2 (1 is `none`) to as many as there are stages. */
static remat_status add_segments(points *p, const rm_strategy *strategy) {
    int64_t n_stages = p->session->chain.n_stages, steps = points_for(n_stages), last = 1;
    for (int64_t i = 0; i < steps; i++) {
        int64_t n = llround(pow((double)n_stages, (double)i / (double)(steps - 1)));
        if (n > last) TRY(add_proposal(p, strategy, n));
        if (n > last) last = n;
    }
    return REMAT_OK;
}

static remat_status add_member(points *p, const char *name, const rm_family *family, int64_t i) {
    rm_schedule schedule = {0};
    const rm_problem *problem = &p->session->chain.problem;
    remat_status status = family->write(family, problem, i, &schedule.plan, &schedule.proposal);
    if (!status) status = rm_schedule_settle(problem, false, &schedule);
    if (!status) status = add_point(p, name, &schedule);
    rm_schedule_free(&schedule);
    return status;
}

/* Many steps make large tables: what needs least in all need not have the lowest peak. */
static int64_t least_in_all(const rm_family *family) {
    const rm_member *member = family->member;
    int64_t least = 0;
    for (int64_t i = 1; i < family->count; i++)
        if (member[i].peak_bytes + member[i].table_bytes < member[least].peak_bytes + member[least].table_bytes)
            least = i;
    return least;
}

/* Members as evenly apart on a logarithmic scale of bytes as they come; the smallest, in both ways, and the fastest among
 * them. */
static remat_status add_family(points *p, const char *name, const rm_family *family) {
    int64_t steps = points_for(p->session->chain.n_stages), i = 0;
    if (!family->count) return REMAT_OK;
    double low = log((double)family->member[0].peak_bytes + 1);
    double high = log((double)family->member[family->count - 1].peak_bytes + 1);
    for (int64_t k = 0; k < steps && i < family->count; k++) {
        double at = low + (high - low) * (double)k / (double)(steps - 1);
        while (i < family->count - 1 && log((double)family->member[i].peak_bytes + 1) < at - 1e-12) i++;
        TRY(add_member(p, name, family, i++));
    }
    if (i < family->count) TRY(add_member(p, name, family, family->count - 1));
    return add_member(p, name, family, least_in_all(family));
}

typedef remat_status make_family(const rm_problem *, const rm_plan_request *, rm_family *);

static remat_status add_made_family(points *p, const char *name, make_family *make) {
    rm_family family = {0};
    rm_plan_request request = request_of(p->session);
    remat_status status = make(&p->session->chain.problem, &request, &family);
    if (!status) status = add_family(p, name, &family);
    rm_family_free(&family);
    return status;
}

/* ---- The least ------------------------------------------------------------------------------------------------ */

/* Arrays of its own for what rm_chain_guess_times writes; the rest is the session's. */
static bool copy_times(const rm_chain *chain, rm_chain *copy) {
    size_t stages = (size_t)chain->n_stages, kinds = (size_t)chain->n_kinds;
    *copy = *chain;
    copy->kind = rm_malloc(kinds * sizeof *copy->kind);
    copy->problem.stage = rm_malloc(stages * sizeof *copy->problem.stage);
    copy->evaluation.stage = rm_malloc(stages * sizeof *copy->evaluation.stage);
    if (!copy->kind || !copy->problem.stage || !copy->evaluation.stage) return false;
    memcpy(copy->kind, chain->kind, kinds * sizeof *copy->kind);
    memcpy(copy->problem.stage, chain->problem.stage, stages * sizeof *copy->problem.stage);
    memcpy(copy->evaluation.stage, chain->evaluation.stage, stages * sizeof *copy->evaluation.stage);
    return true;
}

/* The plan for a budget of one byte, by standard times, which decide whether a budget suffices. */
static remat_status find_least(const remat_session *s, const rm_strategy *strategy, rm_schedule *least) {
    rm_chain standard;
    rm_rates rates = rm_standard_rates();
    rm_plan_request request = request_of(s);
    request.budget_bytes = 1;
    remat_status status = REMAT_MEMORY;
    if (copy_times(&s->chain, &standard)) {
        rm_tier_by_standard(&standard.problem.tier);
        rm_chain_guess_times(&standard, &rates);
        status = rm_schedule_propose(&standard.problem, strategy, &request, least);
    } else {
        rm_fail(status, "out of memory for the times of %lld stages", (long long)s->chain.n_stages);
    }
    rm_free(standard.kind);
    rm_free(standard.problem.stage);
    rm_free(standard.evaluation.stage);
    if (status != REMAT_INFEASIBLE) return status;
    return rm_plan_check(&s->chain.problem, &least->plan, &least->verdict, NULL); /* by the times there are */
}

/* A plan that other times happen to make smaller is in no session: its budget would be refused. */
static void drop_below(points *p, uint64_t least_bytes) {
    int64_t kept = p->range;
    for (int64_t i = p->range; i < p->count; i++)
        if (p->item[i].budgeted_bytes >= least_bytes) p->item[kept++] = p->item[i];
    p->count = kept;
}

/* ---- In order ------------------------------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b) {
    const remat_pareto_point *x = a, *y = b;
    if (x->budgeted_bytes != y->budgeted_bytes) return x->budgeted_bytes < y->budgeted_bytes ? -1 : 1;
    return x->step_ns < y->step_ns ? -1 : x->step_ns > y->step_ns;
}

static bool same(const remat_pareto_point *x, const remat_pareto_point *y) {
    return x->budgeted_bytes == y->budgeted_bytes && x->step_ns == y->step_ns;
}

/* The points of one strategy in order of bytes, each once. */
static void end_range(points *p) {
    if (p->count == p->range) return;
    qsort(p->item + p->range, (size_t)(p->count - p->range), sizeof *p->item, by_bytes);
    int64_t kept = p->range + 1;
    for (int64_t i = p->range + 1; i < p->count; i++)
        if (!same(&p->item[i], &p->item[kept - 1])) p->item[kept++] = p->item[i];
    p->range = p->count = kept;
}

/* The smallest plan for any budget, whose bytes are the answer, and the larger ones that recompute. */
static remat_status add_by_budget(points *p, const rm_strategy *strategy, uint64_t *least_bytes) {
    rm_schedule least = {0};
    remat_status status = find_least(p->session, strategy, &least);
    if (!status) status = add_point(p, strategy->name, &least);
    if (!status) *least_bytes = p->item[p->count - 1].budgeted_bytes;
    rm_schedule_free(&least);
    if (!status) status = add_made_family(p, strategy->name, rm_family_recompute);
    if (!status) drop_below(p, *least_bytes);
    return status;
}

/* A strategy's own way, and the session's plan if it is that strategy's. */
static remat_status add_strategy(points *p, const rm_strategy *strategy, uint64_t *least_bytes) {
    if (strategy == p->session->strategy) TRY(add_point(p, strategy->name, &p->session->training));
    switch (strategy->plans) {
    case RM_ONE_PLAN:
        TRY(add_proposal(p, strategy, 1));
        break;
    case RM_PLANS_BY_SEGMENTS:
        TRY(add_segments(p, strategy));
        break;
    case RM_PLANS_BY_BUDGET:
        TRY(add_by_budget(p, strategy, least_bytes));
        break;
    }
    end_range(p);
    return REMAT_OK;
}

static void mark_frontier(points *p) {
    for (int64_t i = 0; i < p->count; i++) {
        remat_pareto_point *x = &p->item[i];
        x->frontier = true;
        for (int64_t k = 0; k < p->count; k++) {
            const remat_pareto_point *y = &p->item[k];
            x->frontier &= !(y->budgeted_bytes <= x->budgeted_bytes && y->step_ns <= x->step_ns && !same(x, y));
        }
    }
}

static remat_status collect(points *p) {
    uint64_t least_bytes = 0;
    for (int i = 0; i < rm_n_strategies; i++) TRY(add_strategy(p, rm_strategies[i], &least_bytes));
    TRY(add_made_family(p, "spill", rm_family_spill));
    drop_below(p, least_bytes);
    end_range(p);
    mark_frontier(p);
    return REMAT_OK;
}

remat_status remat_plan_pareto(const remat_session *s, remat_pareto_point **out, int64_t *count) {
    NEED(s, "a session");
    NEED(out && count, "a place for the result");
    REQUIRE(!s->inference, INVALID, "this session was made for inference; it has one plan only");
    points p = {.session = s};
    remat_status status = collect(&p);
    if (status) {
        free(p.item);
        return status;
    }
    *out = p.item;
    *count = p.count;
    return REMAT_OK;
}
