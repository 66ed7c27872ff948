/* evict.c: the family of plans for nets whose states are read far from where they are made (family.h): several sweeps,
 * long skip connections. In such nets, a plan of nested segments holds states needlessly: a skipping state stays alive
 * through everything between its maker and its reader. This family therefore does not sum up costs but has each plan
 * judged, and shrinks it one object at a time at its peak:
 *
 *     ... run 1 drop .................... peak ............... run 9 (reads state 1) ...
 *     ... run 1 drop; free state 1 ...... peak ... run 1 drop; run 9 (reads state 1) ...      recompute a state
 *     ... run 4 all ..................... peak ............... backward 4 ...
 *     ... run 4 lean .................... peak ............... backward 4 ...                 keep a stage otherwise,
 *     ... run 4 drop .................... peak ... run 4 all;  backward 4 ...                 or later
 *
 * Each move applies the edit that costs the least time per byte; with many stages it applies several at once. Walks
 * start from the plans that users can ask for by name and from nested ones. Every plan on the way that no other plan
 * beats becomes a member. A later move of a walk can make an earlier one unnecessary. At the end, each member therefore
 * undoes what it can without raising its peak. Main entry: rm_family_evict. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/bytes.h"
#include "memory/family.h"
#include "memory/host.h"
#include "memory/lean.h"
#include "memory/nest.h"
#include "memory/schedule.h"

enum { JUDGED_STEPS = 600000, WALKS = 60, NESTED = 32, EDITS_AN_OBJECT = 2 };
/* The walk that starts by keeping everything gets the share of several others. A walk of few steps makes larger
 * moves. */
enum { SHARES_OF_THE_FIRST = 8, FINE_MOVES = 100 };
enum { SHORT = 32 }; /* stages */

typedef struct {
    enum { MAKE_STATE_AGAIN, KEEP_OTHERWISE, KEEP_AGAIN } what;
    int64_t index;
    int option;
    int64_t position; /* runs are inserted before this position */
    double bytes, score;
} edit;

typedef struct {
    rm_member member;
    rm_plan runs; /* without FREEs */
} entry;

typedef struct {
    const rm_problem *problem;
    const rm_plan_request *request;
    entry *entry;
    int64_t count, capacity, judged_steps;
    bool edits; /* there are few enough stages for a walk */
} family;

/* The current plan of a walk: its runs and what is known about it. Positions count runs. */
typedef struct {
    rm_plan runs, full; /* full: with FREEs */
    rm_verdict verdict;
    int64_t peak;         /* position of the run at the peak */
    bool *alive;          /* by state: alive at the peak, but not used by the run there */
    bool *saved_alive;    /* by stage */
    int64_t *next;        /* by state: the first run at or after the peak that touches it; -1: none */
    int64_t *kept, *back; /* by stage: the run that keeps it; its backward run */
    uint8_t *tries;       /* by state, then by stage: number of edits so far */
    edit *edit;           /* the best edit of each object at the peak; n_edits entries */
    int64_t n_edits;
    double move_bytes; /* bytes that one move should save */
} walk;

/* ---- Judging ------------------------------------------------------------------------------------ */

static remat_status copy_plan(const rm_plan *from, rm_plan *to) {
    if (to->capacity < from->n_steps) {
        rm_plan_free(to);
        to->step = rm_malloc((size_t)from->n_steps * sizeof *to->step);
        REQUIRE(to->step, MEMORY, "out of host memory for a plan of %lld steps", (long long)from->n_steps);
        to->capacity = from->n_steps;
    }
    to->n_steps = from->n_steps;
    memcpy(to->step, from->step, (size_t)from->n_steps * sizeof *to->step);
    return REMAT_OK;
}

static remat_status judge(family *f, walk *w) {
    TRY(copy_plan(&w->runs, &w->full));
    TRY(rm_plan_free_dead(f->problem, &w->full));
    f->judged_steps += w->full.n_steps;
    return rm_plan_check(f->problem, &w->full, &w->verdict, NULL);
}

