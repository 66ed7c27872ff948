/* parts.c: see parts.h. Main entries: rm_parts_place, and rm_parts_begin, rm_parts_keep and rm_parts_take. */
#include "engine/session/parts.h"

#include "engine/abi.h"
#include "engine/session/frame.h"
#include "memory/host.h"

struct rm_micro {
    void **piece, **saved; /* as in rm_runner */
    int8_t *kept;
    rm_verify *verify;
    char *copies;
    int64_t line, lifetime;
    uint64_t given;       /* transfers in the forward half */
    float count, divisor; /* as in the session */
};

void rm_parts_choose(remat_session *s) {
    bool whole = false; /* a stage computes all timesteps, or there is no time: tiles cannot overlap there */
    for (int32_t w = 0; w < s->chain.n_sweeps; w++) whole |= s->chain.sweep[w].whole || !s->chain.sweep[w].timesteps;
    bool in_flight = s->pipeline.size > 1 && whole && !s->inference && !s->stateful;
    s->parts.n = in_flight ? s->micro_steps : 1;
}

/* ---- Copies ----------------------------------------------------------------------------------------------------- */

/* Calls `work` for the resident arrays that differ from part to part: inputs and the tables that count in them, once
 * results, losses, hashes of states on the device, and outputs. */
typedef void array_work(void *context, uint64_t offset, uint64_t bytes);

static void on_value(const rm_chain *chain, int32_t v, const rm_where *where, array_work *work, void *context) {
    if (where->space == RM_RESIDENT && !rm_is_elsewhere(where))
        work(context, where->offset, rm_desc_bytes(&chain->graph->value[v].desc));
}

static void on_outputs(const rm_chain *chain, array_work *work, void *context) {
    for (int32_t i = 0; i < chain->n_outputs; i++)
        on_value(chain, chain->outputs[i], &chain->at.output[i], work, context);
}

/* With a pipeline, tables that count in inputs are on every rank; others do not change before the update. */
static bool is_count(const rm_chain *chain, const rm_value *value) {
    return value->origin == RM_VALUE_RESULT && chain->role[value->node] == RM_ROLE_TABLE &&
           chain->owner[value->node] == RM_EVERY_RANK;
}

static void on_other_arrays(const rm_chain *chain, array_work *work, void *context) {
    const rm_residents *at = &chain->at;
    for (int32_t v = 1; v < chain->graph->n_values; v++) {
        const rm_value *value = &chain->graph->value[v];
        if (value->origin == RM_VALUE_INPUT || is_count(chain, value)) on_value(chain, v, &at->value[v], work, context);
    }
    for (int32_t n = 0; n < chain->graph->n_nodes; n++) {
        int64_t stages = chain->role[n] == RM_ROLE_CHAIN ? chain->sweep[chain->sweep_of[n]].count : 1;
        if (at->once_bytes[n]) work(context, at->once[n], at->once_bytes[n] * (uint64_t)stages);
    }
    work(context, at->loss_offset, at->loss_bytes);
    if (at->hashes_bytes) work(context, at->hashes_offset, at->hashes_bytes);
}

static void on_arrays(const rm_chain *chain, array_work *work, void *context) {
    on_other_arrays(chain, work, context);
    on_outputs(chain, work, context);
}

static void add_up(void *context, uint64_t offset, uint64_t bytes) {
    (void)offset;
    *(uint64_t *)context += rm_align_up(bytes);
}

uint64_t rm_parts_copied_bytes(const rm_chain *chain) {
    uint64_t bytes = 0;
    on_arrays(chain, add_up, &bytes);
    return bytes;
}

typedef struct {
    const remat_session *session;
    char *cursor; /* the copy */
    bool back;
} copying;

static void copy(void *context, uint64_t offset, uint64_t bytes) {
    copying *c = context;
    const rm_runner *r = &c->session->runner;
    char *array = r->resident + offset;
    r->api->copy(r->queue, c->back ? array : c->cursor, c->back ? c->cursor : array, bytes);
    c->cursor += rm_align_up(bytes);
}

