/* chain.c: cuts a graph into stages (along time, or by depth), and turns the result into numbers for the planner. The
 * programs of the stages are written by program.c, the resident layout by resident.c. */
#include "engine/chain.h"

#include <string.h>

#include "memory/host.h"

static int64_t default_tile(int64_t timesteps, int64_t batch) {
    int64_t rows = 512, tile = 256;
    while (tile > 8 && tile * batch > rows) tile /= 2;
    return tile < timesteps ? tile : timesteps;
}

int64_t rm_tile_of(int64_t asked, int64_t timesteps, int64_t batch) {
    int64_t tile = asked ? asked : default_tile(timesteps, batch);
    return tile < timesteps ? tile : timesteps;
}

const rm_class *rm_stage_class(const rm_chain *chain, int64_t stage) {
    if (!chain->timed) return &chain->class[stage];
    return &chain->class[stage == chain->n_stages - 1 ? chain->n_classes - 1 : 0];
}

/* ---- Order and carried states --------------------------------------------------------------------------------- */

static remat_status order_nodes(rm_chain *chain) {
    const remat_graph *graph = chain->graph;
    chain->order = rm_calloc((size_t)graph->n_nodes + 1, sizeof *chain->order);
    REQUIRE(chain->order, MEMORY, "out of memory for %d nodes", graph->n_nodes);
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t n = 0; n < graph->n_nodes; n++) {
            if (chain->role[n] != (pass ? RM_ROLE_POST : RM_ROLE_CHAIN)) continue;
            chain->order[chain->n_order++] = n;
            chain->timed |= graph->value[graph->node[n].x[0]].sequence;
        }
        if (!pass) chain->n_chain_nodes = chain->n_order;
    }
    REQUIRE(chain->n_order, INVALID, "nothing to compute: neither the loss nor an output depends on any operation");
    return REMAT_OK;
}

static bool is_read(const rm_chain *chain, int32_t value) {
    for (int32_t i = 0; i < chain->n_order; i++)
        for (int k = 0; k < RM_MAX_IN; k++)
            if (chain->graph->node[chain->order[i]].x[k] == value) return true;
    for (int i = 0; i < chain->n_outputs; i++)
        if (chain->outputs[i] == value) return true;
    return false;
}

static remat_status add_carried(rm_chain *chain, int32_t node, int state, uint64_t bytes) {
    const int limit = (int)(sizeof chain->carried / sizeof *chain->carried);
    REQUIRE(chain->n_carried < limit, INVALID,
            "more than %d carried states (an LSTM layer has two, a GRU layer one); use fewer layers", limit);
    chain->carried[chain->n_carried++] = (rm_carried){node, state, rm_align_up(bytes)};
    return REMAT_OK;
}

static remat_status find_carried(rm_chain *chain) {
    for (int32_t i = 0; chain->timed && i < chain->n_chain_nodes; i++) {
        const rm_node *node = &chain->graph->node[chain->order[i]];
        rm_desc x[RM_MAX_IN], y, state[RM_MAX_STATE];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        for (int k = 0; k < node->op->n_state; k++)
            TRY(add_carried(chain, chain->order[i], k, rm_desc_bytes(&state[k])));
        if (node->op->time == RM_TIME_SUM && is_read(chain, node->y))
            TRY(add_carried(chain, chain->order[i], -1, rm_desc_bytes(&y)));
    }
    return REMAT_OK;
}

int32_t rm_carried_slot(const rm_chain *chain, int32_t node, int state) {
    for (int k = 0; k < chain->n_carried; k++)
        if (chain->carried[k].node == node && chain->carried[k].state == state) return k;
    return -1;
}

/* ---- Cutting -------------------------------------------------------------------------------------------------- */