/* Adds the plan to the family unless an existing member is at least as good. It takes the place of the first member
 * that it beats. */
static remat_status record(family *f, const walk *w, int64_t most_runs) {
    int64_t runs = f->problem->n_stages + w->verdict.recomputed_stages;
    if (runs > most_runs) return REMAT_OK;
    for (int64_t i = 0; i < f->count; i++) {
        const rm_member *m = &f->entry[i].member;
        if (m->peak_bytes <= w->verdict.peak_bytes && m->time_ns <= w->verdict.total_ns) return REMAT_OK;
    }
    int64_t place = 0;
    for (; place < f->count; place++) {
        const rm_member *m = &f->entry[place].member;
        if (w->verdict.peak_bytes <= m->peak_bytes && w->verdict.total_ns <= m->time_ns) break;
    }
    REQUIRE(rm_grow(&f->entry, &f->capacity, f->count + 1, sizeof *f->entry), MEMORY, "out of host memory for plans");
    entry *e = &f->entry[place];
    if (place == f->count) f->entry[f->count++] = (entry){0};
    e->member = (rm_member){.peak_bytes = w->verdict.peak_bytes,
                            .time_ns = w->verdict.total_ns,
                            .runs = runs,
                            .table_bytes = rm_table_bytes(w->full.n_steps, w->verdict.buffers),
                            .exact = true};
    return copy_plan(&w->runs, &e->runs);
}

/* ---- Objects alive at the peak -------------------------------------------------------------------- */

static void touch(walk *w, int64_t position, int64_t state) {
    if (position >= w->peak && w->next[state] < 0) w->next[state] = position;
    if (position == w->peak) w->alive[state] = false;
}

static void touch_list(walk *w, const rm_lists *lists, rm_step step, int64_t position) {
    for (int64_t k = lists->start[step.index]; k < lists->start[step.index + 1]; k++)
        touch(w, position, lists->item[k]);
}

static void look_at_run(const rm_problem *p, walk *w, rm_step step, int64_t position) {
    bool forward = step.verb == RM_RUN_FORWARD;
    if (!forward) w->back[step.index] = position;
    if (forward && step.option != RM_DROP) w->kept[step.index] = position;
    touch_list(w, forward ? &p->reads : &p->keeps, step, position);
    for (int64_t i = p->made[step.index]; forward && i < p->made[step.index + 1]; i++) {
        if (position < w->peak) w->alive[i] = true;
        touch(w, position, i);
    }
}

static void look(const rm_problem *p, walk *w) {
    int64_t position = -1;
    memset(w->alive, 0, (size_t)p->n_states * sizeof *w->alive);
    memset(w->saved_alive, 0, (size_t)p->n_stages * sizeof *w->saved_alive);
    for (int64_t i = 0; i < p->n_states; i++) w->next[i] = -1;
    w->peak = 0;
    for (int64_t i = 0; i < w->verdict.peak_step; i++) w->peak += w->full.step[i].verb != RM_FREE;
    for (int64_t i = 0; i < w->full.n_steps; i++) {
        rm_step step = w->full.step[i];
        bool before = position + 1 <= w->peak && i < w->verdict.peak_step;
        if (step.verb != RM_FREE)
            look_at_run(p, w, step, ++position);
        else if (before && step.object == RM_STATE)
            w->alive[step.index] = false;
    }
    for (int64_t s = 0; s < p->n_stages; s++) w->saved_alive[s] = w->kept[s] < w->peak && w->back[s] > w->peak;
}

/* ---- Possible edits -------------------------------------------------------------------------------- */

/* Finds the runs that recompute a state before `position`: writes stages to `chain`, each once, and returns their time.
 * Inputs that are alive after the peak are kept until then. Returns a negative value if it is impossible. */
