/* chain_problem.c: a chain of stages as numbers for the planner: training, and an evaluation. Main entries:
 * rm_chain_write_problems; rm_chain_guess_times and rm_chain_take_times, when times are known better. */
#include <string.h>

#include "engine/chain.h"

static void list_cut_by_depth(const rm_chain *chain, int64_t cut, rm_problem *problem, int64_t *n_state,
                              int64_t *n_dstate) {
    for (int32_t v = 1; v < chain->graph->n_values; v++) {
        if (rm_chain_crosses(chain, cut, v, false)) problem->state.item[(*n_state)++] = chain->piece[v];
        if (rm_chain_crosses(chain, cut, v, true)) problem->dstate.item[(*n_dstate)++] = chain->dpiece[v];
    }
}

/* Along time: piece (c-1)*K+k is carried state k at cut c = 1..S, and its gradient at cut c = 1..S-1 comes after all. */
static void list_cut_in_time(const rm_chain *chain, int64_t cut, rm_problem *problem, int64_t *n_state,
                             int64_t *n_dstate) {
    int64_t carried = chain->n_carried, first = (cut - 1) * carried;
    for (int64_t k = 0; cut >= 1 && k < carried; k++) {
        problem->state.item[(*n_state)++] = (int32_t)(first + k);
        if (cut < chain->n_stages)
            problem->dstate.item[(*n_dstate)++] = (int32_t)(chain->n_stages * carried + first + k);
    }
}

/* Pieces of the next cut that this program reads: added to the list that begins at `begin`. */
static void list_read(const rm_program *backward, int64_t cut, rm_problem *problem, int64_t begin, int64_t *n_saved) {
    for (int32_t n = 0; n < backward->n; n++) {
        const rm_instruction *call = &backward->item[n];
        for (int i = 0; i <= RM_MAX_IN; i++) {
            const rm_where *where = i < RM_MAX_IN ? &call->x[i] : &call->y;
            if (where->space != RM_AT_STATE || !where->next) continue;
            int32_t piece = problem->state.item[problem->state.start[cut] + where->slot];
            bool listed = false;
            for (int64_t j = begin; j < *n_saved; j++) listed |= problem->saved.item[j] == piece;
            if (!listed) problem->saved.item[(*n_saved)++] = piece;
        }
    }
}

/* What a stage's backward reads of its own results that lie at the next cut, in any option: kept alive by saved(s). Along time
 * like tiles read like pieces, a cut further on. */
static void list_saved(const rm_chain *chain, int64_t stage, rm_problem *problem, int64_t *n_saved) {
    const rm_class *class = rm_stage_class(chain, stage);
    int64_t begin = *n_saved;
    if (chain->timed && stage > 0 && class == rm_stage_class(chain, stage - 1)) {
        for (int64_t i = problem->saved.start[stage - 1]; i < begin; i++)
            problem->saved.item[(*n_saved)++] = problem->saved.item[i] + chain->n_carried;
        return;
    }
    for (int k = 0; k < class->n_options; k++)
        list_read(&class->option[k].backward, stage + 1, problem, begin, n_saved);
}

static void fill_lists(const rm_chain *chain, rm_problem *problem) {
    int64_t n_state = 0, n_dstate = 0, n_saved = 0;
    for (int64_t cut = 0; cut <= chain->n_stages; cut++) {
        problem->state.start[cut] = n_state;
        problem->dstate.start[cut] = n_dstate;
        (chain->timed ? list_cut_in_time : list_cut_by_depth)(chain, cut, problem, &n_state, &n_dstate);
    }
    problem->state.start[chain->n_stages + 1] = n_state;
    problem->dstate.start[chain->n_stages + 1] = n_dstate;
    for (int64_t stage = 0; stage < chain->n_stages; stage++) {
        problem->saved.start[stage] = n_saved;
        list_saved(chain, stage, problem, &n_saved);
    }
    problem->saved.start[chain->n_stages] = n_saved;
}

static void fill_pieces(const rm_chain *chain, rm_problem *problem) {
    for (int32_t v = 1; !chain->timed && v < chain->graph->n_values; v++) {
        uint64_t bytes = rm_align_up(rm_desc_bytes(&chain->graph->value[v].desc));
        if (chain->piece[v] >= 0) problem->piece[chain->piece[v]].bytes = bytes;
        if (chain->dpiece[v] >= 0) problem->piece[chain->dpiece[v]].bytes = bytes;
    }
    for (int64_t i = 0; chain->timed && i < problem->n_pieces; i++)
        problem->piece[i].bytes = chain->carried[i % chain->n_carried].bytes;
}

