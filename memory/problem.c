/* problem.c: allocates and checks a problem. Its text form is in problem_text.c. */
#include "memory/problem.h"

#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"

/* Sums below this limit can be added, doubled and aligned without overflow. */
#define TOO_MUCH ((uint64_t)1 << 60)

const char *const rm_option_names[] = {"all", "lean", "leaner", "boundary", NULL};

static bool lists_alloc(rm_lists *lists, int64_t count, int64_t n_items) {
    lists->start = rm_calloc((size_t)count + 1, sizeof *lists->start);
    lists->item = rm_calloc((size_t)n_items, sizeof *lists->item);
    return lists->start && lists->item;
}

static void lists_free(rm_lists *lists) {
    rm_free(lists->start);
    rm_free(lists->item);
}

remat_status rm_problem_alloc(rm_problem *problem, rm_extent extent) {
    *problem = (rm_problem){.n_stages = extent.stages, .n_states = extent.states, .n_pieces = extent.pieces};
    size_t stages = (size_t)extent.stages, states = (size_t)extent.states;
    problem->stage = rm_calloc(stages, sizeof *problem->stage);
    problem->piece = rm_calloc((size_t)extent.pieces, sizeof *problem->piece);
    problem->made = rm_calloc(stages + 1, sizeof *problem->made);
    problem->state = rm_calloc(states + 1, sizeof *problem->state);
    problem->dstate = rm_calloc(states + 1, sizeof *problem->dstate);
    bool lists = lists_alloc(&problem->reads, extent.stages, extent.reads);
    lists = lists_alloc(&problem->keeps, extent.stages, extent.keeps) && lists;
    lists = lists_alloc(&problem->adds, extent.stages, extent.adds) && lists;
    if (problem->stage && problem->piece && problem->made && problem->state && problem->dstate && lists)
        return REMAT_OK;
    rm_problem_free(problem);
    FAIL(MEMORY, "out of host memory for %lld stages and %lld pieces; use a larger tile or fewer cuts",
         (long long)extent.stages, (long long)extent.pieces);
}

void rm_problem_free(rm_problem *problem) {
    rm_free(problem->stage);
    rm_free(problem->piece);
    rm_free(problem->made);
    rm_free(problem->state);
    rm_free(problem->dstate);
    lists_free(&problem->reads);
    lists_free(&problem->keeps);
    lists_free(&problem->adds);
    *problem = (rm_problem){0};
}

static void copy_list(rm_lists *to, const rm_lists *from, int64_t n) {
    memcpy(to->start, from->start, (size_t)(n + 1) * sizeof *to->start);
    if (from->start[n]) memcpy(to->item, from->item, (size_t)from->start[n] * sizeof *to->item);
}

remat_status rm_problem_copy(const rm_problem *p, rm_problem *to) {
    int64_t n = p->n_stages;
    size_t starts = (size_t)(p->n_states + 1) * sizeof *p->state;
    TRY(rm_problem_alloc(to, (rm_extent){.stages = n,
                                         .states = p->n_states,
                                         .pieces = p->n_pieces,
                                         .reads = p->reads.start[n],
                                         .keeps = p->keeps.start[n],
                                         .adds = p->adds.start[n]}));
    memcpy(to->stage, p->stage, (size_t)n * sizeof *p->stage);
    if (p->n_pieces) memcpy(to->piece, p->piece, (size_t)p->n_pieces * sizeof *p->piece);
    memcpy(to->made, p->made, (size_t)(n + 1) * sizeof *p->made);
    memcpy(to->state, p->state, starts);
    memcpy(to->dstate, p->dstate, starts);
    copy_list(&to->reads, &p->reads, n);
    copy_list(&to->keeps, &p->keeps, n);
    copy_list(&to->adds, &p->adds, n);
    to->n_resident = p->n_resident;
    memcpy(to->resident, p->resident, sizeof p->resident);
    to->tier = p->tier;
    return REMAT_OK;
}

/* ---- Questions ---------------------------------------------------------------------------------- */

