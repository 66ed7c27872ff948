/* budget.c: see budget.h. */
#include "engine/session/budget.h"
#include "engine/session/parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* ---- Sums ----------------------------------------------------------------------------------------------------- */

/* All tables but those of the training schedule. */
static uint64_t other_tables(const remat_session *s) {
    const rm_runner *r = &s->runner;
    uint64_t stages = (uint64_t)s->chain.n_stages, pieces = (uint64_t)s->chain.problem.n_pieces + 1;
    return rm_problem_bytes(&s->chain.problem) + rm_problem_bytes(&s->chain.evaluation) +
           rm_schedule_table_bytes(&s->evaluation) + (s->verify_recompute ? rm_verify_bytes(&s->chain) : 0) +
           rm_parts_table_bytes(s) + pieces * sizeof *r->piece +
           stages * (sizeof *r->saved + sizeof *r->kept + sizeof *s->loss) + rm_chain_program_bytes(&s->chain) +
           rm_session_sums_bytes(s);
}

/* If gradients are sent in another type than float, each bucket has a send buffer (remat_ranks.prepare). */
static uint64_t wire_bytes(const remat_session *s, const rm_chain *chain) {
    const rm_buckets *b = &chain->at.buckets;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), each = (uint64_t)s->ranks.wire_bytes;
    uint64_t bytes = 0;
    for (int32_t i = 0; i < b->n && !s->inference; i++)
        bytes += ((uint64_t)b->item[i].count * each + page - 1) / page * page;
    return bytes;
}

uint64_t rm_session_network_bytes(const remat_session *s, const rm_chain *chain) {
    return chain->at.bytes + rm_chain_program_bytes(chain) + (uint64_t)chain->at.buckets.n * sizeof *s->bucket +
           wire_bytes(s, chain);
}

uint64_t rm_session_workspace_bytes(const remat_session *s) {
    uint64_t device = s->api->overhead_bytes ? s->api->overhead_bytes(s->device) : 0;
    return wire_bytes(s, &s->chain) + device + s->ranks.device_bytes + s->pipeline.device_bytes;
}

uint64_t rm_session_tables_bytes(const remat_session *s) {
    return other_tables(s) + rm_schedule_table_bytes(&s->training);
}

static uint64_t block_bytes(const remat_session *s) {
    uint64_t training = s->training.placement.bytes, evaluation = s->evaluation.placement.bytes;
    return training > evaluation ? training : evaluation;
}

uint64_t rm_session_budgeted_bytes(const remat_session *s) {
    return s->chain.at.bytes + block_bytes(s) + rm_session_workspace_bytes(s) + rm_session_tables_bytes(s);
}

static uint64_t least_network_bytes(const remat_session *s) {
    uint64_t least = rm_session_network_bytes(s, &s->chain);
    for (int r = 0; s->of_rank && r < s->pipeline.size; r++)
        if (s->of_rank[r].network_bytes < least) least = s->of_rank[r].network_bytes;
    return least;
}

uint64_t rm_session_allowance(const remat_session *s, uint64_t budget) {
    uint64_t own = rm_session_network_bytes(s, &s->chain),
             all = s->chain.at.bytes + rm_session_workspace_bytes(s) + other_tables(s);
    uint64_t others = all - own + least_network_bytes(s);
    if (!budget) return 0;
    return budget > others ? budget - others : 1;
}

/* ---- The smallest budget that would suffice ------------------------------------------------------------------- */

static _Thread_local uint64_t smallest;

uint64_t remat_smallest_budget(void) { return smallest; }

/* ---- The message ---------------------------------------------------------------------------------------------- */

typedef struct {
    char name[64];
    uint64_t bytes;
} buffer;

/* Keeps the three largest, in descending order. */
enum { LARGEST = 3 };
static void remember(buffer *largest, buffer b) {
    for (int i = 0; i < LARGEST; i++)
        if (b.bytes > largest[i].bytes) {
            buffer lesser = largest[i];
            largest[i] = b;
            b = lesser;
        }
}

static void name_piece(const rm_problem *problem, int32_t piece, buffer *b) {
    bool gradient = piece >= problem->dstate[0];
    const int64_t *start = gradient ? problem->dstate : problem->state;
    int64_t state = 0;
    while (start[state + 1] <= piece) state++;
    snprintf(b->name, sizeof b->name, "%s %" PRId64, gradient ? "gradient of state" : "state", state);
}

