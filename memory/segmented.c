/* segmented.c: the uniform schedule and the even cut, shared by `none`, `segments` and `sqrt`. These strategies differ
 * only in the number of segments.
 *
 * For segments [0,2) and [2,4) of four stages:
 *
 *   sweep     forward 0 drop, forward 1 drop             the state at cut 2 is kept; state 0 is freed at once
 *   last      forward 2 keep, forward 3 keep, backward 3, backward 2
 *   again     forward 0 keep, forward 1 keep, backward 1, backward 0
 *
 * A segment with nothing to differentiate (frozen layers) is kept in the sweep: this takes no bytes and saves the
 * second run. */
#include "memory/strategy.h"

#include "memory/host.h"

#define KEEP 0 /* option 0 keeps everything that backward can use */

remat_status rm_plan_sweep(rm_plan *plan, int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; s++) TRY(rm_plan_run_forward(plan, s, RM_DROP));
    return REMAT_OK;
}

static remat_status require_starts(const rm_problem *problem, const int64_t *start, int64_t n_segments) {
    REQUIRE(n_segments >= 1 && n_segments <= problem->n_stages, INVALID, "cannot make %lld segments of %lld stages",
            (long long)n_segments, (long long)problem->n_stages);
    REQUIRE(start[0] == 0, INVALID, "the first segment starts at stage %lld, not 0", (long long)start[0]);
    for (int64_t i = 1; i < n_segments; i++)
        REQUIRE(start[i] > start[i - 1] && start[i] < problem->n_stages, INVALID,
                "segment %lld of %lld starts at stage %lld, after a segment that starts at %lld; there are %lld stages",
                (long long)i, (long long)n_segments, (long long)start[i], (long long)start[i - 1],
                (long long)problem->n_stages);
    return REMAT_OK;
}

static bool stage_is_idle(const rm_problem *p, int64_t s) {
    return p->dstate[p->made[s]] == p->dstate[p->made[s + 1]] && p->adds.start[s] == p->adds.start[s + 1] &&
           p->keeps.start[s] == p->keeps.start[s + 1] && !p->stage[s].option[KEEP].saved_bytes;
}

bool rm_nothing_to_differentiate(const rm_problem *problem, int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; s++)
        if (!stage_is_idle(problem, s)) return false;
    return true;
}

static remat_status keep(rm_plan *plan, int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; s++) TRY(rm_plan_run_forward(plan, s, KEEP));
    return REMAT_OK;
}

remat_status rm_plan_from_segments(const rm_problem *problem, const int64_t *start, int64_t n_segments, rm_plan *plan) {
    TRY(require_starts(problem, start, n_segments));
    for (int64_t i = 0; i + 1 < n_segments; i++) {
        bool idle = rm_nothing_to_differentiate(problem, start[i], start[i + 1]);
        TRY((idle ? keep : rm_plan_sweep)(plan, start[i], start[i + 1]));
    }
    int64_t end = problem->n_stages;
    for (int64_t i = n_segments - 1; i >= 0; i--) {
        bool last = i == n_segments - 1;
        if (last || !rm_nothing_to_differentiate(problem, start[i], end)) TRY(keep(plan, start[i], end));
        for (int64_t s = end - 1; s >= start[i]; s--) TRY(rm_plan_run_backward(plan, s));
        end = start[i];
    }
    return rm_plan_free_dead(problem, plan);
}

/* ---- The even cut ------------------------------------------------------------------------------- */

/* The bytes that stage s holds while its segment is kept: saved(s) and the states that its backward reads. Plus one, so
 * that a stage that holds nothing still counts. */
static uint64_t weight(const rm_problem *problem, int64_t s) {
    uint64_t bytes = problem->stage[s].option[KEEP].saved_bytes + 1;
    for (int64_t k = problem->keeps.start[s]; k < problem->keeps.start[s + 1]; k++)
        bytes += rm_state_bytes(problem, problem->keeps.item[k]);
    return bytes;
}

/* Segment i starts at the cut nearest to i/N of the chain's total weight, moved where needed so that no segment is
 * empty. For equal stages these are the cuts nearest to i S/N: segment lengths differ by at most one stage. */
void rm_cut_evenly(const rm_problem *problem, int64_t n_segments, int64_t *start) {
    int64_t n_stages = problem->n_stages, c = 0;
    unsigned __int128 total = 0, before = 0; /* before: the weight of the stages before cut c */
    for (int64_t s = 0; s < n_stages; s++) total += weight(problem, s);
    start[0] = 0;
    for (int64_t i = 1; i < n_segments; i++) {
        unsigned __int128 goal = total * (unsigned __int128)i / (unsigned __int128)n_segments;
        int64_t most = n_stages - (n_segments - i);
        while (c < most && before + weight(problem, c) / 2 < goal) before += weight(problem, c++);
        while (c <= start[i - 1]) before += weight(problem, c++);
        start[i] = c;
    }
}

remat_status rm_plan_evenly(const rm_problem *problem, int64_t n_segments, rm_plan *plan, rm_proposal *proposal) {
    REQUIRE(n_segments >= 1, INVALID, "cannot make %lld segments; ask for 1 or more (1 recomputes nothing)",
            (long long)n_segments);
    if (n_segments > problem->n_stages) n_segments = problem->n_stages;
    int64_t *start = rm_malloc((size_t)n_segments * sizeof *start);
    REQUIRE(start, MEMORY, "out of host memory to cut a chain into %lld segments", (long long)n_segments);
    rm_cut_evenly(problem, n_segments, start);
    remat_status status = rm_plan_from_segments(problem, start, n_segments, plan);
    rm_free(start);
    proposal->segments = n_segments;
    return status;
}