static uint64_t lists_bytes(const rm_lists *lists, int64_t n) {
    return (uint64_t)(n + 1) * sizeof *lists->start + (uint64_t)lists->start[n] * sizeof *lists->item;
}

uint64_t rm_problem_bytes(const rm_problem *p) {
    if (!p->n_stages) return 0;
    uint64_t numbers = (uint64_t)(p->n_stages + 1) + 2 * (uint64_t)(p->n_states + 1);
    return (uint64_t)p->n_stages * sizeof *p->stage + (uint64_t)p->n_pieces * sizeof *p->piece +
           numbers * sizeof *p->made + lists_bytes(&p->reads, p->n_stages) + lists_bytes(&p->keeps, p->n_stages) +
           lists_bytes(&p->adds, p->n_stages);
}

uint64_t rm_problem_resident_bytes(const rm_problem *problem) {
    uint64_t bytes = 0;
    for (int i = 0; i < problem->n_resident; i++) bytes += rm_align_up(problem->resident[i].bytes);
    return bytes;
}

static uint64_t pieces_bytes(const rm_problem *problem, int64_t from, int64_t to) {
    uint64_t bytes = 0;
    for (int64_t i = from; i < to; i++) bytes += problem->piece[i].bytes;
    return bytes;
}

uint64_t rm_state_bytes(const rm_problem *problem, int64_t i) {
    return pieces_bytes(problem, problem->state[i], problem->state[i + 1]);
}

uint64_t rm_dstate_bytes(const rm_problem *problem, int64_t i) {
    return pieces_bytes(problem, problem->dstate[i], problem->dstate[i + 1]);
}

uint64_t rm_made_bytes(const rm_problem *problem, int64_t s) {
    return pieces_bytes(problem, problem->state[problem->made[s]], problem->state[problem->made[s + 1]]);
}

int64_t rm_state_maker(const rm_problem *problem, int64_t i) {
    int64_t low = 0, high = problem->n_stages; /* made[low] <= i < made[high] */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        *(problem->made[middle] <= i ? &low : &high) = middle;
    }
    return low;
}

bool rm_in_list(const rm_lists *lists, int64_t list, int64_t item) {
    for (int64_t k = lists->start[list]; k < lists->start[list + 1]; k++)
        if (lists->item[k] == item) return true;
    return false;
}

void rm_last_adders(const rm_problem *problem, int32_t *last) {
    for (int64_t i = 0; i < problem->n_states; i++) last[i] = -1;
    for (int64_t s = 0; s < problem->n_stages; s++)
        for (int64_t k = problem->adds.start[s]; k < problem->adds.start[s + 1]; k++)
            last[problem->adds.item[k]] = (int32_t)s;
}

/* ---- Checking ----------------------------------------------------------------------------------- */

/* Adds, and saturates at TOO_MUCH. */
static void add(uint64_t *sum, uint64_t term) {
    *sum = term < TOO_MUCH && *sum + term < TOO_MUCH ? *sum + term : TOO_MUCH;
}

/* starts[0] <= starts[1] <= ... */
static remat_status check_ascent(const int64_t *starts, int64_t count, int64_t first, int64_t last, const char *what) {
    REQUIRE(starts && starts[0] == first, INVALID, "%s 0 does not begin at %lld", what, (long long)first);
    for (int64_t i = 0; i < count; i++)
        REQUIRE(starts[i] <= starts[i + 1], INVALID, "%s %lld begins at %lld and ends before it", what, (long long)i,
                (long long)starts[i]);
    REQUIRE(starts[count] == last, INVALID, "%s %lld does not end at %lld", what, (long long)count - 1,
            (long long)last);
    return REMAT_OK;
}