static double rebuild(const rm_problem *p, const walk *w, int64_t stage, int64_t position, uint8_t *chain, int depth) {
    if (chain[stage]) return 0;
    if (depth > 64) return -1;
    chain[stage] = 1;
    double ns = (double)p->stage[stage].drop.time_ns;
    for (int64_t k = p->reads.start[stage]; k < p->reads.start[stage + 1]; k++) {
        int32_t state = p->reads.item[k];
        if (w->alive[state] || (w->next[state] >= 0 && w->next[state] < position)) continue;
        double more = rebuild(p, w, rm_state_maker(p, state), position, chain, depth + 1);
        if (more < 0) return more;
        ns += more;
    }
    return ns;
}

static void weigh(edit *best, edit one, double ns) {
    one.score = one.bytes / fmax(ns, 1);
    if (one.bytes > 0 && one.score > best->score) *best = one;
}

static void weigh_state(const rm_problem *p, const walk *w, int64_t i, uint8_t *chain, edit *best) {
    if (!w->alive[i] || w->next[i] < 0 || w->tries[i] >= EDITS_AN_OBJECT) return;
    memset(chain, 0, (size_t)p->n_stages);
    double ns = rebuild(p, w, rm_state_maker(p, i), w->next[i], chain, 0);
    if (ns >= 0) weigh(best, (edit){MAKE_STATE_AGAIN, i, 0, w->next[i], (double)rm_state_bytes(p, i), 0}, ns);
}

static void weigh_saved(const rm_problem *p, const walk *w, int64_t s, uint8_t *chain, edit *best) {
    if (!w->saved_alive[s] || w->tries[p->n_states + s] >= EDITS_AN_OBJECT) return;
    const rm_stage *stage = &p->stage[s];
    int now = w->runs.step[w->kept[s]].option;
    const rm_stage_option *kept = &stage->option[now];
    double bytes = (double)rm_align_up(kept->saved_bytes);
    double ns_now = (double)(kept->forward.time_ns + kept->backward.time_ns);
    memset(chain, 0, (size_t)p->n_stages);
    double again = rebuild(p, w, s, w->back[s], chain, 0) - (double)stage->drop.time_ns;
    for (int k = 0; k < stage->n_options; k++) {
        const rm_stage_option *other = &stage->option[k];
        double ns = (double)(other->forward.time_ns + other->backward.time_ns) - ns_now;
        double spared = bytes - (double)rm_align_up(other->saved_bytes);
        if (k != now) weigh(best, (edit){KEEP_OTHERWISE, s, k, w->back[s], spared, 0}, ns);
        if (again > -(double)stage->drop.time_ns)
            weigh(best, (edit){KEEP_AGAIN, s, k, w->back[s], bytes, 0}, ns + again + (double)stage->drop.time_ns);
    }
}

/* ---- Applying edits -------------------------------------------------------------------------------- */

static remat_status insert(rm_plan *plan, int64_t position, rm_step step) {
    TRY(rm_plan_add(plan, step));
    memmove(plan->step + position + 1, plan->step + position, (size_t)(plan->n_steps - 1 - position) * sizeof step);
    plan->step[position] = step;
    return REMAT_OK;
}

/* Inserts the chain's stages as dropping runs, except `last`, which is kept in its option. */
static remat_status insert_chain(const rm_problem *p, walk *w, int64_t position, const uint8_t *chain, int64_t last,
                                 int option) {
    for (int64_t s = 0; s < p->n_stages; s++) {
        if (!chain[s]) continue;
        int8_t how = (int8_t)(s == last ? option : RM_DROP);
        TRY(insert(&w->runs, position++, (rm_step){.verb = RM_RUN_FORWARD, .option = how, .index = (int32_t)s}));
    }
    return REMAT_OK;
}