static void name_buffer(const rm_problem *problem, const rm_lifetime *life, buffer *b) {
    if (life->kind == RM_BUFFER_PIECE)
        name_piece(problem, life->index, b);
    else
        snprintf(b->name, sizeof b->name, "%s stage %d",
                 life->kind == RM_BUFFER_SAVED ? "saved values of" : "scratch of", life->index);
}

static void find_largest_resident(const rm_problem *problem, buffer *largest) {
    for (int i = 0; i < problem->n_resident; i++) {
        buffer b = {.bytes = problem->resident[i].bytes};
        snprintf(b.name, sizeof b.name, "%s", problem->resident[i].name);
        remember(largest, b);
    }
}

static void find_largest_at_peak(const rm_problem *problem, const rm_schedule *schedule, buffer *largest) {
    for (int64_t i = 0; i < schedule->lifetimes.count; i++) {
        const rm_lifetime *life = &schedule->lifetimes.item[i];
        bool alive = life->first <= schedule->verdict.peak_step && schedule->verdict.peak_step <= life->last;
        buffer b = {.bytes = life->bytes};
        if (!alive || b.bytes <= largest[LARGEST - 1].bytes) continue;
        name_buffer(problem, life, &b);
        remember(largest, b);
    }
}

enum { LIST_TEXT = 320 };
static const char *list_text(const buffer *largest, char *text) {
    *text = 0;
    for (int i = 0, n = 0; i < LARGEST && largest[i].bytes; i++)
        n += snprintf(text + n, LIST_TEXT - (size_t)n, "%s%s %" PRIu64, i ? ", " : "", largest[i].name,
                      largest[i].bytes);
    return text;
}

enum { RANK_TEXT = 64 };
static const char *rank_text(const remat_session *s, int rank, char text[RANK_TEXT]) {
    *text = 0;
    if (s->pipeline.size > 1) snprintf(text, RANK_TEXT, " on rank %d of the pipeline", rank);
    return text;
}

static const char *workspace_text(const remat_session *s, char text[RANK_TEXT]) {
    uint64_t bytes = rm_session_workspace_bytes(s);
    *text = 0;
    if (bytes) snprintf(text, RANK_TEXT, ", library workspaces %" PRIu64 " of them", bytes);
    return text;
}

remat_status rm_session_refuse(remat_session *s, uint64_t budget) {
    const rm_schedule *schedule = &s->training;
    buffer resident[LARGEST] = {0}, alive[LARGEST] = {0};
    char step[RM_STEP_TEXT], resident_text[LIST_TEXT], alive_text[LIST_TEXT], on[RANK_TEXT], libraries[RANK_TEXT];
    int rank;
    TRY(rm_session_neediest_rank(s, &rank, &smallest));
    const rm_problem *problem = s->of_rank ? &s->of_rank[rank].problem : &s->chain.problem;
    find_largest_resident(problem, resident);
    find_largest_at_peak(problem, schedule, alive);
    FAIL(INFEASIBLE,
         "a memory budget of %" PRIu64 " bytes is too small: strategy %s needs at least %" PRIu64
         " bytes%s here%s. %" PRIu64 " of them are allocated throughout (largest: %s); the peak is at step %" PRId64
         " of %" PRId64 " (%s), where the largest buffers are %s",
         budget, s->strategy->name, smallest, rank_text(s, rank, on), workspace_text(s, libraries),
         s->of_rank ? s->of_rank[rank].resident_bytes : s->chain.at.bytes, list_text(resident, resident_text),
         schedule->verdict.peak_step, schedule->plan.n_steps,
         rm_step_text(problem, schedule->plan.step[schedule->verdict.peak_step], step), list_text(alive, alive_text));
}

remat_status rm_session_check_budget(remat_session *s, uint64_t budget) {
    uint64_t needed;
    char on[RANK_TEXT];
    int rank;
    if (!budget) return REMAT_OK;
    TRY(rm_session_neediest_rank(s, &rank, &needed));
    if (needed <= budget) return REMAT_OK;
    smallest = needed;
    FAIL(INFEASIBLE, "a memory budget of %" PRIu64 " bytes is too small: %s needs %" PRIu64 " bytes%s", budget,
         s->inference ? "inference" : "this plan, with its evaluation,", needed, rank_text(s, rank, on));
}