static remat_status check_lists(const rm_problem *problem, const rm_lists *lists, const char *what) {
    REQUIRE(lists->start, INVALID, "there are no lists of %s", what);
    TRY(check_ascent(lists->start, problem->n_stages, 0, lists->start[problem->n_stages], what));
    for (int64_t s = 0; s < problem->n_stages; s++)
        for (int64_t k = lists->start[s]; k < lists->start[s + 1]; k++) {
            int32_t state = lists->item[k];
            REQUIRE(state >= 0 && state < problem->made[s + 1], INVALID,
                    "%s %lld has state %d, which no earlier stage makes", what, (long long)s, (int)state);
            REQUIRE(k == lists->start[s] || state > lists->item[k - 1], INVALID,
                    "%s %lld has state %d twice or out of order", what, (long long)s, (int)state);
        }
    return REMAT_OK;
}

/* No list may contain a state that its own stage makes. */
static remat_status check_before(const rm_problem *problem, const rm_lists *lists, const char *what) {
    for (int64_t s = 0; s < problem->n_stages; s++) {
        int64_t end = lists->start[s + 1];
        REQUIRE(end == lists->start[s] || lists->item[end - 1] < problem->made[s], INVALID,
                "%s %lld has state %d, which the stage itself makes", what, (long long)s, (int)lists->item[end - 1]);
    }
    return REMAT_OK;
}

static remat_status check_states(const rm_problem *problem) {
    TRY(check_ascent(problem->made, problem->n_stages, 0, problem->n_states, "made"));
    REQUIRE(problem->state, INVALID, "there are no pieces of states");
    int64_t middle = problem->state[problem->n_states];
    TRY(check_ascent(problem->state, problem->n_states, 0, middle, "state"));
    TRY(check_ascent(problem->dstate, problem->n_states, middle, problem->n_pieces, "dstate"));
    TRY(check_lists(problem, &problem->reads, "reads"));
    TRY(check_before(problem, &problem->reads, "reads"));
    TRY(check_lists(problem, &problem->keeps, "keeps"));
    TRY(check_lists(problem, &problem->adds, "adds"));
    return check_before(problem, &problem->adds, "adds");
}

/* Every gradient with bytes needs a stage that adds to it. */
static remat_status check_gradients(const rm_problem *problem) {
    int32_t *last = rm_malloc((size_t)problem->n_states * sizeof *last);
    REQUIRE(last || !problem->n_states, MEMORY, "out of host memory to check %lld states",
            (long long)problem->n_states);
    rm_last_adders(problem, last);
    int64_t wrong = -1;
    for (int64_t i = 0; i < problem->n_states; i++)
        if (last[i] < 0 && rm_dstate_bytes(problem, i)) wrong = i;
    rm_free(last);
    REQUIRE(wrong < 0, INVALID, "dstate %lld has bytes, but no stage adds to it", (long long)wrong);
    return REMAT_OK;
}

static bool known_option(const char *name) {
    for (int i = 0; name && rm_option_names[i]; i++)
        if (!strcmp(name, rm_option_names[i])) return true;
    return false;
}

static remat_status check_stage(const rm_stage *stage, int64_t s, uint64_t *bytes, uint64_t *time_ns) {
    REQUIRE(stage->n_options >= 1 && stage->n_options <= RM_MAX_OPTIONS, INVALID,
            "stage %lld has %d options; a stage must have 1 to %d", (long long)s, stage->n_options, RM_MAX_OPTIONS);
    add(bytes, stage->drop.scratch_bytes);
    add(time_ns, stage->drop.time_ns);
    for (int k = 0; k < stage->n_options; k++) {
        const rm_stage_option *option = &stage->option[k];
        REQUIRE(known_option(option->name), INVALID, "stage %lld option %d is called '%s'; see rm_option_names",
                (long long)s, k, option->name ? option->name : "(null)");
        for (int j = 0; j < k; j++)
            REQUIRE(strcmp(option->name, stage->option[j].name), INVALID, "stage %lld has two options called '%s'",
                    (long long)s, option->name);
        add(bytes, option->saved_bytes);
        add(bytes, option->forward.scratch_bytes);
        add(bytes, option->backward.scratch_bytes);
        add(time_ns, option->forward.time_ns);
        add(time_ns, option->backward.time_ns);
    }
    return REMAT_OK;
}

