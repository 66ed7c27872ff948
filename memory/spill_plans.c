/* spill_plans.c: the family of plans that use the second tier (family.h). Main entry: rm_family_spill.
 *
 * A plan of this family has a WINDOW: the most bytes of saved blocks that are in memory, forward and backward.
 *
 *   forward    Every stage is kept in the window, or dropped. When the window is full, the oldest block goes. Its SAVE
 *              was issued as soon as it was made, so it has had the window's whole time, and FREE rarely waits.
 *   the end    The blocks in the window at the end of forward are the TAIL. They are never saved: backward begins there.
 *   backward   When a block is freed, the next one that fits is loaded, again a whole window before its use.
 *
 * Before the tail, a fixed number of every 64 stages are spilled, evenly spread; the others are dropped and recomputed
 * from their state. All 64 is pure spilling; fewer are for a channel that cannot hide all transfers behind the
 * computation. States stay in memory or, for the smallest budgets, are spilled like the blocks.
 *
 * A formula estimates thousands of such recipes. The best at each size, as many as some tens of milliseconds allow, are
 * written out and judged, so that the figures of a member are those of check.h. */
#include <math.h>
#include <stdlib.h>

#include "memory/bytes.h"
#include "memory/family.h"
#include "memory/host.h"
#include "memory/schedule.h"

enum { BYTES_A_COPY = 76, BYTES_A_RERUN = 144 }; /* approximate bytes of tables */
enum { PARTS = 64, GRID = 32, JUDGED_STEPS = 2500000, STEPS_A_STAGE = 12, LEAST_JUDGED = 24, MOST_JUDGED = 300 };

typedef struct {
    uint64_t window_bytes;
    int64_t tail;                              /* the first stage of the tail */
    int spilled;                               /* of every PARTS stages before the tail */
    int rest, end;                             /* the options before the tail and in it */
    bool states;                               /* whether states are spilled, too */
    double bytes, ns;                          /* estimated by the formula */
    uint64_t peak_bytes, time_ns, table_bytes; /* found by the judge */
    int64_t runs;
} recipe;

/* ---- From recipe to plan ------------------------------------------------------------------------- */

typedef struct {
    const rm_problem *problem;
    const recipe *recipe;
    rm_plan *plan;
    uint64_t held_bytes; /* in the window */
    int64_t out;         /* stages before this one have left the window */
} walk;

static uint64_t block_bytes(const rm_problem *problem, int64_t s, int option) {
    return rm_align_up(problem->stage[s].option[option].saved_bytes);
}

static bool is_spilled(const recipe *recipe, int64_t s) {
    return (s + 1) * recipe->spilled / PARTS > s * recipe->spilled / PARTS;
}

/* Bytes of the states that the stage before s made and that belong to the window. */
static uint64_t state_bytes(const walk *w, int64_t s) {
    return w->recipe->states && s > 0 ? rm_made_bytes(w->problem, s - 1) : 0;
}

static remat_status each_state(walk *w, int64_t s, remat_status (*add)(rm_plan *, rm_object, int64_t)) {
    for (int64_t i = w->problem->made[s - 1]; i < w->problem->made[s]; i++) TRY(add(w->plan, RM_STATE, i));
    return REMAT_OK;
}

static uint64_t forward_bytes(const walk *w, int64_t s) {
    const recipe *r = w->recipe;
    if (s >= r->tail) return block_bytes(w->problem, s, r->end) + state_bytes(w, s);
    return (is_spilled(r, s) ? block_bytes(w->problem, s, r->rest) : 0) + state_bytes(w, s);
}

/* A stage that is recomputed needs room for its block, too. */
static uint64_t backward_bytes(const walk *w, int64_t s) {
    return block_bytes(w->problem, s, w->recipe->rest) + state_bytes(w, s);
}

static remat_status let_oldest_go(walk *w) {
    int64_t s = w->out++;
    w->held_bytes -= forward_bytes(w, s);
    if (is_spilled(w->recipe, s)) TRY(rm_plan_free_object(w->plan, RM_SAVED, s));
    return state_bytes(w, s) ? each_state(w, s, rm_plan_free_object) : REMAT_OK;
}

