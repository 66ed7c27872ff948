/* pipeline_times.c: see pipeline_times.h. Each rank has a clock and goes through its instructions until it needs a message
 * that has not been sent, or room for one. Main entry: rm_pipeline_times. */
#include "engine/report/pipeline_times.h"

#include <math.h>

#include "memory/host.h"

/* Messages from one rank to another. */
typedef struct {
    struct {
        uint64_t bytes, at; /* at: when it has been sent */
    } * message;
    int64_t sent, received, capacity;
    uint64_t there, taken_at; /* bytes not received; when the last message was received */
} channel;

typedef struct {
    remat_session *session;
    const rm_program *program;            /* NULL: of the next line */
    int64_t line, backward, stages_begun; /* backward: the first such line */
    int part;                             /* of those in flight together (engine/session/parts.h) */
    int32_t next;                         /* instruction */
    bool first;
    int8_t *kept; /* by stage: the option */
    uint64_t clock;
    rm_pipeline_rank *out;
} walker;

typedef struct {
    walker *rank;
    channel *channel; /* (from, to) */
    int n;
    uint64_t room;
    double *factor; /* by node: measured over counted time; NULL: only counted */
} simulation;

static channel *channel_of(const simulation *s, int from, int to) { return &s->channel[from * s->n + to]; }

/* ---- Times ------------------------------------------------------------------------------------------------------ */

static remat_cost cost_of(const remat_graph *graph, const rm_instruction *i, int64_t tau) {
    static const remat_pass pass[] = {[RM_DO_FORWARD] = REMAT_FORWARD,
                                      [RM_DO_BACKWARD] = REMAT_BACKWARD,
                                      [RM_DO_REBUILD] = REMAT_REBUILD,
                                      [RM_DO_ONCE] = REMAT_ONCE};
    remat_cost cost = {0};
    if (i->node >= 0) {
        const rm_node *node = &graph->node[i->node];
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(graph, node, tau, x, &y, state);
        node->op->cost(x, &y, node->attr, pass[i->what], &cost);
    } else {
        cost.moved_bytes = (i->what == RM_DO_ADD ? 12.0 : 8.0) * (double)i->count;
    }
    return cost;
}

static double counted_ns(const remat_session *s, const rm_instruction *i, int64_t stage) {
    const rm_rates *rates = &s->rates;
    const remat_cost cost = cost_of(s->chain.graph, i, rm_stage_kind_of(&s->chain, stage)->tau);
    return 1e9 * fmax(cost.flops / rates->flops_per_s, cost.moved_bytes / rates->bytes_per_s) + rates->call_ns;
}

static uint64_t time_of(const simulation *s, const walker *w, const rm_instruction *i) {
    double ns = counted_ns(w->session, i, w->session->training.plan.step[w->line].index);
    if (s->factor && i->node >= 0) ns *= s->factor[i->node];
    return (uint64_t)fmin(ns, 0x1p50);
}

static void add_counted(const remat_session *s, const rm_program *program, int64_t stage, double *ns) {
    for (int32_t k = 0; k < program->n; k++) {
        const rm_instruction i = rm_program_at(program, k);
        if (i.node >= 0) ns[i.node] += counted_ns(s, &i, stage);
    }
}

/* Of the same work as the measured times: every stage kept whole. */
static remat_status find_factors(simulation *s, remat_session *const *session, const double *node_ns) {
    const int32_t nodes = session[0]->chain.graph->n_nodes;
    if (!node_ns) return REMAT_OK;
    s->factor = rm_calloc((size_t)nodes + 1, sizeof *s->factor);
    REQUIRE(s->factor, MEMORY, "out of memory to simulate a pipeline");
    for (int r = 0; r < s->n; r++)
        for (int64_t stage = 0; stage < session[r]->chain.n_stages; stage++) {
            const rm_kind_option *all = &rm_stage_kind_of(&session[r]->chain, stage)->option[0];
            add_counted(session[r], &all->forward, stage, s->factor);
            add_counted(session[r], &all->backward, stage, s->factor);
        }
    for (int32_t n = 0; n < nodes; n++) s->factor[n] = s->factor[n] > 0 ? node_ns[n] / s->factor[n] : 1;
    return REMAT_OK;
}

/* ---- One instruction -------------------------------------------------------------------------------------------- */

static remat_status put(channel *c, uint64_t bytes, uint64_t at) {
    REQUIRE(rm_grow(&c->message, &c->capacity, c->sent + 1, sizeof *c->message), MEMORY,
            "out of memory to simulate a pipeline");
    c->message[c->sent].bytes = bytes;
    c->message[c->sent++].at = at;
    c->there += bytes;
    return REMAT_OK;
}

static uint64_t take(channel *c) {
    uint64_t at = c->message[c->received].at;
    c->there -= c->message[c->received++].bytes;
    return at;
}

static bool is_blocked(const simulation *s, int rank, const rm_instruction *i) {
    if (i->what == RM_DO_RECEIVE) return channel_of(s, i->peer, rank)->received == channel_of(s, i->peer, rank)->sent;
    if (i->what != RM_DO_SEND) return false;
    const channel *c = channel_of(s, rank, i->peer);
    return c->there && c->there + 4 * (uint64_t)i->count > s->room;
}