/* Full tiles are one class; the last tile is another, being short perhaps, and holding the POST nodes. */
static remat_status cut_time(rm_chain *chain, const rm_chain_config *config) {
    chain->tile = rm_tile_of(config->tile, chain->timesteps, chain->batch);
    chain->n_stages = (chain->timesteps + chain->tile - 1) / chain->tile;
    REQUIRE(chain->n_stages < INT32_MAX / 64, INVALID,
            "%lld timesteps in tiles of %lld make more stages than a plan can number; use a larger tile",
            (long long)chain->timesteps, (long long)chain->tile);
    chain->n_classes = chain->n_stages > 1 ? 2 : 1;
    chain->class = rm_calloc((size_t)chain->n_classes, sizeof *chain->class);
    REQUIRE(chain->class, MEMORY, "out of memory for the stages");
    chain->class[0] = (rm_class){.tau = chain->tile, .n_nodes = chain->n_chain_nodes};
    chain->class[chain->n_classes - 1] = (rm_class){
        .tau = chain->timesteps - (chain->n_stages - 1) * chain->tile, .n_nodes = chain->n_order, .last = true};
    return REMAT_OK;
}

/* By depth a stage begins at every node with weights, or every `tile` nodes where that is asked for. */
static remat_status cut_depth(rm_chain *chain, const rm_chain_config *config) {
    chain->class = rm_calloc((size_t)chain->n_order, sizeof *chain->class);
    REQUIRE(chain->class, MEMORY, "out of memory for the stages");
    for (int32_t i = 0; i < chain->n_order; i++) {
        bool begins = config->tile ? i % config->tile == 0 : chain->graph->node[chain->order[i]].op->weights != 0;
        if (i == 0 || begins) chain->class[chain->n_classes++].first_node = i;
        chain->class[chain->n_classes - 1].n_nodes++;
    }
    chain->class[chain->n_classes - 1].last = true;
    chain->n_stages = chain->n_classes;
    chain->timesteps = chain->tile = 1;
    return REMAT_OK;
}

/* ---- Which values cross which cuts (by depth) ----------------------------------------------------------------- */

static void find_spans(rm_chain *chain) {
    const remat_graph *graph = chain->graph;
    for (int32_t v = 0; v < graph->n_values; v++)
        chain->from[v] = chain->until[v] = chain->piece[v] = chain->dpiece[v] = -1;
    for (int32_t s = 0; !chain->timed && s < chain->n_classes; s++)
        for (int32_t i = 0; i < chain->class[s].n_nodes; i++) {
            const rm_node *node = &graph->node[chain->order[chain->class[s].first_node + i]];
            chain->from[node->y] = s;
            for (int k = 0; k < RM_MAX_IN; k++)
                if (node->x[k] && graph->value[node->x[k]].origin == RM_VALUE_RESULT) chain->until[node->x[k]] = s;
        }
    int32_t pieces = 0;
    for (int32_t v = 1; v < graph->n_values; v++)
        if (chain->from[v] >= 0 && chain->until[v] > chain->from[v]) chain->piece[v] = pieces++;
    for (int32_t v = 1; v < graph->n_values; v++)
        if (chain->piece[v] >= 0 && graph->value[v].needs_gradient) chain->dpiece[v] = pieces++;
}

static bool crosses(const rm_chain *chain, int64_t cut, int32_t value) {
    return chain->piece[value] >= 0 && chain->from[value] < cut && cut <= chain->until[value];
}

int32_t rm_chain_slot(const rm_chain *chain, int64_t cut, int32_t value, bool gradient) {
    const int32_t *piece = gradient ? chain->dpiece : chain->piece;
    if (chain->timed || !crosses(chain, cut, value) || piece[value] < 0) return -1;
    int32_t slot = 0;
    for (int32_t v = 1; v < value; v++) slot += crosses(chain, cut, v) && piece[v] >= 0;
    return slot;
}

/* ---- The problem ---------------------------------------------------------------------------------------------- */