static remat_status forward(walk *w, int64_t s) {
    const recipe *r = w->recipe;
    uint64_t bytes = forward_bytes(w, s);
    while (w->held_bytes + bytes > r->window_bytes && w->out < s && w->out < r->tail) TRY(let_oldest_go(w));
    w->held_bytes += bytes;
    if (s >= r->tail) return rm_plan_run_forward(w->plan, s, r->end);
    if (state_bytes(w, s)) TRY(each_state(w, s, rm_plan_save));
    if (!is_spilled(r, s)) return rm_plan_run_forward(w->plan, s, RM_DROP);
    TRY(rm_plan_run_forward(w->plan, s, r->rest));
    return rm_plan_save(w->plan, RM_SAVED, s);
}

static remat_status fetch(walk *w, int64_t s) {
    w->held_bytes += backward_bytes(w, s);
    if (state_bytes(w, s)) TRY(each_state(w, s, rm_plan_load));
    return is_spilled(w->recipe, s) ? rm_plan_load(w->plan, RM_SAVED, s) : REMAT_OK;
}

static remat_status backward(walk *w, int64_t s) {
    const recipe *r = w->recipe;
    if (s < r->tail && !is_spilled(r, s)) TRY(rm_plan_run_forward(w->plan, s, r->rest));
    w->held_bytes -= s < w->out ? backward_bytes(w, s) : forward_bytes(w, s);
    return rm_plan_run_backward(w->plan, s);
}

static remat_status write_recipe(const rm_problem *problem, const recipe *recipe, rm_plan *plan) {
    walk w = {.problem = problem, .recipe = recipe, .plan = plan};
    int64_t n = problem->n_stages;
    for (int64_t s = 0; s < n; s++) TRY(forward(&w, s));
    int64_t next = w.out - 1; /* the next block to be loaded */
    for (int64_t s = n - 1; s >= 0; s--) {
        while (next >= 0 && (next >= s || w.held_bytes + backward_bytes(&w, next) <= recipe->window_bytes))
            TRY(fetch(&w, next--));
        TRY(backward(&w, s));
    }
    return rm_plan_free_dead(problem, plan);
}

/* ---- Sums over the stages before a cut, for the formula ------------------------------------------- */

typedef struct {
    double block[RM_MAX_OPTIONS], forward_ns[RM_MAX_OPTIONS], backward_ns[RM_MAX_OPTIONS];
    double drop_ns, state;
} sums;

typedef struct {
    const rm_problem *problem;
    const rm_plan_request *request;
    sums *before;  /* n_stages + 1 entries */
    bool chain;    /* every state is read only by its own stage and the next one */
    int n_options; /* number of options that every stage has */
    /* bytes of the largest block and state of any stage: the minimum size of a window */
    double least_block[RM_MAX_OPTIONS];
    double scratch;
    recipe *recipe;
    int64_t count, capacity;
} search;

static bool are_near(const rm_problem *p, const rm_lists *lists) {
    for (int64_t s = 1; s < p->n_stages; s++)
        for (int64_t k = lists->start[s]; k < lists->start[s + 1]; k++)
            if (lists->item[k] < p->made[s - 1]) return false;
    return true;
}

/* Leaves are allowed to be read in backward runs only. */
static bool is_chain(const rm_problem *p) { return are_near(p, &p->reads) && are_near(p, &p->keeps); }

