/* layer_times.c: see layer_times.h. Each part is built as if it were a rank of a pipeline, and calibrated like the network
 * of a session (calibrate.h). Messages do nothing meanwhile. */
#include "engine/times/layer_times.h"

#include "engine/times/calibrate.h"
#include "memory/host.h"

typedef struct {
    remat_session *session;
    const rm_chain *whole; /* cut everywhere */
    const rm_chain_config *config;
    rm_layer_times *times;
    double counted_ns; /* of all nodes */
} timing;

static bool is_of(const timing *t, int32_t node, int rank) {
    return t->whole->owner[node] == rank && t->whole->role[node] != RM_ROLE_DEAD;
}

static double counted_of(const timing *t, int rank) {
    double ns = 0;
    for (int32_t n = 0; n < t->whole->graph->n_nodes; n++)
        if (is_of(t, n, rank)) ns += rm_chain_counted_ns(t->whole, t->config, n);
    return ns;
}

/* Every stage kept whole. */
static double step_ns(const rm_chain *chain) {
    double ns = 0;
    for (int64_t s = 0; s < chain->n_stages; s++) {
        const rm_kind_option *all = &rm_stage_kind_of(chain, s)->option[0];
        ns += (double)all->forward.time_ns + (double)all->backward.time_ns;
    }
    return ns;
}

static remat_status measure_part(timing *t, int rank, double counted) {
    remat_session *s = t->session;
    const remat_config config = {.calibration = t->times->file};
    uint64_t most = s->memory_budget ? s->memory_budget : UINT64_MAX / 4;
    TRY(rm_session_calibrate(s, &config, most, RM_CALIBRATION_SECONDS * counted / t->counted_ns));
    double measured = step_ns(&s->chain);
    for (int32_t n = 0; n < s->graph->n_nodes; n++)
        if (is_of(t, n, rank)) t->times->node_ns[n] = rm_chain_counted_ns(t->whole, t->config, n) / counted * measured;
    return REMAT_OK;
}

static remat_status time_part(timing *t, int rank, int32_t loss, const int32_t *keep, int n_keep,
                              rm_chain_config config) {
    remat_session *s = t->session;
    const double counted = counted_of(t, rank);
    if (counted <= 0) return REMAT_OK;
    config.pipeline_rank = rank;
    remat_status status = rm_chain_build(s->graph, loss, keep, n_keep, &config, &s->chain);
    if (!status) status = rm_chain_adopt(&s->chain, t->whole);
    if (!status) status = measure_part(t, rank, counted);
    rm_chain_free(&s->chain);
    return status;
}

remat_status rm_session_time_layers(remat_session *s, int32_t loss, const int32_t *keep, int n_keep,
                                    const rm_chain_config *config, rm_layer_times *times) {
    const remat_pipeline everywhere = {.size = RM_EVERY_CUT};
    const remat_ranks alone = {.size = 1};
    rm_chain whole = {0};
    rm_chain_config ours = *config;
    timing t = {.session = s, .whole = &whole, .config = config, .times = times};
    ours.pipeline = &everywhere;
    ours.pipeline_rank = RM_EVERY_RANK;
    ours.ranks = &alone;
    times->node_ns = rm_calloc((size_t)s->graph->n_nodes + 1, sizeof *times->node_ns);
    REQUIRE(times->node_ns, MEMORY, "out of memory for the times of layers");
    remat_status status = rm_chain_build(s->graph, loss, keep, n_keep, &ours, &whole);
    for (int r = 0; r < whole.n_ranks && !status; r++) t.counted_ns += counted_of(&t, r);
    for (int r = 0; r < whole.n_ranks && !status; r++) status = time_part(&t, r, loss, keep, n_keep, ours);
    rm_chain_free(&whole);
    s->measured_times = s->measured_busy = false; /* these are not the times of a plan */
    s->fixed_ns = 0;
    return status;
}