static void list_cut_by_depth(const rm_chain *chain, int64_t cut, rm_problem *problem, int64_t *n_state,
                              int64_t *n_dstate) {
    for (int32_t v = 1; v < chain->graph->n_values; v++) {
        if (!crosses(chain, cut, v)) continue;
        problem->state.item[(*n_state)++] = chain->piece[v];
        if (chain->dpiece[v] >= 0) problem->dstate.item[(*n_dstate)++] = chain->dpiece[v];
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

/* What a stage's backward reads of its own results that lie at the next cut, in any option: kept alive by saved(s). */
static void list_saved(const rm_chain *chain, int64_t stage, rm_problem *problem, int64_t *n_saved) {
    const rm_class *class = rm_stage_class(chain, stage);
    int64_t begin = *n_saved;
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

static remat_status write_problems(rm_chain *chain, const rm_chain_config *config) {
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

int64_t rm_chain_bound(const rm_chain *chain, int32_t value) {
    int64_t bound = 0;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        const rm_node *node = &chain->graph->node[n];
        if (chain->role[n] == RM_ROLE_DEAD || !node->op->bound) continue;
        rm_desc x[RM_MAX_IN], y, state[RM_MAX_STATE];
        rm_node_descs(chain->graph, node, 0, x, &y, state);
        for (int i = 0; i < node->op->n_in; i++) {
            int64_t limit = node->x[i] == value ? node->op->bound(x, node->attr, i) : 0;
            if (limit && (!bound || limit < bound)) bound = limit;
        }
    }
    return bound;
}

/* ---- All of it ------------------------------------------------------------------------------------------------ */

remat_status rm_chain_build(const remat_graph *graph, int32_t loss, const int32_t *outputs, int n_outputs,
                            const rm_chain_config *config, rm_chain *chain) {
    chain->graph = graph;
    chain->loss = loss;
    chain->n_outputs = n_outputs;
    memcpy(chain->outputs, outputs, (size_t)n_outputs * sizeof *outputs);
    chain->timesteps = graph->timesteps;
    chain->batch = graph->batch;
    int32_t keep[sizeof chain->outputs / sizeof *chain->outputs + 1];
    memcpy(keep, outputs, (size_t)n_outputs * sizeof *outputs);
    keep[n_outputs] = loss;
    size_t values = (size_t)graph->n_values;
    chain->role = rm_calloc((size_t)graph->n_nodes + 1, 1);
    chain->piece = rm_calloc(4 * values, sizeof *chain->piece);
    REQUIRE(chain->role && chain->piece, MEMORY, "out of memory for the chain of stages");
    chain->dpiece = chain->piece + values;
    chain->from = chain->piece + 2 * values;
    chain->until = chain->piece + 3 * values;
    TRY(rm_roles(graph, keep, n_outputs + (loss != 0), chain->role));
    TRY(order_nodes(chain));
    TRY(find_carried(chain));
    TRY((chain->timed ? cut_time : cut_depth)(chain, config));
    find_spans(chain);
    TRY(rm_chain_lay_out(chain, config));
    TRY(rm_chain_write_programs(chain, config));
    if (!config->inference) rm_buckets_find_final(chain);
    rm_chain_lay_out_rest(chain, config);
    return write_problems(chain, config);
}

static void free_program(rm_program *program) { rm_free(program->item); }

void rm_chain_free(rm_chain *chain) {
    for (int32_t c = 0; chain->class && c < chain->n_classes; c++) {
        rm_class *class = &chain->class[c];
        free_program(&class->drop);
        free_program(&class->evaluate);
        for (int k = 0; k < RM_MAX_OPTIONS; k++) {
            free_program(&class->option[k].forward);
            free_program(&class->option[k].backward);
        }
    }
    free_program(&chain->prologue);
    free_program(&chain->epilogue);
    rm_free(chain->class);
    rm_free(chain->role);
    rm_free(chain->order);
    rm_free(chain->piece);
    rm_free(chain->at.value);
    rm_free(chain->at.gradient);
    rm_free(chain->at.packed);
    rm_free(chain->at.output);
    rm_free(chain->at.optimizer_state);
    rm_buckets_free(&chain->at.buckets);
    rm_problem_free(&chain->problem);
    rm_problem_free(&chain->evaluation);
    memset(chain, 0, sizeof *chain);
}
