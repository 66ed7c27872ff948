/* chain_problem.c: describes the stages as numbers for the planner, once for training and once for evaluation. Main
 * entries: rm_chain_write_problems; rm_chain_guess_times and rm_chain_take_times, to update times. */
#include "engine/chain/chain.h"

#include <stdlib.h>
#include <string.h>

#include "memory/host.h"

/* ---- States that programs use ---------------------------------------------------------------------------------- */

static bool precedes(const rm_where *a, const rm_where *b) {
    if (a->piece != b->piece) return a->piece < b->piece;
    if (a->stride != b->stride) return a->stride < b->stride;
    return a->shift < b->shift;
}

static int by_piece(const void *a, const void *b) {
    const rm_where *x = a, *y = b;
    return precedes(x, y) ? -1 : precedes(y, x);
}

/* Sorts operands and removes duplicates. */
static void settle(rm_touched *touched) {
    int64_t kept = 0;
    if (touched->n) qsort(touched->item, (size_t)touched->n, sizeof *touched->item, by_piece);
    for (int64_t i = 0; i < touched->n; i++)
        if (!i || precedes(&touched->item[kept - 1], &touched->item[i])) touched->item[kept++] = touched->item[i];
    touched->n = touched->capacity = kept;
    touched->item = rm_shrink(touched->item, (size_t)kept * sizeof *touched->item);
}

static remat_status touch(rm_touched *touched, const rm_where *where) {
    REQUIRE(rm_grow(&touched->item, &touched->capacity, touched->n + 1, sizeof *touched->item), MEMORY,
            "out of memory for the list of states that a stage reads");
    touched->item[touched->n++] = *where;
    return REMAT_OK;
}

/* Whether the piece belongs to a state that the stage itself makes, or to the gradient of such a state. */
static bool is_own(const rm_chain *chain, const rm_stage_kind *kind, const rm_where *where) {
    const rm_sweep *sweep = &chain->sweep[kind->sweep];
    bool gradient = where->piece >= rm_chain_state_pieces(chain);
    int64_t begin = gradient ? sweep->dpiece : sweep->piece, each = gradient ? sweep->dpieces : sweep->pieces;
    int64_t tail = gradient ? sweep->n_tail_gradients : sweep->n_tail_crossing;
    return where->shift == 0 && where->piece >= begin && where->piece < begin + sweep->count * each + tail;
}

/* Adds the states of a program to `states` (those that the stage makes only if `own` is set), and the gradients of
 * other stages' states to `gradients`, which may be NULL. */
static remat_status touch_all(const rm_chain *chain, const rm_stage_kind *kind, const rm_program *program, bool own,
                              rm_touched *states, rm_touched *gradients) {
    int64_t n_states = rm_chain_state_pieces(chain);
    for (int32_t i = 0; i < program->n_where; i++) {
        const rm_where *where = &program->where[i];
        if (where->space != RM_AT_PIECE) continue;
        bool its_own = is_own(chain, kind, where);
        if (where->piece < n_states && (own || !its_own)) TRY(touch(states, where));
        if (where->piece >= n_states && gradients && !its_own) TRY(touch(gradients, where));
    }
    return REMAT_OK;
}

static remat_status find_touched(const rm_chain *chain, rm_stage_kind *kind) {
    TRY(touch_all(chain, kind, &kind->evaluate, false, &kind->evaluation_reads, NULL));
    TRY(touch_all(chain, kind, &kind->drop, false, &kind->reads, NULL));
    for (int k = 0; k < kind->n_options; k++) {
        TRY(touch_all(chain, kind, &kind->option[k].forward, false, &kind->reads, NULL));
        TRY(touch_all(chain, kind, &kind->option[k].backward, true, &kind->keeps, &kind->adds));
    }
    settle(&kind->evaluation_reads);
    settle(&kind->reads);
    settle(&kind->keeps);
    settle(&kind->adds);
    return REMAT_OK;
}

/* ---- States and lists ------------------------------------------------------------------------------------------ */