static remat_status add_up(search *f) {
    const rm_problem *p = f->problem;
    f->before = rm_calloc((size_t)p->n_stages + 1, sizeof *f->before);
    REQUIRE(f->before, MEMORY, "out of host memory to plan spilling for %lld stages", (long long)p->n_stages);
    f->n_options = RM_MAX_OPTIONS;
    f->chain = is_chain(p);
    for (int64_t s = 0; s < p->n_stages; s++)
        if (p->stage[s].n_options < f->n_options) f->n_options = p->stage[s].n_options;
    for (int64_t s = 0; s < p->n_stages; s++) {
        sums *sum = &f->before[s + 1];
        *sum = f->before[s];
        double state = s > 0 ? (double)rm_made_bytes(p, s - 1) : 0;
        for (int k = 0; k < f->n_options; k++) {
            const rm_stage_option *option = &p->stage[s].option[k];
            double block = (double)block_bytes(p, s, k);
            sum->block[k] += block;
            sum->forward_ns[k] += (double)option->forward.time_ns;
            sum->backward_ns[k] += (double)option->backward.time_ns;
            f->least_block[k] = fmax(f->least_block[k], block + state);
            f->scratch = fmax(f->scratch, (double)option->backward.scratch_bytes);
        }
        sum->drop_ns += (double)p->stage[s].drop.time_ns;
        sum->state += state;
    }
    return REMAT_OK;
}

