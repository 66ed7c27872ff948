/* program.c: the list of kernel calls for each stage kind and each type of run (chain.h): which nodes it has, in which
 * order; instructions.c writes the calls. Buffers that live only inside a run are placed in the stage's scratch by the
 * algorithm that packs the arena (memory/place.h). saved.c decides what a stage saves. Which stages run, and how often,
 * is decided by the plan, not here. */
#include <string.h>

#include "engine/chain/builder.h"
#include "memory/host.h"

/* ---- A finished program ---------------------------------------------------------------------------------------- */

static int count_operands(const rm_instruction *instruction) {
    int n = 0;
    for (int i = 0; i < RM_OPERANDS; i++) n += instruction->operand[i].space != RM_NOWHERE;
    return n;
}

/* Copies the instructions into the program's packed form. */
static remat_status pack(builder *b) {
    rm_program *program = b->program;
    int32_t n_where = 0;
    for (int32_t n = 0; n < program->n; n++) n_where += count_operands(&b->item[n].instruction);
    program->item = rm_malloc((size_t)program->n * sizeof *program->item);
    program->where = rm_malloc((size_t)n_where * sizeof *program->where);
    REQUIRE(program->item && program->where, MEMORY, "out of memory for a stage's program");
    for (int32_t n = 0; n < program->n; n++) {
        const rm_instruction *from = &b->item[n].instruction;
        rm_packed_instruction to = {.what = from->what,
                                    .once = from->once,
                                    .peer = from->peer,
                                    .node = from->node,
                                    .count = from->count,
                                    .first = program->n_where};
        for (int i = 0; i < RM_OPERANDS; i++) {
            if (from->operand[i].space == RM_NOWHERE) continue;
            to.there[i / 64] |= UINT64_C(1) << i % 64;
            program->where[program->n_where++] = from->operand[i];
        }
        program->item[n] = to;
    }
    return REMAT_OK;
}

static void add_costs(const builder *b) {
    rm_program *program = b->program;
    for (int32_t n = 0; n < program->n; n++) {
        const rm_written *w = &b->item[n];
        bool once = w->instruction.once;
        program->n_once += once;
        *(once ? &program->once_flops : &program->flops) += w->flops;
        *(once ? &program->once_moved_bytes : &program->moved_bytes) += w->moved_bytes;
    }
}

/* Places the scratch buffers, replaces their numbers by offsets, and packs the program. */
static remat_status finish(builder *b) {
    rm_placement placement = {0};
    if (b->chain->rank != RM_EVERY_RANK) TRY(rm_program_divide(b));
    add_costs(b);
    TRY(rm_place(&b->buffers, &placement));
    rm_program *program = b->program;
    for (int32_t n = 0; n < program->n; n++)
        for (int i = 0; i < RM_OPERANDS; i++) {
            rm_where *where = &b->item[n].instruction.operand[i];
            if (where->space == RM_AT_SCRATCH) where->offset = placement.offset[where->offset] + where->per_time;
            if (where->space == RM_AT_SCRATCH) where->per_time = 0;
        }
    program->scratch_bytes = rm_align_up(placement.bytes);
    rm_placement_free(&placement);
    rm_program_guess(program, &b->config->rates);
    return pack(b);
}
/* ---- The programs of one kind ---------------------------------------------------------------------------------- */

/* Starts a program: at first, only values from outside the stage have addresses. */
static void begin(builder *b, rm_program *program) {
    const rm_chain *chain = b->chain;
    size_t values = (size_t)chain->graph->n_values;
    b->program = program;
    b->buffers.count = 0;
    memcpy(b->value, chain->at.value, values * sizeof *b->value);
    memset(b->gradient, 0, values * sizeof *b->gradient);
    memset(b->contributed, 0, values);
    memset(b->aux, 0, (size_t)chain->graph->n_nodes * sizeof *b->aux);
    for (int32_t i = 0; b->kind && i < chain->n_crossing; i++) {
        const rm_crossing *c = &chain->crossing[i];
        if (c->sweep < b->kind->sweep && !rm_is_in_tiles(b, c->value))
            b->value[c->value] = rm_crossing_where(chain, c->value, sweep_of(b), -1);
    }
}