static remat_status apply(const rm_problem *p, walk *w, const edit *e, uint8_t *chain) {
    memset(chain, 0, (size_t)p->n_stages);
    if (e->what == MAKE_STATE_AGAIN) {
        w->tries[e->index]++;
        rebuild(p, w, rm_state_maker(p, e->index), e->position, chain, 0);
        return insert_chain(p, w, e->position, chain, -1, 0);
    }
    w->tries[p->n_states + e->index]++;
    w->runs.step[w->kept[e->index]].option = (int8_t)(e->what == KEEP_AGAIN ? RM_DROP : e->option);
    if (e->what == KEEP_OTHERWISE) return REMAT_OK;
    rebuild(p, w, e->index, e->position, chain, 0);
    return insert_chain(p, w, e->position, chain, e->index, e->option);
}

/* ---- A walk ---------------------------------------------------------------------------------------- */

static bool open_walk(const rm_problem *p, walk *w) {
    size_t states = (size_t)p->n_states, stages = (size_t)p->n_stages;
    w->alive = rm_calloc(states, sizeof *w->alive);
    w->saved_alive = rm_calloc(stages, sizeof *w->saved_alive);
    w->next = rm_calloc(states, sizeof *w->next);
    w->kept = rm_calloc(stages, sizeof *w->kept);
    w->back = rm_calloc(stages, sizeof *w->back);
    w->tries = rm_calloc(states + stages, 1);
    w->edit = rm_calloc(states + stages, sizeof *w->edit);
    return w->alive && w->saved_alive && w->next && w->kept && w->back && w->tries && w->edit;
}

static void close_walk(walk *w) {
    rm_plan_free(&w->runs);
    rm_plan_free(&w->full);
    rm_free(w->alive);
    rm_free(w->saved_alive);
    rm_free(w->next);
    rm_free(w->kept);
    rm_free(w->back);
    rm_free(w->tries);
    rm_free(w->edit);
}

static int by_score(const void *a, const void *b) {
    const edit *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->what != y->what) return (int)x->what - (int)y->what;
    return (x->index > y->index) - (x->index < y->index);
}

static int by_position(const void *a, const void *b) {
    const edit *x = a, *y = b;
    return x->position != y->position ? (x->position > y->position ? -1 : 1) : by_score(a, b);
}

/* Collects the possible edits at the peak, best first. */
static void find_edits(const rm_problem *p, walk *w, uint8_t *chain) {
    look(p, w);
    w->n_edits = 0;
    for (int64_t i = 0; i < p->n_states + p->n_stages; i++) {
        edit *best = &w->edit[w->n_edits];
        *best = (edit){.score = 0};
        if (i < p->n_states)
            weigh_state(p, w, i, chain, best);
        else
            weigh_saved(p, w, i - p->n_states, chain, best);
        w->n_edits += best->score > 0;
    }
    qsort(w->edit, (size_t)w->n_edits, sizeof *w->edit, by_score);
}

/* Applies the first `count` edits from the last position to the first, so that insertions do not shift edits still to
 * come. Undoes them if the peak grew. */
static remat_status try_edits(family *f, walk *w, int64_t count, uint8_t *chain, bool *good) {
    rm_plan before = {0};
    uint64_t peak_bytes = w->verdict.peak_bytes;
    remat_status status = copy_plan(&w->runs, &before);
    qsort(w->edit, (size_t)count, sizeof *w->edit, by_position);
    for (int64_t i = 0; i < count && !status; i++) status = apply(f->problem, w, &w->edit[i], chain);
    *good = !status && !judge(f, w) && w->verdict.peak_bytes <= peak_bytes;
    if (!status && !*good) status = copy_plan(&before, &w->runs);
    if (!status && !*good) status = judge(f, w);
    rm_plan_free(&before);
    return status;
}

/* Number of leading edits, all about equally good, that form one move. */
static int64_t edits_of_a_move(const walk *w) {
    int64_t count = 0;
    for (double bytes = 0; count < w->n_edits && bytes < w->move_bytes; count++) {
        if (w->edit[count].score < w->edit[0].score / 2) break;
        bytes += w->edit[count].bytes;
    }
    return count;
}