/* The tail: as many of the last stages as fit into the window, at least one. */
static int64_t tail_of(const search *f, const recipe *r) {
    int64_t low = 0, high = f->problem->n_stages - 1; /* low: the first cut after which everything fits */
    const sums *all = &f->before[high + 1];
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const sums *sum = &f->before[middle];
        double bytes = all->block[r->end] - sum->block[r->end] + (r->states ? all->state - sum->state : 0);
        if (bytes <= (double)r->window_bytes)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* In each direction, computation and channel are busy all the time; the longer of the two counts. */
static void weigh(const search *f, recipe *r) {
    const rm_tier *tier = &f->problem->tier;
    int64_t n = f->problem->n_stages;
    const sums *all = &f->before[n], *rest = &f->before[r->tail];
    double part = (double)r->spilled / PARTS, stages = (double)r->tail * ((r->states ? 1 : 0) + part);
    double moved = part * rest->block[r->rest] + (r->states ? rest->state : 0);
    double latency = stages * (double)tier->latency_ns;
    double again = (1 - part) * rest->forward_ns[r->rest];
    double first = part * rest->forward_ns[r->rest] + (1 - part) * rest->drop_ns;
    double back = rest->backward_ns[r->rest] + all->backward_ns[r->end] - rest->backward_ns[r->end] + again;
    r->ns = fmax(first, moved * 1e9 / (double)tier->save_bytes_per_s + latency) + all->forward_ns[r->end] -
            rest->forward_ns[r->end] + fmax(back, moved * 1e9 / (double)tier->load_bytes_per_s + latency);
    r->ns += 2 * moved / (1 << 20) * (double)tier->cost_ns_per_mib;
    r->bytes = (double)r->window_bytes + (r->states ? 0 : all->state) + f->scratch + stages * BYTES_A_COPY +
               (double)r->tail * (1 - part) * BYTES_A_RERUN;
}

/* ---- Which recipes to try ------------------------------------------------------------------------- */

static remat_status propose(search *f, recipe r) {
    REQUIRE(rm_grow(&f->recipe, &f->capacity, f->count + 1, sizeof *f->recipe), MEMORY,
            "out of host memory for %lld plans that spill", (long long)f->count + 1);
    weigh(f, &r);
    f->recipe[f->count++] = r;
    return REMAT_OK;
}

/* The share of stages at which the channel is as busy as the computation, forward or backward. */
static int balanced_share(const search *f, int option) {
    const sums *all = &f->before[f->problem->n_stages];
    const rm_tier *tier = &f->problem->tier;
    double latency = (double)f->problem->n_stages * (double)tier->latency_ns;
    double save = all->block[option] * 1e9 / (double)tier->save_bytes_per_s + latency;
    double load = all->block[option] * 1e9 / (double)tier->load_bytes_per_s + latency;
    double again = all->forward_ns[option];
    double share = 1;
    if (save > all->forward_ns[option]) share = all->forward_ns[option] / save;
    if (load > all->backward_ns[option] && share > (all->backward_ns[option] + again) / (load + again))
        share = (all->backward_ns[option] + again) / (load + again);
    return (int)(share * PARTS);
}

/* Proposes one window. Another window with the same tail holds the same number of blocks and gives nearly the same
 * plan. */
static remat_status propose_window(search *f, int64_t first, recipe r, double window) {
    r.window_bytes = (uint64_t)window;
    r.tail = tail_of(f, &r);
    for (int64_t i = first; i < f->count; i++)
        if (f->recipe[i].tail == r.tail) return REMAT_OK;
    return propose(f, r);
}

/* Windows from one block to everything: first by single blocks, then in even ratios, then by tenths. */
static remat_status propose_windows(search *f, recipe r) {
    int64_t first = f->count;
    const sums *all = &f->before[f->problem->n_stages];
    double least = fmax(f->least_block[r.rest], f->least_block[r.end]);
    double most = fmax(all->block[r.end] + (r.states ? all->state : 0), least);
    for (int i = 1; i <= 4; i++) TRY(propose_window(f, first, r, least * i));
    for (int i = 1; i <= GRID; i++) TRY(propose_window(f, first, r, least * pow(most / least, (double)i / GRID) + 1));
    for (int i = 1; i < 10; i++) TRY(propose_window(f, first, r, fmax(least, most * i / 10)));
    return REMAT_OK;
}

static remat_status propose_shares(search *f, int rest, int end) {
    int balanced = balanced_share(f, rest);
    int shares[] = {PARTS, (PARTS + balanced) / 2, balanced, balanced * 3 / 4, balanced / 2, 0};
    int n = f->request->no_recompute || balanced >= PARTS ? 1 : sizeof shares / sizeof *shares;
    for (int states = 0; states < (f->chain ? 2 : 1); states++)
        for (int i = 0; i < n; i++) {
            if (i && shares[i] == shares[i - 1]) continue;
            if (!shares[i] && !states) continue; /* this spills nothing, so it belongs to the other family */
            TRY(propose_windows(f, (recipe){.spilled = shares[i], .rest = rest, .end = end, .states = states}));
        }
    return REMAT_OK;
}

static remat_status propose_all(search *f) {
    for (int k = 0; k < f->n_options; k++) {
        TRY(propose_shares(f, k, k));
        if (k > 0) TRY(propose_shares(f, k, 0));
    }
    return REMAT_OK;
}

/* ---- The best recipes, judged --------------------------------------------------------------------- */

/* Plans that spill states and plans that do not are sorted separately, since it is not known yet which of them leave
 * fewer gaps when they are placed. */
static int by_formula(const void *a, const void *b) {
    const recipe *x = a, *y = b;
    if (x->states != y->states) return x->states - y->states;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return (x->ns > y->ns) - (x->ns < y->ns);
}

/* The bytes that count against a budget if the plan is placed without gaps. */
static uint64_t total_bytes(const recipe *r) { return r->peak_bytes + r->table_bytes; }

static int by_judge(const void *a, const void *b) {
    const recipe *x = a, *y = b;
    if (x->states != y->states) return x->states - y->states;
    if (total_bytes(x) != total_bytes(y)) return total_bytes(x) < total_bytes(y) ? -1 : 1;
    return (x->time_ns > y->time_ns) - (x->time_ns < y->time_ns);
}

static int64_t judged_at_most(const search *f) {
    int64_t most = JUDGED_STEPS / STEPS_A_STAGE / f->problem->n_stages;
    return most < LEAST_JUDGED ? LEAST_JUDGED : most > MOST_JUDGED ? MOST_JUDGED : most;
}

/* Takes `most` of them evenly, with the first and the last of each kind. */
static void take_evenly(search *f, int64_t most) {
    int64_t kept = 0, taken = -1;
    for (int64_t i = 0; i < f->count; i++) {
        bool first = i == 0 || f->recipe[i].states != f->recipe[i - 1].states;
        bool last = i + 1 == f->count || f->recipe[i].states != f->recipe[i + 1].states;
        int64_t turn = i * most / f->count;
        if (turn == taken && !first && !last) continue;
        taken = turn;
        f->recipe[kept++] = f->recipe[i];
    }
    f->count = kept;
}

/* Removes recipes that a smaller one beats, and thins the rest to about as many as may be judged. The formula's times
 * are not exact, so recipes that seem slightly slower stay in. */
static void thin_out(search *f) {
    int64_t kept = 0, most = judged_at_most(f);
    double best = 0;
    qsort(f->recipe, (size_t)f->count, sizeof *f->recipe, by_formula);
    for (int64_t i = 0; i < f->count; i++) {
        if (i == 0 || f->recipe[i].states != f->recipe[i - 1].states) best = f->recipe[i].ns;
        if (f->recipe[i].ns > best * 1.001) continue;
        best = fmin(best, f->recipe[i].ns);
        f->recipe[kept++] = f->recipe[i];
    }
    f->count = kept;
    if (kept > most) take_evenly(f, most);
}

static remat_status judge_recipe(const rm_problem *problem, recipe *r, rm_plan *plan) {
    rm_verdict verdict;
    plan->n_steps = 0;
    TRY(write_recipe(problem, r, plan));
    TRY(rm_plan_check(problem, plan, &verdict, NULL));
    r->table_bytes = rm_table_bytes(plan->n_steps, verdict.buffers) + rm_transfers_table_bytes(problem, plan);
    r->peak_bytes = verdict.peak_bytes;
    r->time_ns = verdict.total_ns;
    r->runs = problem->n_stages + verdict.recomputed_stages;
    return REMAT_OK;
}

static remat_status judge_all(search *f) {
    rm_plan plan = {0};
    remat_status status = REMAT_OK;
    for (int64_t i = 0; i < f->count && !status; i++) status = judge_recipe(f->problem, &f->recipe[i], &plan);
    rm_plan_free(&plan);
    if (status || f->count == 0) return status;
    qsort(f->recipe, (size_t)f->count, sizeof *f->recipe, by_judge);
    int64_t kept = 1;
    for (int64_t i = 1; i < f->count; i++) {
        const recipe *r = &f->recipe[i], *last = &f->recipe[kept - 1];
        if (r->states != last->states || r->time_ns < last->time_ns) f->recipe[kept++] = *r;
    }
    f->count = kept;
    return REMAT_OK;
}

/* ---- The family ----------------------------------------------------------------------------------- */

static remat_status write_member(const rm_family *family, const rm_problem *problem, int64_t i, rm_plan *plan,
                                 rm_proposal *proposal) {
    const recipe *r = &((const recipe *)family->own)[i];
    proposal->segments = 1 + r->runs - problem->n_stages; /* each recomputed stage is a segment of its own */
    return write_recipe(problem, r, plan);
}

static void free_recipes(rm_family *family) { rm_free(family->own); }

static remat_status hand_over(search *f, rm_family *family) {
    family->member = rm_calloc((size_t)f->count, sizeof *family->member);
    REQUIRE(family->member, MEMORY, "out of host memory for %lld plans that spill", (long long)f->count);
    for (int64_t i = 0; i < f->count; i++)
        family->member[i] = (rm_member){.peak_bytes = f->recipe[i].peak_bytes,
                                        .time_ns = f->recipe[i].time_ns,
                                        .runs = f->recipe[i].runs,
                                        .table_bytes = f->recipe[i].table_bytes,
                                        .exact = true};
    family->count = f->count;
    family->own = f->recipe;
    f->recipe = NULL;
    return REMAT_OK;
}

remat_status rm_family_spill(const rm_problem *problem, const rm_plan_request *request, rm_family *family) {
    *family = (rm_family){.write = write_member, .free_own = free_recipes};
    if (!rm_tier_there(&problem->tier)) return REMAT_OK;
    search f = {.problem = problem, .request = request};
    remat_status status = add_up(&f);
    if (!status) status = propose_all(&f);
    if (!status) thin_out(&f);
    if (!status) status = judge_all(&f);
    if (!status) status = hand_over(&f, family);
    rm_free(f.before);
    rm_free(f.recipe);
    return status;
}