/* Which outputs a program copies to their arrays: an evaluation, all; in training, a stage's first forward run,
 * differentiated outputs; its kept forward run, others on the spine; its backward run, other leaves. Each of these runs
 * happens once per step. */
static bool is_any(const builder *b, const rm_node *node, int32_t output) {
    return (void)b, (void)node, (void)output, true;
}
static bool is_differentiated_outside(const builder *b, const rm_node *node, int32_t output) {
    return (void)node, rm_chain_is_differentiated_outside(b->chain, output);
}
static bool is_other_on_spine(const builder *b, const rm_node *node, int32_t output) {
    return is_on_spine(b, node) && !rm_chain_is_differentiated_outside(b->chain, output);
}
static bool is_other_leaf(const builder *b, const rm_node *node, int32_t output) {
    return is_leaf(b, node) && !rm_chain_is_differentiated_outside(b->chain, output);
}

static bool makes(const rm_node *node, int32_t value) {
    for (int k = 0; value && k < REMAT_MAX_STATES; k++)
        if (node->final[k] == value) return true;
    return node->y == value;
}

/* Copies the outputs made by the wanted nodes of the stage to their arrays. */
static remat_status copy_outputs(builder *b, bool (*wanted)(const builder *, const rm_node *, int32_t)) {
    const rm_chain *chain = b->chain;
    for (int32_t i = 0; i < chain->n_outputs; i++)
        for (int32_t n = 0; n < b->kind->n_nodes; n++) {
            const rm_node *node = node_at(b, n);
            const rm_value *value = &chain->graph->value[chain->outputs[i]];
            bool whole_too_early = b->kind->tau && !value->sequence && !b->kind->last;
            int32_t id = chain->outputs[i];
            if (!makes(node, id) || !wanted(b, node, id) || !b->value[id].space || whole_too_early) continue;
            b->of_node = index_of(b, node);
            TRY(rm_emit_simple(b, RM_DO_COPY, chain->at.output[i], b->value[id], tile_bytes(b, id)));
        }
    return REMAT_OK;
}

static remat_status write_once(builder *b) {
    for (int32_t i = 0; i < b->kind->n_nodes && b->chain->n_differentiated; i++)
        if (b->early[index_of(b, node_at(b, i))] && !is_on_spine(b, node_at(b, i)))
            TRY(rm_emit_forward(b, node_at(b, i), DROPPING));
    return copy_outputs(b, is_differentiated_outside);
}

/* The spine, then the instructions for the stage's first run only. */
static remat_status write_forward(builder *b, rm_program *program, rm_forward_mode mode) {
    begin(b, program);
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        if (is_on_spine(b, node_at(b, i))) TRY(rm_emit_forward(b, node_at(b, i), mode));
    if (mode == KEEPING) TRY(copy_outputs(b, is_other_on_spine));
    b->once = true;
    remat_status status = write_once(b);
    b->once = false;
    return status ? status : finish(b);
}

static remat_status write_evaluation(builder *b) {
    begin(b, &b->kind->evaluate);
    b->evaluating = true;
    for (int32_t i = 0; i < b->kind->n_nodes; i++) TRY(rm_emit_forward(b, node_at(b, i), DROPPING));
    b->evaluating = false;
    TRY(copy_outputs(b, is_any));
    return finish(b);
}

/* Finds the gradient that later sweeps have written, if the value crosses. */
static void find_gradient(builder *b, int32_t value) {
    if (!value || b->chain->cross[value] < 0) return;
    b->gradient[value] = rm_crossing_gradient(b->chain, value, sweep_of(b), -1);
    b->contributed[value] = b->gradient[value].space != RM_NOWHERE;
}