/* A name is the rest of a line of text, so it must be printable and must not begin or end with a space. */
static bool plain_name(const char *name, size_t size) {
    size_t length = strnlen(name, size);
    if (length == 0 || length == size || name[0] == ' ' || name[length - 1] == ' ') return false;
    for (size_t i = 0; i < length; i++)
        if (name[i] < ' ' || name[i] > '~' || name[i] == '#') return false;
    return true;
}

static remat_status check_resident(const rm_problem *problem, uint64_t *bytes) {
    int most = (int)(sizeof problem->resident / sizeof problem->resident[0]);
    REQUIRE(problem->n_resident >= 0 && problem->n_resident <= most, INVALID,
            "there are %d resident blocks; there must be 0 to %d", problem->n_resident, most);
    for (int i = 0; i < problem->n_resident; i++) {
        const rm_resident *resident = &problem->resident[i];
        REQUIRE(plain_name(resident->name, sizeof resident->name), INVALID,
                "resident block %d needs a name of 1 to %zu printable characters", i, sizeof resident->name - 1);
        add(bytes, resident->bytes);
    }
    return REMAT_OK;
}

static remat_status check_tier(const rm_tier *tier) {
    bool saves = tier->save_bytes_per_s > 0, loads = tier->load_bytes_per_s > 0;
    REQUIRE(saves == loads && (saves || (tier->latency_ns == 0 && tier->cost_ns_per_mib == 0 && tier->host_bytes == 0)),
            INVALID,
            "the second tier saves %llu and loads %llu bytes per second; both must be above 0, or all of its numbers 0",
            (unsigned long long)tier->save_bytes_per_s, (unsigned long long)tier->load_bytes_per_s);
    REQUIRE(tier->latency_ns < TOO_MUCH && tier->cost_ns_per_mib < TOO_MUCH && tier->host_bytes < TOO_MUCH, INVALID,
            "the second tier's latency is %llu ns, its cost %llu ns per MiB, and its memory %llu bytes; each must be "
            "below 2^60",
            (unsigned long long)tier->latency_ns, (unsigned long long)tier->cost_ns_per_mib,
            (unsigned long long)tier->host_bytes);
    return REMAT_OK;
}

remat_status rm_problem_check(const rm_problem *problem) {
    int64_t n_stages = problem->n_stages;
    REQUIRE(n_stages >= 1 && n_stages < INT32_MAX, INVALID, "there are %lld stages; there must be 1 to %d",
            (long long)n_stages, INT32_MAX - 1);
    REQUIRE(problem->n_pieces >= 0 && problem->n_pieces < INT32_MAX, INVALID,
            "there are %lld pieces; the limits are 0 and %d", (long long)problem->n_pieces, INT32_MAX - 1);
    REQUIRE(problem->n_states >= 0 && problem->n_states < INT32_MAX, INVALID,
            "there are %lld states; the limits are 0 and %d", (long long)problem->n_states, INT32_MAX - 1);
    TRY(check_states(problem));
    TRY(check_gradients(problem));
    uint64_t bytes = 0, time_ns = 0;
    for (int64_t i = 0; i < problem->n_pieces; i++) {
        REQUIRE(problem->piece[i].bytes % RM_ALIGN == 0, INVALID, "piece %lld has %llu bytes, not a multiple of %d",
                (long long)i, (unsigned long long)problem->piece[i].bytes, RM_ALIGN);
        add(&bytes, problem->piece[i].bytes);
    }
    for (int64_t s = 0; s < n_stages; s++) TRY(check_stage(&problem->stage[s], s, &bytes, &time_ns));
    TRY(check_resident(problem, &bytes));
    TRY(check_tier(&problem->tier));
    REQUIRE(bytes < TOO_MUCH && time_ns < TOO_MUCH, INVALID,
            "the stages' bytes or nanoseconds add up to 2^60 or more; make a size smaller");
    return REMAT_OK;
}