static void fill_states(const rm_chain *chain, rm_problem *problem) {
    int64_t i = 0, piece = 0, dpiece = rm_chain_state_pieces(chain), stage = 0;
    for (int32_t w = 0; w < chain->n_sweeps; w++) {
        const rm_sweep *sweep = &chain->sweep[w];
        for (int64_t position = 0; position < sweep->count; position++) {
            bool last = position == sweep->count - 1;
            int32_t n = sweep->n_crossing + (last ? sweep->n_tail_crossing : 0);
            problem->made[stage++] = i;
            for (int32_t k = 0; k <= n; k++) {
                if (k == sweep->n_crossing && sweep->n_carried) { /* after the crossing values of every stage */
                    problem->state[i] = piece;
                    problem->dstate[i++] = dpiece;
                    piece += sweep->n_carried;
                    dpiece += last && !sweep->hands_on ? 0 : sweep->n_carried;
                }
                if (k == n) continue;
                problem->state[i] = piece++;
                problem->dstate[i++] = dpiece;
                dpiece += chain->crossing[sweep->first_crossing + k].d_place >= 0;
            }
        }
    }
    problem->made[stage] = i;
    problem->state[i] = piece;
    problem->dstate[i] = dpiece;
}

static uint64_t crossing_bytes(const rm_chain *chain, const rm_crossing *c, int64_t position) {
    const rm_value *value = &chain->graph->value[c->value];
    const rm_sweep *sweep = &chain->sweep[c->sweep];
    uint64_t bytes = rm_desc_bytes(&value->desc);
    if (!c->tiled) return rm_align_up(bytes);
    int64_t begin = rm_sweep_turn(sweep, position) * sweep->tile, rest = sweep->timesteps - begin;
    return rm_align_up(bytes / (uint64_t)sweep->timesteps * (uint64_t)(rest < sweep->tile ? rest : sweep->tile));
}

static void fill_stage_pieces(const rm_chain *chain, const rm_sweep *sweep, int64_t position, bool evaluation,
                              rm_problem *problem) {
    bool last = position == sweep->count - 1;
    rm_state_piece *piece = &problem->piece[sweep->piece + position * sweep->pieces];
    rm_state_piece *dpiece = &problem->piece[sweep->dpiece + position * sweep->dpieces];
    for (int32_t k = 0; k < sweep->n_crossing + (last ? sweep->n_tail_crossing : 0); k++) {
        const rm_crossing *c = &chain->crossing[sweep->first_crossing + k];
        uint64_t bytes = crossing_bytes(chain, c, position);
        piece[c->place].bytes = evaluation || c->trained ? bytes : 0;
        if (c->d_place >= 0) dpiece[c->d_place].bytes = bytes;
    }
    for (int32_t k = 0; k < sweep->n_carried; k++) {
        uint64_t bytes = chain->carried[sweep->first_carried + k].piece_bytes;
        piece[sweep->n_crossing + k].bytes = bytes;
        bool back = rm_carried_gradient(chain, sweep->first_carried + k, 0).limit > position;
        if (!last || sweep->hands_on) dpiece[sweep->n_gradients + k].bytes = back ? bytes : 0;
    }
}

/* The state, or the gradient of a state, that a piece belongs to. */
static int64_t owner_of(const int64_t *start, int64_t n, int64_t piece) {
    int64_t low = 0, high = n; /* start[low] <= piece < start[high] */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        *(start[middle] <= piece ? &low : &high) = middle;
    }
    return low;
}

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Lists the states that the stage in this position of its sweep uses, sorted, without duplicates. */
static void list(const rm_problem *problem, const int64_t *start, const rm_touched *touched, int64_t stage,
                 int64_t position, rm_lists *lists) {
    int64_t begin = lists->start[stage], end = begin, kept = begin;
    for (int64_t i = 0; i < touched->n; i++) {
        int64_t piece = rm_piece_at(&touched->item[i], position);
        if (piece >= 0) lists->item[end++] = (int32_t)owner_of(start, problem->n_states, piece);
    }
    qsort(&lists->item[begin], (size_t)(end - begin), sizeof *lists->item, ascending);
    for (int64_t i = begin; i < end; i++)
        if (i == begin || lists->item[i] != lists->item[kept - 1]) lists->item[kept++] = lists->item[i];
    lists->start[stage + 1] = kept;
}

static void fill_lists(const rm_chain *chain, bool evaluation, rm_problem *problem) {
    const rm_touched nothing = {0};
    for (int32_t w = 0; w < chain->n_sweeps; w++)
        for (int64_t position = 0; position < chain->sweep[w].count; position++) {
            int64_t s = chain->sweep[w].first + position;
            const rm_stage_kind *kind = rm_stage_kind_of(chain, s);
            const rm_touched *reads = evaluation ? &kind->evaluation_reads : &kind->reads;
            list(problem, problem->state, reads, s, position, &problem->reads);
            list(problem, problem->state, evaluation ? &nothing : &kind->keeps, s, position, &problem->keeps);
            list(problem, problem->dstate, evaluation ? &nothing : &kind->adds, s, position, &problem->adds);
            fill_stage_pieces(chain, &chain->sweep[w], position, evaluation, problem);
        }
}