/* *moved: an edit was tried. */
static remat_status step(family *f, walk *w, uint8_t *chain, bool *moved) {
    bool good = false;
    find_edits(f->problem, w, chain);
    *moved = w->n_edits > 0;
    if (!*moved) return REMAT_OK;
    return try_edits(f, w, edits_of_a_move(w), chain, &good);
}

/* Walks from the given plan. */
static remat_status walk_from(family *f, rm_plan *runs, int64_t share) {
    const rm_problem *p = f->problem;
    int64_t most_runs = f->request->no_recompute ? p->n_stages : 64 * p->n_stages, until = f->judged_steps + share;
    walk w = {.runs = *runs};
    uint8_t *chain = rm_calloc((size_t)p->n_stages, 1);
    *runs = (rm_plan){0};
    remat_status status = chain && open_walk(p, &w) ? REMAT_OK : rm_fail(REMAT_MEMORY, "out of host memory to plan");
    if (!status) status = judge(f, &w);
    if (!status) status = record(f, &w, most_runs);
    w.move_bytes = (double)w.verdict.peak_bytes * fmax(1.0 / FINE_MOVES, (double)w.full.n_steps / (double)share);
    for (bool moved = f->edits; moved && !status && f->judged_steps < until;) {
        status = step(f, &w, chain, &moved);
        if (!status && moved) status = record(f, &w, most_runs);
    }
    close_walk(&w);
    rm_free(chain);
    return status;
}

/* ---- Starting points -------------------------------------------------------------------------------- */

static void leave_frees_out(rm_plan *plan) {
    int64_t kept = 0;
    for (int64_t i = 0; i < plan->n_steps; i++)
        if (plan->step[i].verb != RM_FREE) plan->step[kept++] = plan->step[i];
    plan->n_steps = kept;
}

/* Even segments, kept in option k or in the nearest option that a stage has. */
static remat_status from_even(family *f, int64_t n, int k, int64_t share) {
    rm_plan plan = {0};
    rm_proposal unused;
    remat_status status = rm_plan_evenly(f->problem, n, &plan, &unused);
    leave_frees_out(&plan);
    for (int64_t i = 0; i < plan.n_steps; i++) {
        rm_step *step = &plan.step[i];
        const rm_stage *stage = &f->problem->stage[step->index];
        if (step->verb == RM_RUN_FORWARD && step->option != RM_DROP)
            step->option = (int8_t)(k < stage->n_options ? k : stage->n_options - 1);
    }
    if (!status) status = walk_from(f, &plan, share);
    rm_plan_free(&plan);
    return status;
}

static int most_options(const rm_problem *p) {
    int most = 1;
    for (int64_t s = 0; s < p->n_stages; s++)
        if (p->stage[s].n_options > most) most = p->stage[s].n_options;
    return most;
}

static remat_status from_all_even(family *f) {
    int64_t stages = f->problem->n_stages, root = llround(sqrt((double)stages)), next;
    int options = most_options(f->problem);
    for (int k = 0; k < options; k++)
        for (int64_t n = 1; n <= stages; n = next) {
            TRY(from_even(f, n, k, JUDGED_STEPS / WALKS * (n == 1 && k == 0 ? SHARES_OF_THE_FIRST : 1)));
            next = n + 1 + (n < 6 ? 0 : n / 2);
            if (n < root && next > root) next = root;
        }
    return REMAT_OK;
}

static int by_bytes(const void *a, const void *b) {
    const rm_member *x = &((const entry *)a)->member, *y = &((const entry *)b)->member;
    if (x->peak_bytes != y->peak_bytes) return x->peak_bytes < y->peak_bytes ? -1 : 1;
    return (x->time_ns > y->time_ns) - (x->time_ns < y->time_ns);
}

/* Removes the members that a smaller one beats. */
static void keep_the_best(family *f) {
    int64_t kept = 0;
    if (f->count) qsort(f->entry, (size_t)f->count, sizeof *f->entry, by_bytes);
    for (int64_t i = 0; i < f->count; i++) {
        if (kept == 0 || f->entry[i].member.time_ns < f->entry[kept - 1].member.time_ns)
            f->entry[kept++] = f->entry[i];
        else
            rm_plan_free(&f->entry[i].runs);
    }
    f->count = kept;
}