static void skip(void *context, uint64_t offset, uint64_t bytes) {
    (void)offset;
    ((copying *)context)->cursor += rm_align_up(bytes);
}

/* The copies are at the end of a part. */
static char *claim_copies(const remat_session *s, int part) {
    const rm_runner *r = &s->runner;
    uint64_t bytes = rm_parts_copied_bytes(&s->chain);
    uint64_t end = r->arena_offset + s->parts.shared + (uint64_t)(part + 1) * s->parts.each;
    return r->api->claim(r->block, end - bytes, bytes);
}

static copying copies_of(const remat_session *s, int part, bool back) {
    return (copying){.session = s, .cursor = s->parts.item[part].copies, .back = back};
}

/* ---- The arena -------------------------------------------------------------------------------------------------- */

static int64_t first_backward(const rm_plan *plan) {
    int64_t line = 0;
    while (line < plan->n_steps && plan->step[line].verb != RM_RUN_BACKWARD) line++;
    return line;
}

/* Places the buffers that a part holds between its halves, or the others. */
static remat_status place_some(rm_schedule *schedule, bool held, uint64_t from, uint64_t *bytes) {
    const rm_lifetimes *all = &schedule->lifetimes;
    int64_t backward = first_backward(&schedule->plan);
    rm_lifetimes some = {.item = rm_calloc((size_t)all->count + 1, sizeof *some.item)};
    rm_placement placement = {0};
    REQUIRE(some.item, MEMORY, "out of memory for the buffers of a part");
    for (int64_t i = 0; i < all->count; i++)
        if ((all->item[i].first < backward && all->item[i].last >= backward) == held)
            some.item[some.count++] = all->item[i];
    remat_status status = rm_place(&some, &placement);
    if (!status) status = rm_placement_check(&some, &placement);
    for (int64_t i = 0, k = 0; !status && i < all->count; i++)
        if ((all->item[i].first < backward && all->item[i].last >= backward) == held)
            schedule->placement.offset[i] = from + placement.offset[k++];
    *bytes = placement.bytes;
    rm_placement_free(&placement);
    rm_free(some.item);
    return status;
}

remat_status rm_parts_place(remat_session *s, uint64_t copied, rm_schedule *schedule) {
    if (s->parts.n == 1) return REMAT_OK;
    uint64_t own = 0;
    TRY(place_some(schedule, false, 0, &s->parts.shared));
    TRY(place_some(schedule, true, s->parts.shared, &own));
    s->parts.each = own + copied;
    schedule->placement.bytes = s->parts.shared + (uint64_t)s->parts.n * s->parts.each;
    schedule->placement.floor_bytes = schedule->placement.bytes;
    return REMAT_OK;
}

uint64_t rm_parts_room(const remat_session *s) {
    return (s->training.transfers.room_bytes + RM_TRANSFER_ALIGN - 1) / RM_TRANSFER_ALIGN * RM_TRANSFER_ALIGN;
}

/* ---- Tables ----------------------------------------------------------------------------------------------------- */

static uint64_t pieces_of(const remat_session *s) { return (uint64_t)s->chain.problem.n_pieces + 1; }
static uint64_t stages_of(const remat_session *s) { return (uint64_t)s->chain.n_stages + 1; }

uint64_t rm_parts_table_bytes(const remat_session *s) {
    const rm_runner *r = &s->runner;
    uint64_t each = sizeof(rm_micro) + pieces_of(s) * sizeof *r->piece +
                    stages_of(s) * (sizeof *r->saved + sizeof *r->kept) +
                    (s->verify_recompute ? rm_verify_bytes(&s->chain) : 0);
    return (uint64_t)(s->parts.n - 1) * each;
}

