/* recompute.c: the family of plans that recompute (family.h). Its candidates are nested segments (nest.c, uniform.c)
 * and the plans that users can ask for by name (even segments for several counts, and lean), so that `optimal` is never
 * worse than any of these. A candidate becomes a member if no other beats it in both bytes and time. Main entry:
 * rm_family_recompute.
 *
 * The bytes and times of all candidates are summed up from a footprint, without writing any plan. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/bytes.h"
#include "memory/family.h"
#include "memory/host.h"
#include "memory/lean.h"
#include "memory/nest.h"
#include "memory/uniform.h"

/* The most forward runs of a plan, as a multiple of the number of stages. In very long chains the tables take most of a
 * plan's memory, and each run adds to them. */
enum { MOST_RUNS = 64, MOST_RUNS_LONG = 8, LONG_CHAIN = 50000 };
#define MANY_RUNS 1000
#define MOST_COARSE 2000 /* stages */

typedef enum { NESTED, UNIFORM, EVEN, LEAN } source;

/* A member, and what is needed to write it. */
typedef struct {
    rm_member member;
    source source;
    int64_t which; /* NESTED: the point; UNIFORM: the limit; EVEN: the number of segments */
} candidate;

typedef struct {
    rm_footprint footprint;
    rm_nest *nest;
    rm_uniform *uniform;  /* NULL: the stages are not equal */
    int8_t *lean;         /* n_stages entries: the options of `lean` */
    candidate *candidate; /* in the order of the members */
    int64_t count, capacity;
} candidates;

static remat_status add(candidates *c, candidate one) {
    REQUIRE(rm_grow(&c->candidate, &c->capacity, c->count + 1, sizeof *c->candidate), MEMORY,
            "out of host memory for %lld plans", (long long)c->count + 1);
    one.member.exact = c->footprint.exact;
    c->candidate[c->count++] = one;
    return REMAT_OK;
}

/* ---- Candidates --------------------------------------------------------------------------------- */

/* For a long chain of equal stages `uniform` is better, so little work is spent here. Where states skip stages, the
 * sums are only estimates, and a fine search, with bytes quadratic in the number of stages, gains nothing. */
static remat_status add_nested(candidates *c) {
    int64_t n_stages = c->footprint.problem->n_stages;
    rm_effort effort = {0};
    if (c->uniform && n_stages > RM_NEST_FLAT) effort = (rm_effort){16, 16, 64};
    if (c->footprint.skips && n_stages <= MOST_COARSE) effort = (rm_effort){48, 32, 256};
    TRY(rm_nest_make(&c->footprint, effort, &c->nest));
    for (int i = 0; i < rm_nest_count(c->nest); i++) {
        rm_point point = rm_nest_point(c->nest, i);
        rm_drops drops = rm_nest_drops(c->nest, i);
        rm_member member = {
            .peak_bytes = point.peak_bytes,
            .time_ns = point.time_ns,
            .runs = c->footprint.problem->n_stages + drops.runs,
            .table_bytes = c->footprint.table_bytes + drops.table_bytes,
        };
        TRY(add(c, (candidate){member, NESTED, i}));
    }
    return REMAT_OK;
}

static remat_status add_uniform(candidates *c) {
    uint64_t limit[RM_UNIFORM_LIMITS];
    int n = rm_uniform_limits(c->uniform, limit);
    for (int i = 0; i < n; i++) {
        rm_member member;
        rm_drops drops;
        bool fits;
        TRY(rm_uniform_weigh(c->uniform, limit[i], &fits, &member.peak_bytes, &member.time_ns, &drops));
        if (!fits) continue;
        member.runs = c->footprint.problem->n_stages + drops.runs;
        member.table_bytes = c->footprint.table_bytes + drops.table_bytes;
        TRY(add(c, (candidate){member, UNIFORM, (int64_t)limit[i]}));
    }
    return REMAT_OK;
}

/* The most bytes alive while [begin,end) runs forward, dropping, and `held` bytes are held. */
static uint64_t sweep_peak(const rm_footprint *f, int64_t begin, int64_t end) {
    uint64_t most = f->foot[begin].drop_bytes;
    for (int64_t s = begin + 1; s < end; s++) most = rm_larger(most, rm_beside(f, begin, s) + f->foot[s].drop_bytes);
    return most;
}