static rm_work work_of(const rm_program *program) {
    return (rm_work){.time_ns = program->time_ns, .scratch_bytes = program->scratch_bytes};
}

static void count_items(const rm_chain *chain, int64_t *pieces, int64_t *state, int64_t *dstate, int64_t *saved) {
    if (chain->timed) {
        *state = chain->n_stages * chain->n_carried;
        *dstate = (chain->n_stages - 1) * chain->n_carried;
        *pieces = *state + *dstate;
        *saved = *state;
        return;
    }
    *pieces = *state = 0;
    for (int32_t v = 1; v < chain->graph->n_values; v++) {
        *pieces += (chain->piece[v] >= 0) + (chain->dpiece[v] >= 0);
        if (chain->piece[v] >= 0) *state += chain->until[v] - chain->from[v];
    }
    *dstate = *saved = *state;
}

/* An inference has no options; its stages are never kept, but a problem names one. */
static rm_option option_of(const rm_class_option *option) {
    return (rm_option){.name = option->name ? option->name : "all",
                       .saved_bytes = option->saved_bytes,
                       .forward = work_of(&option->forward),
                       .backward = work_of(&option->backward)};
}

static remat_status write_problem(const rm_chain *chain, bool evaluation, rm_problem *problem) {
    int64_t pieces, state, dstate, saved;
    count_items(chain, &pieces, &state, &dstate, &saved);
    TRY(rm_problem_alloc(problem, chain->n_stages, pieces, state, dstate, saved));
    fill_pieces(chain, problem);
    fill_lists(chain, problem);
    for (int64_t s = 0; s < chain->n_stages; s++) {
        const rm_class *class = rm_stage_class(chain, s);
        rm_stage *stage = &problem->stage[s];
        *stage = (rm_stage){.drop = work_of(evaluation ? &class->evaluate : &class->drop)};
        stage->n_options = evaluation || !class->n_options ? 1 : class->n_options;
        for (int k = 0; k < stage->n_options; k++) stage->option[k] = option_of(&class->option[k]);
    }
    return REMAT_OK;
}

remat_status rm_chain_write_problems(rm_chain *chain, const rm_chain_config *config) {
    rm_problem training = {.n_resident = chain->problem.n_resident}; /* laid out before the rest was known */
    memcpy(training.resident, chain->problem.resident, sizeof training.resident);
    TRY(write_problem(chain, config->inference, &chain->problem));
    TRY(write_problem(chain, true, &chain->evaluation));
    chain->problem.n_resident = chain->evaluation.n_resident = training.n_resident;
    memcpy(chain->problem.resident, training.resident, sizeof training.resident);
    memcpy(chain->evaluation.resident, training.resident, sizeof training.resident);
    TRY(rm_problem_check(&chain->problem));
    return rm_problem_check(&chain->evaluation);
}

void rm_chain_guess_times(rm_chain *chain, const rm_rates *rates) {
    for (int32_t c = 0; c < chain->n_classes; c++) {
        rm_class *class = &chain->class[c];
        rm_program_guess(&class->drop, rates);
        rm_program_guess(&class->evaluate, rates);
        for (int k = 0; k < class->n_options; k++) {
            rm_program_guess(&class->option[k].forward, rates);
            rm_program_guess(&class->option[k].backward, rates);
        }
    }
    rm_program_guess(&chain->prologue, rates);
    rm_program_guess(&chain->epilogue, rates);
    rm_chain_take_times(chain);
}

void rm_chain_take_times(rm_chain *chain) {
    for (int64_t s = 0; s < chain->n_stages; s++) {
        const rm_class *class = rm_stage_class(chain, s);
        rm_stage *stage = &chain->problem.stage[s];
        stage->drop.time_ns = class->drop.time_ns;
        for (int k = 0; k < class->n_options; k++) {
            stage->option[k].forward.time_ns = class->option[k].forward.time_ns;
            stage->option[k].backward.time_ns = class->option[k].backward.time_ns;
        }
        chain->evaluation.stage[s].drop.time_ns = class->evaluate.time_ns;
    }
}