static rm_work work_of(const rm_program *program) {
    return (rm_work){.time_ns = program->time_ns, .scratch_bytes = program->scratch_bytes};
}

/* Gradients that no program adds to, such as all gradients of an evaluation, get 0 bytes. */
static remat_status leave_out_gradients(rm_problem *problem) {
    int32_t *last = rm_malloc((size_t)problem->n_states * sizeof *last);
    REQUIRE(last, MEMORY, "out of memory for %lld states", (long long)problem->n_states);
    rm_last_adders(problem, last);
    for (int64_t i = 0; i < problem->n_states; i++)
        for (int64_t k = problem->dstate[i]; last[i] < 0 && k < problem->dstate[i + 1]; k++)
            problem->piece[k].bytes = 0;
    rm_free(last);
    return REMAT_OK;
}

static rm_extent extent_of(const rm_chain *chain, bool evaluation) {
    rm_extent extent = {.stages = chain->n_stages};
    for (int32_t w = 0; w < chain->n_sweeps; w++) {
        const rm_sweep *sweep = &chain->sweep[w];
        extent.states += sweep->count * sweep->states + sweep->n_tail_crossing;
        extent.pieces += sweep->count * (sweep->pieces + sweep->dpieces) + sweep->n_tail_crossing +
                         sweep->n_tail_gradients - (sweep->hands_on ? 0 : sweep->n_carried);
    }
    for (int64_t s = 0; s < chain->n_stages; s++) {
        const rm_stage_kind *kind = rm_stage_kind_of(chain, s);
        extent.reads += evaluation ? kind->evaluation_reads.n : kind->reads.n;
        extent.keeps += evaluation ? 0 : kind->keeps.n;
        extent.adds += evaluation ? 0 : kind->adds.n;
    }
    return extent;
}

/* Inference has no options, but a problem needs a name for one. */
static rm_stage_option option_of(const rm_kind_option *option) {
    return (rm_stage_option){.name = option->name ? option->name : "all",
                             .saved_bytes = option->saved_bytes,
                             .forward = work_of(&option->forward),
                             .backward = work_of(&option->backward)};
}

static remat_status write_problem(const rm_chain *chain, bool evaluation, rm_problem *problem) {
    TRY(rm_problem_alloc(problem, extent_of(chain, evaluation)));
    fill_states(chain, problem);
    fill_lists(chain, evaluation, problem);
    TRY(leave_out_gradients(problem));
    for (int64_t s = 0; s < chain->n_stages; s++) {
        const rm_stage_kind *kind = rm_stage_kind_of(chain, s);
        rm_stage *stage = &problem->stage[s];
        *stage = (rm_stage){.drop = work_of(evaluation ? &kind->evaluate : &kind->drop)};
        stage->n_options = evaluation || !kind->n_options ? 1 : kind->n_options;
        for (int k = 0; k < stage->n_options; k++) stage->option[k] = option_of(&kind->option[k]);
    }
    return REMAT_OK;
}

remat_status rm_chain_write_problems(rm_chain *chain, const rm_chain_config *config) {
    rm_problem training = {.n_resident = chain->problem.n_resident}; /* resident.c has filled these entries */
    memcpy(training.resident, chain->problem.resident, sizeof training.resident);
    for (int32_t c = 0; c < chain->n_kinds; c++) TRY(find_touched(chain, &chain->kind[c]));
    TRY(write_problem(chain, config->inference, &chain->problem));
    TRY(write_problem(chain, true, &chain->evaluation));
    chain->problem.n_resident = chain->evaluation.n_resident = training.n_resident;
    memcpy(chain->problem.resident, training.resident, sizeof training.resident);
    memcpy(chain->evaluation.resident, training.resident, sizeof training.resident);
    TRY(rm_problem_check(&chain->problem));
    return rm_problem_check(&chain->evaluation);
}