/* Sums up the segments [start[i],start[i+1]), each kept whole in option 0 as by rm_plan_from_segments. */
static rm_member sum_segments(const rm_footprint *f, const int64_t *start, int64_t n) {
    int64_t n_stages = f->problem->n_stages;
    rm_member sum = {.runs = n_stages, .table_bytes = f->table_bytes};
    uint64_t held = 0; /* the states at the start of the earlier segments */
    for (int64_t i = 0; i < n; i++) {
        int64_t end = i + 1 < n ? start[i + 1] : n_stages;
        rm_kept all = {0};
        for (int64_t s = start[i]; s < end; s++) all = rm_kept_then(all, f->foot[s].kept[0]);
        bool again = i + 1 < n && !rm_nothing_to_differentiate(f->problem, start[i], end);
        uint64_t most = rm_larger(all.forward_bytes + f->foot[end - 1].next_dstate_bytes, all.backward_bytes);
        sum.time_ns = rm_saturate(sum.time_ns, all.time_ns);
        for (int64_t s = start[i]; s < end && again; s++) {
            sum.time_ns = rm_saturate(sum.time_ns, f->foot[s].drop_ns);
            sum.table_bytes += f->foot[s].table_bytes;
            sum.runs++;
        }
        if (again) most = rm_larger(most, sweep_peak(f, start[i], end));
        sum.peak_bytes = rm_larger(sum.peak_bytes, held + most);
        if (again) held += rm_beside(f, start[i], end);
    }
    return sum;
}

/* Segment counts: every number up to 8, then a quarter more each time (half, if the stages are equal, where `uniform`
 * is better anyway); the square root, since users can ask for it by name; and one segment for each stage. */
static remat_status add_even(candidates *c) {
    const rm_problem *problem = c->footprint.problem;
    int64_t n_stages = problem->n_stages, root = llround(sqrt((double)n_stages));
    int64_t *start = rm_malloc((size_t)n_stages * sizeof *start);
    REQUIRE(start, MEMORY, "out of host memory to cut a chain of %lld stages", (long long)n_stages);
    remat_status status = REMAT_OK;
    for (int64_t n = 1, next; n <= n_stages && !status; n = next) {
        rm_cut_evenly(problem, n, start);
        status = add(c, (candidate){sum_segments(&c->footprint, start, n), EVEN, n});
        next = n + 1 + (n < 8 ? 0 : c->uniform ? n / 2 : n / 4);
        if (n < root && next > root) next = root;
        if (n < n_stages && next > n_stages) next = n_stages;
    }
    rm_free(start);
    return status;
}

static remat_status add_lean(candidates *c) {
    const rm_footprint *f = &c->footprint;
    int64_t n = f->problem->n_stages;
    c->lean = rm_malloc((size_t)n);
    REQUIRE(c->lean, MEMORY, "out of host memory to plan for %lld stages", (long long)n);
    rm_lean_options(f, c->lean);
    rm_kept all = {0};
    for (int64_t s = 0; s < n; s++) all = rm_kept_then(all, f->foot[s].kept[c->lean[s]]);
    rm_member member = {.peak_bytes = rm_larger(all.forward_bytes, all.backward_bytes), .time_ns = all.time_ns};
    member.runs = n;
    member.table_bytes = f->table_bytes;
    return add(c, (candidate){member, LEAN, 0});
}

/* ---- Members ------------------------------------------------------------------------------------ */

static int by_bytes(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->member.peak_bytes != y->member.peak_bytes) return x->member.peak_bytes < y->member.peak_bytes ? -1 : 1;
    if (x->member.time_ns != y->member.time_ns) return x->member.time_ns < y->member.time_ns ? -1 : 1;
    if (x->source != y->source) return (int)x->source - (int)y->source;
    return (x->which > y->which) - (x->which < y->which);
}