/* A message can be received while it is being sent. */
static remat_status execute(simulation *s, int rank, const rm_instruction *i) {
    walker *w = &s->rank[rank];
    const uint64_t ns = time_of(s, w, i), bytes = 4 * (uint64_t)i->count;
    channel *to = i->what == RM_DO_SEND ? channel_of(s, rank, i->peer) : NULL;
    channel *from = i->what == RM_DO_RECEIVE ? channel_of(s, i->peer, rank) : NULL;
    uint64_t from_when = w->clock;
    if (from) from_when = take(from);
    if (to && to->there + bytes > s->room) from_when = to->taken_at;
    if (from_when > w->clock) w->clock = from_when;
    w->clock += ns;
    w->out->compute_ns += ns;
    if (from) from->taken_at = w->clock;
    if (!to) return REMAT_OK;
    w->out->sent_bytes += bytes;
    return put(to, bytes, w->clock);
}

/* ---- The plan --------------------------------------------------------------------------------------------------- */

/* As program_of and is_first in engine/session/run.c. */
static void begin_line(walker *w, const rm_step *step) {
    const rm_stage_kind *kind = rm_stage_kind_of(&w->session->chain, step->index);
    bool forward = step->verb == RM_RUN_FORWARD;
    if (!forward && step->verb != RM_RUN_BACKWARD) return;
    w->first = forward && step->index == w->stages_begun;
    w->stages_begun += w->first;
    w->next = 0;
    if (!forward)
        w->program = &kind->option[w->kept[step->index]].backward;
    else if (step->option == RM_DROP)
        w->program = &kind->drop;
    else
        w->program = &kind->option[w->kept[step->index] = step->option].forward;
}

/* The next line. All parts run forward before the first runs backward. */
static void end_line(walker *w) {
    bool again = w->part + 1 < w->session->parts.n;
    w->program = NULL;
    w->line++;
    if (w->line != w->backward && w->line != w->session->training.plan.n_steps) return;
    bool forward = w->line == w->backward;
    if (!again && !forward) return;
    w->part = again ? w->part + 1 : 0;
    if (!again) return;
    w->line = forward ? 0 : w->backward;
    w->stages_begun = 0;
}

/* Goes on to the next instruction that the rank cannot execute yet. *moved: executed one. */
static remat_status advance(simulation *s, int rank, bool *moved) {
    walker *w = &s->rank[rank];
    const rm_plan *plan = &w->session->training.plan;
    while (w->line < plan->n_steps) {
        if (!w->program) begin_line(w, &plan->step[w->line]);
        for (; w->program && w->next < w->program->n; w->next++) {
            const rm_instruction i = rm_program_at(w->program, w->next);
            if (i.once && !w->first) continue;
            if (is_blocked(s, rank, &i)) return REMAT_OK;
            TRY(execute(s, rank, &i));
            *moved = true;
        }
        end_line(w);
    }
    return REMAT_OK;
}

static remat_status simulate(simulation *s) {
    uint64_t end = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->n; r++) TRY(advance(s, r, &moved));
    }
    for (int r = 0; r < s->n; r++) {
        const walker *w = &s->rank[r];
        REQUIRE(w->line == w->session->training.plan.n_steps, INTERNAL, "rank %d of a pipeline waits forever", r);
        if (w->clock > end) end = w->clock;
    }
    for (int r = 0; r < s->n; r++) s->rank[r].out->wait_ns = end - s->rank[r].out->compute_ns;
    return REMAT_OK;
}

static remat_status prepare(simulation *s, remat_session *const *session, rm_pipeline_rank *out) {
    REQUIRE(s->rank && s->channel, MEMORY, "out of memory to simulate a pipeline");
    for (int r = 0; r < s->n; r++) {
        REQUIRE(session[r]->training.plan.n_steps == session[0]->training.plan.n_steps, INVALID,
                "the ranks of a pipeline have other plans");
        out[r] = (rm_pipeline_rank){0};
        s->rank[r] = (walker){.session = session[r], .out = &out[r]};
        const rm_plan *plan = &session[r]->training.plan;
        while (plan->step[s->rank[r].backward].verb != RM_RUN_BACKWARD) s->rank[r].backward++;
        s->rank[r].kept = rm_calloc((size_t)session[r]->chain.n_stages + 1, sizeof *s->rank[r].kept);
        REQUIRE(s->rank[r].kept, MEMORY, "out of memory to simulate a pipeline");
    }
    return REMAT_OK;
}

remat_status rm_pipeline_times(remat_session *const *session, int n, uint64_t room, const double *node_ns,
                               rm_pipeline_rank *out) {
    simulation s = {.n = n, .room = room};
    s.rank = rm_calloc((size_t)n, sizeof *s.rank);
    s.channel = rm_calloc((size_t)n * (size_t)n, sizeof *s.channel);
    remat_status status = prepare(&s, session, out);
    if (!status) status = find_factors(&s, session, node_ns);
    if (!status) status = simulate(&s);
    for (int r = 0; s.rank && r < n; r++) rm_free(s.rank[r].kept);
    for (int c = 0; s.channel && c < n * n; c++) rm_free(s.channel[c].message);
    rm_free(s.rank);
    rm_free(s.channel);
    rm_free(s.factor);
    return status;
}
