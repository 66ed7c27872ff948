/* pipeline_cut.c: see pipeline_cut.h. Cuts are tried in the order of their predicted times. If the planner finds that some
 * ranks do not fit, all cuts are ruled out with a rank that has the same layers or more.
 *
 * If every cut is ruled out, the search goes on for the one whose largest rank is smallest, so that a refusal can name the
 * least budget. Both searches end soon: two cuts into as many parts have a part of the one within a part of the other, so
 * a cut of which no rank fits rules out all others. Main entry: rm_session_choose_cut. */
#include "engine/session/pipeline_cut.h"

#include "engine/times/layer_times.h"
#include "memory/host.h"

#include <string.h>

typedef struct {
    rm_node_run run;
    uint64_t bytes;
} tried_part;

typedef struct {
    const remat_graph *graph;
    int32_t loss;
    remat_config config;
    rm_layer_times times;
    tried_part *tried; /* of cuts that do not fit */
    rm_node_run *full; /* those that need more than `limit` */
    int64_t n_tried, tried_capacity, n_full, full_capacity;
    uint64_t limit, least_bytes; /* least_bytes: what the cut in `choice` needs on its largest rank; 0: none yet */
    rm_cut_choice *choice;
} search;

/* ---- One cut ---------------------------------------------------------------------------------------------------- */

/* On a device that computes; an evaluation has no backward pass to time. */
static bool measures(const remat_config *config) {
    return config->calibration && !config->inference && strcmp(config->device ? config->device : "cpu", "null") != 0;
}

static remat_status find_full(search *c) {
    REQUIRE(rm_grow(&c->full, &c->full_capacity, c->n_tried + 1, sizeof *c->full), MEMORY,
            "out of memory for the cuts of a pipeline");
    c->n_full = 0;
    for (int64_t i = 0; i < c->n_tried; i++)
        if (c->tried[i].bytes > c->limit) c->full[c->n_full++] = c->tried[i].run;
    return REMAT_OK;
}

static remat_status keep_cut(const remat_session *s, char **cut) {
    rm_free(*cut);
    *cut = rm_strdup(s->chain.cut);
    REQUIRE(*cut, MEMORY, "out of memory for the cuts of a pipeline");
    return REMAT_OK;
}

/* Notes what each rank needs. *most: the rank that needs most. */
static remat_status note_parts(search *c, const remat_session *s, int *most) {
    *most = 0;
    REQUIRE(rm_grow(&c->tried, &c->tried_capacity, c->n_tried + s->pipeline.size, sizeof *c->tried), MEMORY,
            "out of memory for the cuts of a pipeline");
    for (int r = 0; r < s->pipeline.size; r++) {
        c->tried[c->n_tried++] = (tried_part){s->chain.part[r], s->of_rank[r].needed_bytes};
        if (s->of_rank[r].needed_bytes > s->of_rank[*most].needed_bytes) *most = r;
    }
    return REMAT_OK;
}

static remat_status rule_out(search *c, const remat_session *s) {
    int rank;
    TRY(note_parts(c, s, &rank));
    uint64_t bytes = s->of_rank[rank].needed_bytes;
    if (!c->choice->fastest) {
        TRY(keep_cut(s, &c->choice->fastest));
        c->choice->rank = rank;
        c->choice->bytes = bytes;
    }
    c->choice->n_ruled_out++;
    if (c->least_bytes && bytes >= c->least_bytes) return REMAT_OK;
    c->least_bytes = bytes;
    return keep_cut(s, &c->choice->cut);
}

/* *last: no cut is left. */
static remat_status try_next(search *c, bool *last) {
    remat_session *s;
    TRY(find_full(c));
    rm_layer_times *times = c->choice->measured ? &c->times : NULL;
    remat_status status = rm_session_try_cut(c->graph, c->loss, &c->config, c->full, (int)c->n_full, times, &s);
    *last = !status || (status == REMAT_INVALID && c->n_full);
    c->choice->fits = !status;
    if (*last && status)
        status = REMAT_OK;
    else if (!status)
        status = keep_cut(s, &c->choice->cut);
    else if (status == REMAT_INFEASIBLE)
        status = rule_out(c, s);
    remat_session_free(s);
    return status;
}

/* ---- All of them ------------------------------------------------------------------------------------------------ */