/* Removes the candidates that another beats in both bytes and time. */
static void keep_the_best(candidates *c, const rm_plan_request *request) {
    int64_t n = 0, n_stages = c->footprint.problem->n_stages;
    int64_t most_runs = n_stages > LONG_CHAIN ? MOST_RUNS_LONG : MOST_RUNS;
    qsort(c->candidate, (size_t)c->count, sizeof *c->candidate, by_bytes);
    for (int64_t i = 0; i < c->count; i++) {
        candidate next = c->candidate[i];
        if (next.member.runs > (request->no_recompute ? n_stages : n_stages * most_runs)) continue;
        if (n == 0 || next.member.time_ns < c->candidate[n - 1].member.time_ns) c->candidate[n++] = next;
    }
    c->count = n;
}

/* Plans of many runs take long to place. Of these, plans without a name of their own are kept only if they take 1/64
 * less, tables included, than the next faster one. The smallest plan always stays. */
static void thin_out(candidates *c) {
    int64_t least = 0, n = 0;
    for (int64_t i = 1; i < c->count; i++) {
        const rm_member *a = &c->candidate[i].member, *b = &c->candidate[least].member;
        if (a->peak_bytes + a->table_bytes < b->peak_bytes + b->table_bytes) least = i;
    }
    uint64_t before = UINT64_MAX;
    for (int64_t i = c->count - 1; i >= 0; i--) {
        candidate *one = &c->candidate[i];
        uint64_t bytes = one->member.peak_bytes + one->member.table_bytes;
        bool named = one->source == EVEN || one->source == LEAN;
        bool stays = named || i == least || one->member.runs < MANY_RUNS || bytes < before - before / 64;
        one->which = stays ? one->which : -1;
        if (stays) before = bytes;
    }
    for (int64_t i = 0; i < c->count; i++)
        if (c->candidate[i].which >= 0) c->candidate[n++] = c->candidate[i];
    c->count = n;
}

static remat_status choose(candidates *c, const rm_plan_request *request, rm_family *family) {
    keep_the_best(c, request);
    thin_out(c);
    family->count = c->count;
    family->member = rm_malloc((size_t)c->count * sizeof *family->member);
    REQUIRE(family->member, MEMORY, "out of host memory for %lld plans", (long long)c->count);
    for (int64_t i = 0; i < c->count; i++) family->member[i] = c->candidate[i].member;
    return REMAT_OK;
}

static remat_status write(const rm_family *family, const rm_problem *problem, int64_t i, rm_plan *plan,
                          rm_proposal *proposal) {
    candidates *c = family->own;
    const candidate *this = &c->candidate[i];
    if (this->source == EVEN) return rm_plan_evenly(problem, this->which, plan, proposal);
    proposal->segments = 1;
    if (this->source == LEAN) return rm_plan_keep_all(problem, c->lean, plan);
    if (this->source == UNIFORM) TRY(rm_uniform_write(c->uniform, (uint64_t)this->which, plan, &proposal->segments));
    if (this->source == NESTED) TRY(rm_nest_write(c->nest, (int)this->which, plan, &proposal->segments));
    return rm_plan_free_dead(problem, plan);
}

static void free_own(rm_family *family) {
    candidates *c = family->own;
    if (!c) return;
    rm_nest_free(c->nest);
    rm_uniform_free(c->uniform);
    rm_free(c->lean);
    rm_footprint_free(&c->footprint);
    rm_free(c->candidate);
    rm_free(c);
}

remat_status rm_family_recompute(const rm_problem *problem, const rm_plan_request *request, rm_family *family) {
    candidates *c = rm_calloc(1, sizeof *c);
    REQUIRE(c, MEMORY, "out of host memory to plan");
    *family = (rm_family){.write = write, .free_own = free_own, .own = c};
    remat_status status = rm_footprint_make(problem, &c->footprint);
    if (!status) status = rm_uniform_make(&c->footprint, &c->uniform);
    if (!status) status = add_nested(c);
    if (!status && c->uniform) status = add_uniform(c);
    if (!status) status = add_even(c);
    if (!status) status = add_lean(c);
    if (!status) status = choose(c, request, family);
    if (status) rm_family_free(family);
    return status;
}