static remat_status from_nest(family *f, const rm_footprint *footprint, rm_effort effort) {
    rm_nest *nest;
    remat_status status = rm_nest_make(footprint, effort, &nest);
    int count = status ? 0 : rm_nest_count(nest);
    for (int i = 0; i < NESTED && i < count && !status; i++) {
        rm_plan plan = {0};
        int64_t unused;
        status = rm_nest_write(nest, count <= NESTED ? i : i * (count - 1) / (NESTED - 1), &plan, &unused);
        if (!status) status = walk_from(f, &plan, JUDGED_STEPS / WALKS);
        rm_plan_free(&plan);
    }
    rm_nest_free(nest);
    keep_the_best(f);
    return status;
}

/* The walk from a nest matters more than the quality of the nest. Several cheap nests with different groups find more
 * than one that takes ten times the bytes. Short chains are solved exactly. */
static remat_status from_nested(family *f) {
    static const rm_effort efforts[] = {{12, 24, 64}, {24, 32, 96}, {48, 24, 96}, {96, 8, 48}};
    rm_footprint footprint = {0};
    remat_status status = rm_footprint_make(f->problem, &footprint);
    if (f->problem->n_stages <= SHORT) {
        if (!status) status = from_nest(f, &footprint, (rm_effort){0});
    } else {
        for (size_t i = 0; i < sizeof efforts / sizeof efforts[0] && !status; i++)
            status = from_nest(f, &footprint, efforts[i]);
    }
    rm_footprint_free(&footprint);
    return status;
}

/* ---- Undoing unnecessary edits ----------------------------------------------------------------------- */

/* Something that a plan may not need: a run beyond a stage's first, or an option slower than another. */
typedef struct {
    int64_t position;
    int option; /* the new option of a keeping run; RM_DROP: remove the run, so that the one before it keeps instead */
    uint64_t ns;
} saving;

static int by_ns(const void *a, const void *b) {
    const saving *x = a, *y = b;
    if (x->ns != y->ns) return x->ns > y->ns ? -1 : 1;
    if (x->position != y->position) return x->position > y->position ? -1 : 1;
    return (x->option > y->option) - (x->option < y->option);
}

static uint64_t time_kept(const rm_stage_option *option) { return option->forward.time_ns + option->backward.time_ns; }

/* Fills `list` (at most RM_MAX_OPTIONS entries for each run), largest saving first. `ran`: scratch, one byte for each
 * stage. */
static int64_t find_savings(const rm_problem *p, const rm_plan *runs, uint8_t *ran, saving *list) {
    int64_t count = 0;
    memset(ran, 0, (size_t)p->n_stages);
    for (int64_t i = 0; i < runs->n_steps; i++) {
        rm_step step = runs->step[i];
        const rm_stage *stage = &p->stage[step.index];
        if (step.verb != RM_RUN_FORWARD) continue;
        if (ran[step.index]) list[count++] = (saving){i, RM_DROP, stage->drop.time_ns};
        ran[step.index] = 1;
        for (int k = 0; step.option != RM_DROP && k < stage->n_options; k++) {
            uint64_t now = time_kept(&stage->option[step.option]), other = time_kept(&stage->option[k]);
            if (other < now) list[count++] = (saving){i, k, now - other};
        }
    }
    qsort(list, (size_t)count, sizeof *list, by_ns);
    return count;
}

static void save(rm_plan *runs, const saving *one) {
    rm_step *step = &runs->step[one->position], *before = step;
    if (one->option != RM_DROP) {
        step->option = (int8_t)one->option;
        return;
    }
    do before--;
    while (before->verb != RM_RUN_FORWARD || before->index != step->index);
    if (step->option != RM_DROP) before->option = step->option;
    memmove(step, step + 1, (size_t)(--runs->n_steps - one->position) * sizeof *step);
}