static remat_status search_cuts(search *c) {
    for (bool last = false; !last;) TRY(try_next(c, &last));
    for (bool last = c->choice->fits; !last;) {
        c->limit = c->least_bytes - 1;
        TRY(try_next(c, &last));
    }
    return REMAT_OK;
}

static search begin_search(const remat_graph *graph, int32_t loss, const remat_config *config, rm_cut_choice *out) {
    *out = (rm_cut_choice){0};
    return (search){.graph = graph,
                    .loss = loss,
                    .config = *config,
                    .times.file = config->calibration,
                    .limit = config->memory_budget,
                    .choice = out};
}

static remat_status end_search(search *c, remat_status status) {
    rm_free(c->tried);
    rm_free(c->full);
    c->choice->node_ns = c->times.node_ns;
    return status;
}

remat_status rm_session_choose_cut(const remat_graph *graph, int32_t loss, const remat_config *config,
                                   rm_cut_choice *out) {
    search c = begin_search(graph, loss, config, out);
    if (config->pipeline->cut) c.config.memory_budget = 0; /* the session that runs is refused */
    out->told = config->pipeline->cut != NULL;
    out->measured = !out->told && measures(config);
    return end_search(&c, search_cuts(&c));
}

/* Where the layers of a rank begin and end with the config's cut. */
static remat_status find_part(search *c, int rank, rm_node_run *part) {
    remat_session *s;
    remat_config unlimited = c->config;
    unlimited.memory_budget = 0;
    remat_status status = rm_session_try_cut(c->graph, c->loss, &unlimited, NULL, 0, NULL, &s);
    if (!status) *part = s->chain.part[rank];
    remat_session_free(s);
    return status;
}

static remat_status search_lighter_cuts(search *c, int rank, remat_pipeline *uncut) {
    rm_node_run part;
    bool last = false;
    TRY(find_part(c, rank, &part));
    REQUIRE(rm_grow(&c->tried, &c->tried_capacity, 1, sizeof *c->tried), MEMORY,
            "out of memory for the cuts of a pipeline");
    c->tried[c->n_tried++] = (tried_part){part, UINT64_MAX};
    *uncut = *c->config.pipeline;
    uncut->cut = NULL;
    c->config.pipeline = uncut;
    while (!last) TRY(try_next(c, &last));
    if (c->choice->fits) return REMAT_OK;
    rm_free(c->choice->cut);
    c->choice->cut = NULL;
    return REMAT_OK;
}

remat_status rm_session_choose_lighter_cut(const remat_graph *graph, int32_t loss, const remat_config *config, int rank,
                                           rm_cut_choice *out) {
    search c = begin_search(graph, loss, config, out);
    remat_pipeline uncut;
    out->measured = measures(config);
    return end_search(&c, search_lighter_cuts(&c, rank, &uncut));
}

/* A length and a text; length 0: rank 0 has failed. */
static remat_status share_cut(const remat_pipeline *p, remat_status status, rm_cut_choice *choice) {
    uint64_t bytes = choice->cut && !status ? strlen(choice->cut) + 1 : 0;
    for (int r = 1; r < p->size && p->rank == 0; r++) {
        remat_status sent = p->send(p->context, r, &bytes, sizeof bytes);
        if (!sent && bytes) sent = p->send(p->context, r, choice->cut, bytes);
        if (!status) status = sent;
    }
    if (p->rank == 0) return status;
    TRY(p->receive(p->context, 0, &bytes, sizeof bytes));
    REQUIRE(bytes, PEER, "rank 0 of the pipeline could not choose a cut");
    choice->cut = rm_calloc(bytes, 1);
    REQUIRE(choice->cut, MEMORY, "out of memory for the cuts of a pipeline");
    return p->receive(p->context, 0, choice->cut, bytes);
}

remat_status rm_session_agree_on_cut(const remat_graph *graph, int32_t loss, const remat_config *config,
                                     rm_cut_choice *out) {
    const remat_pipeline *p = config->pipeline;
    const bool shared = measures(config) && p->send && p->receive && !config->plan_only;
    if (p->size <= 1 || p->cut || !(config->memory_budget || measures(config))) return REMAT_OK;
    remat_status status = shared && p->rank ? REMAT_OK : rm_session_choose_cut(graph, loss, config, out);
    return shared ? share_cut(p, status, out) : status;
}

void rm_cut_choice_free(rm_cut_choice *choice) {
    rm_free(choice->cut);
    rm_free(choice->fastest);
    rm_free(choice->node_ns);
    *choice = (rm_cut_choice){0};
}