void rm_chain_guess_times(rm_chain *chain, const rm_rates *rates) {
    for (int32_t c = 0; c < chain->n_kinds; c++) {
        rm_stage_kind *kind = &chain->kind[c];
        rm_program_guess(&kind->drop, rates);
        rm_program_guess(&kind->evaluate, rates);
        for (int k = 0; k < kind->n_options; k++) {
            rm_program_guess(&kind->option[k].forward, rates);
            rm_program_guess(&kind->option[k].backward, rates);
        }
    }
    rm_program_guess(&chain->prologue, rates);
    rm_program_guess(&chain->epilogue, rates);
    rm_chain_take_times(chain);
}

void rm_chain_take_times(rm_chain *chain) {
    for (int64_t s = 0; s < chain->n_stages; s++) {
        const rm_stage_kind *kind = rm_stage_kind_of(chain, s);
        rm_stage *stage = &chain->problem.stage[s];
        stage->drop.time_ns = kind->drop.time_ns;
        for (int k = 0; k < kind->n_options; k++) {
            stage->option[k].forward.time_ns = kind->option[k].forward.time_ns;
            stage->option[k].backward.time_ns = kind->option[k].backward.time_ns;
        }
        chain->evaluation.stage[s].drop.time_ns = kind->evaluate.time_ns;
    }
}

/* ---- Pipelines -------------------------------------------------------------------------------------------------- */

static void mark_pieces(const rm_program *program, int64_t position, uint8_t *touched) {
    for (int32_t i = 0; i < program->n_where; i++) {
        int64_t piece = program->where[i].space == RM_AT_PIECE ? rm_piece_at(&program->where[i], position) : -1;
        if (piece >= 0) touched[piece] = 1;
    }
}

static void mark_stage(const rm_chain *part, int64_t stage, bool evaluation, uint8_t *touched) {
    const rm_stage_kind *kind = rm_stage_kind_of(part, stage);
    int64_t position = stage - rm_stage_sweep(part, stage)->first;
    mark_pieces(evaluation ? &kind->evaluate : &kind->drop, position, touched);
    for (int k = 0; k < kind->n_options && !evaluation; k++) {
        mark_pieces(&kind->option[k].forward, position, touched);
        mark_pieces(&kind->option[k].backward, position, touched);
    }
}

static remat_status adopt(const rm_chain *part, const rm_problem *whole, bool evaluation, rm_problem *problem) {
    int64_t stages = whole->n_stages;
    rm_problem own = {0};
    TRY(rm_problem_copy(whole, &own));
    memcpy(own.stage, problem->stage, (size_t)stages * sizeof *own.stage);
    own.n_resident = problem->n_resident;
    memcpy(own.resident, problem->resident, sizeof own.resident);
    rm_problem_free(problem);
    *problem = own;
    uint8_t *touched = rm_calloc((size_t)whole->n_pieces + 1, 1);
    REQUIRE(touched, MEMORY, "out of memory for %lld pieces of states", (long long)whole->n_pieces);
    for (int64_t s = 0; s < stages; s++) mark_stage(part, s, evaluation, touched);
    for (int64_t i = 0; i < whole->n_pieces; i++) own.piece[i].bytes = touched[i] ? whole->piece[i].bytes : 0;
    rm_free(touched);
    return rm_problem_check(problem);
}

remat_status rm_chain_adopt(rm_chain *part, const rm_chain *whole) {
    TRY(adopt(part, &whole->problem, false, &part->problem));
    return adopt(part, &whole->evaluation, true, &part->evaluation);
}

static void raise_bytes(uint64_t *most, uint64_t bytes) {
    if (bytes > *most) *most = bytes;
}

static void raise_work(rm_work *most, const rm_work *work) {
    raise_bytes(&most->time_ns, work->time_ns);
    raise_bytes(&most->scratch_bytes, work->scratch_bytes);
}

void rm_problem_raise(rm_problem *most, const rm_problem *part) {
    for (int64_t i = 0; i < most->n_pieces; i++) raise_bytes(&most->piece[i].bytes, part->piece[i].bytes);
    for (int64_t s = 0; s < most->n_stages; s++) {
        rm_stage *stage = &most->stage[s];
        raise_work(&stage->drop, &part->stage[s].drop);
        for (int k = 0; k < stage->n_options; k++) {
            rm_stage_option *option = &stage->option[k];
            raise_bytes(&option->saved_bytes, part->stage[s].option[k].saved_bytes);
            raise_work(&option->forward, &part->stage[s].option[k].forward);
            raise_work(&option->backward, &part->stage[s].option[k].backward);
        }
    }
    for (int i = 0; i < most->n_resident; i++) raise_bytes(&most->resident[i].bytes, part->resident[i].bytes);
}