/* Finds the values that the forward run has left for backward. */
static void find_kept(builder *b, const rm_node *node) {
    int32_t n = index_of(b, node);
    if (accumulates(b, node))
        b->value[node->y] = rm_carried_where(b->chain, rm_carried_slot(b->chain, n, -1), 0);
    else if (crosses_out(b, node->y))
        b->value[node->y] = rm_crossing_where(b->chain, node->y, sweep_of(b), -1);
    else
        b->value[node->y] = b->saved_value[node->y];
    b->aux[n] = b->saved_aux[n];
    rm_find_final(b, node);
    for (int k = 0; b->kind->last && k < node->op->n_state; k++) find_gradient(b, node->final[k]);
    bool by_the_last = crosses_out(b, node->y) && !b->chain->crossing[b->chain->cross[node->y]].tiled;
    if (!crosses_out(b, node->y) || (by_the_last && !b->kind->last)) return;
    find_gradient(b, node->y);
}

/* Finds leaves that the first forward run has copied to their output arrays. */
static void find_copied_outputs(builder *b) {
    const rm_chain *chain = b->chain;
    for (int32_t i = 0; i < chain->n_differentiated; i++) {
        const rm_node *node = &chain->graph->node[chain->graph->value[chain->outputs[i]].node];
        if (rm_made_here(b, node->y) && !is_on_spine(b, node)) b->value[node->y] = chain->at.output[i];
    }
}

static bool reads_it(const builder *b, int32_t value) {
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        for (int k = 0; k < REMAT_MAX_INPUTS; k++)
            if (node_at(b, i)->x[k] == value && learns(b, node_at(b, i)) &&
                (k < node_at(b, i)->op->n_in || b->kind->first))
                return true;
    return false;
}

/* Zeroes gradients of other sweeps' values that this stage must initialise but has no term for, for example before a
 * reduction to the last timestep. */
static remat_status zero_remaining_gradients(builder *b) {
    for (int32_t i = 0; i < b->chain->n_crossing; i++) {
        const rm_crossing *c = &b->chain->crossing[i];
        if (c->last_reader != b->kind->sweep || b->contributed[c->value] || rm_is_initialised(b, c->value)) continue;
        if (!reads_it(b, c->value)) continue;
        b->of_node = b->chain->graph->value[c->value].node;
        rm_where target = rm_crossing_gradient(b->chain, c->value, sweep_of(b), -1);
        TRY(rm_is_in_tiles(b, c->value) ? rm_emit_scatter(b, c->value, RM_NO_PLACE, RM_DO_ZERO)
                                        : rm_emit_simple(b, RM_DO_ZERO, target, RM_NO_PLACE, tile_bytes(b, c->value)));
    }
    return REMAT_OK;
}

static remat_status write_backward(builder *b, rm_kind_option *option) {
    begin(b, &option->backward);
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        if (is_on_spine(b, node_at(b, i))) find_kept(b, node_at(b, i));
    find_copied_outputs(b);
    for (int32_t i = 0; i < b->kind->n_nodes; i++)
        if (b->again[index_of(b, node_at(b, i))] == RUN_AGAIN) TRY(rm_emit_forward(b, node_at(b, i), LEAF));
    TRY(copy_outputs(b, is_other_leaf));
    for (int32_t i = b->kind->n_nodes - 1; i >= 0; i--) TRY(rm_emit_backward(b, node_at(b, i)));
    TRY(zero_remaining_gradients(b));
    return finish(b);
}

/* An option that saves no fewer bytes than the previous one is left out. */
static remat_status write_option(builder *b, rm_leanness lean) {
    static const char *const name[] = {[RM_ALL] = "all", [RM_LEAN] = "lean", [RM_LEANER] = "leaner"};
    rm_kind_option *option = &b->kind->option[b->kind->n_options];
    rm_program_lay_out_saved(b, lean, option);
    if (b->kind->n_options && option->saved_bytes >= b->saved_before) return REMAT_OK;
    b->saved_before = option->saved_bytes;
    option->name = name[lean];
    b->kind->n_options++;
    rm_program_forget_saved(b);
    TRY(write_forward(b, &option->forward, KEEPING));
    TRY(write_backward(b, option));
    return b->chain->rank == RM_EVERY_RANK ? REMAT_OK : rm_program_pack_saved(b, option);
}

