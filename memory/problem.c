/* problem.c: a problem's arrays, and whether its numbers make sense. Its text form is in problem_text.c. */
#include "memory/problem.h"

#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"

/* Sums below this can be added, doubled and aligned without a thought of overflow. */
#define TOO_MUCH ((uint64_t)1 << 60)

const char *const rm_option_names[] = {"all", "lean", "boundary", NULL};

static bool lists_alloc(rm_lists *lists, int64_t count, int64_t n_items) {
    lists->start = rm_calloc((size_t)count + 1, sizeof *lists->start);
    lists->item = rm_calloc((size_t)n_items, sizeof *lists->item);
    return lists->start && lists->item;
}

static void lists_free(rm_lists *lists) {
    rm_free(lists->start);
    rm_free(lists->item);
}

remat_status rm_problem_alloc(rm_problem *problem, int64_t n_stages, int64_t n_pieces, int64_t n_state_items,
                              int64_t n_dstate_items, int64_t n_saved_items) {
    *problem = (rm_problem){.n_stages = n_stages, .n_pieces = n_pieces};
    problem->stage = rm_calloc((size_t)n_stages, sizeof *problem->stage);
    problem->piece = rm_calloc((size_t)n_pieces, sizeof *problem->piece);
    bool lists = lists_alloc(&problem->state, n_stages + 1, n_state_items);
    lists = lists_alloc(&problem->dstate, n_stages + 1, n_dstate_items) && lists;
    lists = lists_alloc(&problem->saved, n_stages, n_saved_items) && lists;
    if (problem->stage && problem->piece && lists) return REMAT_OK;
    rm_problem_free(problem);
    FAIL(MEMORY, "out of host memory for a chain of %lld stages and %lld pieces; use a larger tile or fewer cuts",
         (long long)n_stages, (long long)n_pieces);
}

void rm_problem_free(rm_problem *problem) {
    rm_free(problem->stage);
    rm_free(problem->piece);
    lists_free(&problem->state);
    lists_free(&problem->dstate);
    lists_free(&problem->saved);
    *problem = (rm_problem){0};
}

uint64_t rm_problem_resident_bytes(const rm_problem *problem) {
    uint64_t bytes = 0;
    for (int i = 0; i < problem->n_resident; i++) bytes += rm_align_up(problem->resident[i].bytes);
    return bytes;
}

uint64_t rm_list_bytes(const rm_problem *problem, const rm_lists *lists, int64_t i) {
    uint64_t bytes = 0;
    for (int64_t k = lists->start[i]; k < lists->start[i + 1]; k++) bytes += problem->piece[lists->item[k]].bytes;
    return bytes;
}

/* ---- Checking ----------------------------------------------------------------------------------- */

/* Adds, and stops at TOO_MUCH. */
static void add(uint64_t *sum, uint64_t term) {
    *sum = term < TOO_MUCH && *sum + term < TOO_MUCH ? *sum + term : TOO_MUCH;
}

static remat_status check_lists(const rm_problem *problem, const rm_lists *lists, int64_t count, const char *what) {
    REQUIRE(lists->start && lists->start[0] == 0, INVALID, "the lists of %s do not begin at 0", what);
    for (int64_t i = 0; i < count; i++)
        REQUIRE(lists->start[i] <= lists->start[i + 1], INVALID, "list %s %lld begins at item %lld and ends before it",
                what, (long long)i, (long long)lists->start[i]);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = lists->start[i]; k < lists->start[i + 1]; k++)
            REQUIRE(lists->item[k] >= 0 && lists->item[k] < problem->n_pieces, INVALID,
                    "%s %lld has piece %d; there are pieces 0 to %lld", what, (long long)i, (int)lists->item[k],
                    (long long)problem->n_pieces - 1);
    return REMAT_OK;
}

static bool known_option(const char *name) {
    for (int i = 0; name && rm_option_names[i]; i++)
        if (!strcmp(name, rm_option_names[i])) return true;
    return false;
}

static remat_status check_stage(const rm_stage *stage, int64_t s, uint64_t *bytes, uint64_t *time_ns) {
    REQUIRE(stage->n_options >= 1 && stage->n_options <= RM_MAX_OPTIONS, INVALID,
            "stage %lld has %d options; a stage has 1 to %d", (long long)s, stage->n_options, RM_MAX_OPTIONS);
    add(bytes, stage->drop.scratch_bytes);
    add(time_ns, stage->drop.time_ns);
    for (int k = 0; k < stage->n_options; k++) {
        const rm_option *option = &stage->option[k];
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

/* A name is the rest of a line in the text, so it is printable and does not begin or end with a space. */
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
            "there are %d resident blocks; there may be 0 to %d", problem->n_resident, most);
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
            INVALID, "the second tier saves %llu and loads %llu bytes a second; both are above 0, or its numbers all 0",
            (unsigned long long)tier->save_bytes_per_s, (unsigned long long)tier->load_bytes_per_s);
    REQUIRE(
        tier->latency_ns < TOO_MUCH && tier->cost_ns_per_mib < TOO_MUCH && tier->host_bytes < TOO_MUCH, INVALID,
        "the second tier's latency is %llu ns, its cost %llu ns a MiB, and its memory %llu bytes; none may be 2^60 or "
        "more",
        (unsigned long long)tier->latency_ns, (unsigned long long)tier->cost_ns_per_mib,
        (unsigned long long)tier->host_bytes);
    return REMAT_OK;
}

remat_status rm_problem_check(const rm_problem *problem) {
    int64_t n_stages = problem->n_stages;
    REQUIRE(n_stages >= 1 && n_stages < INT32_MAX, INVALID, "the chain has %lld stages; it needs 1 to %d",
            (long long)n_stages, INT32_MAX - 1);
    REQUIRE(problem->n_pieces >= 0 && problem->n_pieces < INT32_MAX, INVALID,
            "there are %lld pieces; 0 to %d can be told"
            " apart",
            (long long)problem->n_pieces, INT32_MAX - 1);
    TRY(check_lists(problem, &problem->state, n_stages + 1, "state"));
    TRY(check_lists(problem, &problem->dstate, n_stages + 1, "dstate"));
    TRY(check_lists(problem, &problem->saved, n_stages, "saved"));
    REQUIRE(problem->dstate.start[n_stages] == problem->dstate.start[n_stages + 1], INVALID,
            "dstate %lld has pieces; nothing follows the last stage, so it must be empty", (long long)n_stages);
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
            "the chain's bytes or nanoseconds add up to 2^60 or more; make a size smaller");
    return REMAT_OK;
}