/* Applies the first saving that does not raise the peak. */
static remat_status save_one(family *f, walk *w, uint64_t peak_bytes, int64_t until, bool *saved) {
    rm_plan before = {0};
    saving *list = rm_calloc((size_t)w->runs.n_steps * RM_MAX_OPTIONS, sizeof *list);
    uint8_t *ran = rm_calloc((size_t)f->problem->n_stages, 1);
    remat_status status =
        list && ran ? copy_plan(&w->runs, &before) : rm_fail(REMAT_MEMORY, "out of host memory to plan");
    int64_t count = status ? 0 : find_savings(f->problem, &w->runs, ran, list);
    *saved = false;
    for (int64_t i = 0; i < count && !*saved && !status && f->judged_steps < until; i++) {
        save(&w->runs, &list[i]);
        *saved = !judge(f, w) && w->verdict.peak_bytes <= peak_bytes;
        if (!*saved) status = copy_plan(&before, &w->runs);
    }
    rm_plan_free(&before);
    rm_free(list);
    rm_free(ran);
    return status;
}

static remat_status way_back(family *f, int64_t member, int64_t share) {
    walk w = {0};
    int64_t until = f->judged_steps + share;
    uint64_t peak_bytes = f->entry[member].member.peak_bytes;
    remat_status status = copy_plan(&f->entry[member].runs, &w.runs);
    for (bool saved = true; saved && !status;) {
        status = save_one(f, &w, peak_bytes, until, &saved);
        if (!status && saved) status = record(f, &w, INT64_MAX);
    }
    rm_plan_free(&w.runs);
    rm_plan_free(&w.full);
    return status;
}

static remat_status from_members(family *f) {
    keep_the_best(f);
    for (int64_t i = 0, count = f->count; i < count; i++) TRY(way_back(f, i, JUDGED_STEPS / count));
    return REMAT_OK;
}

/* ---- The family --------------------------------------------------------------------------------------- */

static remat_status write(const rm_family *family_, const rm_problem *problem, int64_t i, rm_plan *plan,
                          rm_proposal *proposal) {
    const family *f = family_->own;
    proposal->segments = 1 + f->entry[i].member.runs - problem->n_stages;
    if (proposal->segments > problem->n_stages) proposal->segments = problem->n_stages;
    TRY(copy_plan(&f->entry[i].runs, plan));
    return rm_plan_free_dead(problem, plan);
}

static void free_own(rm_family *family_) {
    family *f = family_->own;
    for (int64_t i = 0; f && i < f->count; i++) rm_plan_free(&f->entry[i].runs);
    if (f) rm_free(f->entry);
    rm_free(f);
}

remat_status rm_family_evict(const rm_problem *problem, const rm_plan_request *request, rm_family *out) {
    rm_footprint footprint = {0};
    *out = (rm_family){.write = write, .free_own = free_own};
    TRY(rm_footprint_make(problem, &footprint));
    bool exact = footprint.exact;
    rm_footprint_free(&footprint);
    if (exact) return REMAT_OK; /* rm_family_recompute finds better plans */
    family *f = out->own = rm_calloc(1, sizeof *f);
    REQUIRE(f, MEMORY, "out of host memory to plan");
    *f = (family){.problem = problem, .request = request, .edits = problem->n_stages <= RM_EVICT_STAGES};
    remat_status status = from_all_even(f);
    if (!status && f->edits) status = from_nested(f);
    if (!status && f->edits) status = from_members(f);
    keep_the_best(f);
    out->member = rm_calloc((size_t)f->count + 1, sizeof *out->member);
    if (!out->member) status = rm_fail(REMAT_MEMORY, "out of host memory for %lld plans", (long long)f->count);
    for (int64_t i = 0; out->member && i < f->count; i++) out->member[i] = f->entry[i].member;
    out->count = f->count;
    if (status) rm_family_free(out);
    return status;
}