static remat_status make_tables(remat_session *s, rm_micro *part) {
    const rm_runner *r = &s->runner;
    part->piece = rm_calloc(pieces_of(s), sizeof *part->piece);
    part->saved = rm_calloc(stages_of(s), sizeof *part->saved);
    part->kept = rm_calloc(stages_of(s), sizeof *part->kept);
    REQUIRE(part->piece && part->saved && part->kept, MEMORY, "out of memory for the tables of %d parts", s->parts.n);
    return s->verify_recompute ? rm_verify_create(&s->chain, s->api, r->queue, r->resident, &part->verify) : REMAT_OK;
}

remat_status rm_parts_allocate(remat_session *s) {
    rm_runner *r = &s->runner;
    if (s->parts.n == 1) return REMAT_OK;
    s->parts.item = rm_calloc((size_t)s->parts.n, sizeof *s->parts.item);
    REQUIRE(s->parts.item, MEMORY, "out of memory for %d parts", s->parts.n);
    s->parts.item[0] = (rm_micro){.piece = r->piece, .saved = r->saved, .kept = r->kept, .verify = r->verify};
    r->own_from = s->parts.shared;
    for (int i = 1; i < s->parts.n; i++) TRY(make_tables(s, &s->parts.item[i]));
    return REMAT_OK;
}

static void use_tables(remat_session *s, int part) {
    rm_runner *r = &s->runner;
    const rm_micro *p = &s->parts.item[part];
    r->piece = p->piece;
    r->saved = p->saved;
    r->kept = p->kept;
    r->verify = p->verify;
    r->own_shift = (uint64_t)part * s->parts.each;
    r->tier_shift = (uint64_t)part * rm_parts_room(s);
}

void rm_parts_free(remat_session *s) {
    if (!s->parts.item) return;
    use_tables(s, 0);
    for (int i = 1; i < s->parts.n; i++) {
        rm_free(s->parts.item[i].piece);
        rm_free(s->parts.item[i].saved);
        rm_free(s->parts.item[i].kept);
        rm_verify_free(s->parts.item[i].verify);
    }
    rm_free(s->parts.item);
}

/* ---- From part to part ------------------------------------------------------------------------------------------ */

void rm_parts_begin(remat_session *s, int part) { use_tables(s, part); }

void rm_parts_keep(remat_session *s, int part) {
    rm_micro *p = &s->parts.item[part];
    p->copies = claim_copies(s, part);
    copying c = copies_of(s, part, false);
    p->line = s->runner.line;
    p->lifetime = s->runner.lifetime;
    if (s->runner.tier) p->given = s->api->tier_given(s->runner.tier) - s->runner.given_before;
    p->count = s->count;
    p->divisor = s->divisor;
    on_arrays(&s->chain, copy, &c);
}

void rm_parts_take(remat_session *s, int part) {
    const rm_micro *p = &s->parts.item[part];
    copying c = copies_of(s, part, true);
    use_tables(s, part);
    s->runner.line = p->line;
    s->runner.lifetime = p->lifetime;
    s->runner.n_finished = 0;
    if (s->runner.tier) s->runner.given_before = s->api->tier_given(s->runner.tier) - p->given;
    s->count = p->count;
    s->divisor = p->divisor;
    on_arrays(&s->chain, copy, &c);
}

void rm_parts_keep_outputs(remat_session *s, int part) {
    copying c = copies_of(s, part, false);
    on_other_arrays(&s->chain, skip, &c);
    on_outputs(&s->chain, copy, &c);
}

int remat_pipeline_parts(const remat_session *s) { return s ? s->parts.n : 0; }

remat_status remat_pipeline_part(remat_session *s, int part) {
    NEED(s, "a session");
    REQUIRE(part >= 0 && part < s->parts.n, INVALID, "part %d: this session has %d in flight", part, s->parts.n);
    if (s->parts.n == 1) return REMAT_OK;
    REQUIRE(s->parts.complete, INVALID,
            "the last pass was not the last micro step of an update; call remat_pipeline_part right after that");
    copying c = copies_of(s, part, true);
    on_arrays(&s->chain, copy, &c);
    return s->api->synchronize(s->runner.queue);
}