static remat_status write_kind(builder *b) {
    rm_program_mark_spine(b);
    rm_program_mark_early(b);
    TRY(write_evaluation(b));
    if (b->config->inference) return REMAT_OK;
    TRY(write_forward(b, &b->kind->drop, DROPPING));
    TRY(write_option(b, RM_ALL));
    for (rm_leanness lean = RM_LEAN; b->config->lean && lean <= RM_LEANER; lean++) TRY(write_option(b, lean));
    return REMAT_OK;
}

/* ---- Tables: once per step ------------------------------------------------------------------------------------- */

/* Copies tables that are outputs to their arrays. */
static remat_status copy_output_tables(builder *b) {
    const rm_chain *chain = b->chain;
    for (int32_t i = 0; i < chain->n_outputs; i++) {
        int32_t id = chain->outputs[i];
        if (chain->role[chain->graph->value[id].node] != RM_ROLE_TABLE) continue;
        b->of_node = chain->graph->value[id].node;
        TRY(rm_emit_simple(b, RM_DO_COPY, chain->at.output[i], b->value[id], tile_bytes(b, id)));
    }
    return REMAT_OK;
}

static remat_status write_tables(builder *b) {
    const rm_chain *chain = b->chain;
    b->kind = NULL;
    begin(b, &b->chain->prologue);
    for (int32_t n = 0; n < chain->graph->n_nodes; n++)
        if (chain->role[n] == RM_ROLE_TABLE) TRY(rm_emit_forward(b, &chain->graph->node[n], DROPPING));
    TRY(copy_output_tables(b));
    TRY(finish(b));
    if (b->config->inference) return REMAT_OK;
    begin(b, &b->chain->epilogue); /* tables with aux run forward again and keep it: they are few and small */
    for (int32_t n = 0; n < chain->graph->n_nodes; n++)
        if (chain->role[n] == RM_ROLE_TABLE && chain->graph->node[n].op->aux_bytes)
            TRY(rm_emit_forward(b, &chain->graph->node[n], LEAF));
    for (int32_t n = chain->graph->n_nodes - 1; n >= 0; n--)
        if (chain->role[n] == RM_ROLE_TABLE) TRY(rm_emit_backward(b, &chain->graph->node[n]));
    return finish(b);
}

/* ---- All programs ---------------------------------------------------------------------------------------------- */

static void free_builder(builder *b) {
    rm_free(b->value);
    rm_free(b->gradient);
    rm_free(b->contributed);
    rm_free(b->aux);
    rm_free(b->saved_value);
    rm_free(b->saved_aux);
    rm_free(b->again);
    rm_free(b->spine);
    rm_free(b->early);
    rm_lifetimes_free(&b->buffers);
    rm_free(b->item);
    rm_free(b->copies);
}

static remat_status write_all(builder *b) {
    for (int32_t c = 0; c < b->chain->n_kinds; c++) {
        b->kind = &b->chain->kind[c];
        TRY(write_kind(b));
    }
    return write_tables(b);
}

remat_status rm_chain_write_programs(rm_chain *chain, const rm_chain_config *config) {
    size_t values = (size_t)chain->graph->n_values, nodes = (size_t)chain->graph->n_nodes + 1;
    builder b = {.chain = chain,
                 .config = config,
                 .value = rm_calloc(values, sizeof(rm_where)),
                 .gradient = rm_calloc(values, sizeof(rm_where)),
                 .contributed = rm_calloc(values, 1),
                 .aux = rm_calloc(nodes, sizeof(rm_where)),
                 .saved_value = rm_calloc(values, sizeof(rm_where)),
                 .saved_aux = rm_calloc(nodes, sizeof(rm_where)),
                 .again = rm_calloc(nodes, 1),
                 .spine = rm_calloc(nodes, 1),
                 .early = rm_calloc(nodes, 1)};
    bool got = b.value && b.gradient && b.contributed && b.aux && b.saved_value && b.saved_aux && b.again && b.spine &&
               b.early;
    remat_status status = got ? write_all(&b) : rm_fail(REMAT_MEMORY, "out of memory for the stages' programs");
    free_builder(&b);
    return status;
}
