/* ema.c: see ema.h. */
#include "engine/abi.h"
#include "train/run/ema.h"

#include "memory/host.h"
#include "train/run/setup.h"
#include "train/state/stream.h"

enum { ROOM = 1 << 16 }; /* floats averaged at a time */

remat_status rm_ema_create(const rm_options *o, const rm_model_spec *training, bool plan_only, rm_ema *out) {
    rm_model_spec spec = *training;
    remat_config config = rm_setup_inference_config(o);
    *out = (rm_ema){0};
    if (o->ema == 0) return REMAT_OK;
    spec.window = 1;
    spec.data.weighted = false;
    config.plan_only = plan_only;
    config.tile = 0;
    out->room = plan_only ? NULL : rm_malloc(2 * ROOM * sizeof *out->room);
    REQUIRE(plan_only || out->room, MEMORY, "no memory to average weights");
    TRY(rm_model_build(&spec, 1, true, &out->model));
    return remat_session_create(out->model.graph, out->model.loss, &config, &out->session);
}

void rm_ema_free(rm_ema *ema) {
    remat_session_free(ema->session);
    rm_model_free(&ema->model);
    rm_free(ema->room);
    *ema = (rm_ema){0};
}

uint64_t rm_ema_bytes(const rm_ema *ema) {
    if (!ema->session) return 0;
    return rm_plan_summary_of(ema->session).budgeted_bytes + 2 * ROOM * sizeof *ema->room;
}

/* Averages `bytes` bytes from byte `at` on. */
static remat_status average(rm_ema *ema, float share, remat_session *weights, int64_t index, uint64_t at,
                            uint64_t bytes) {
    float *mean = ema->room, *now = ema->room + ROOM;
    TRY(remat_read_part(ema->session, REMAT_PARAM, index, at, mean, bytes));
    TRY(remat_read_part(weights, REMAT_PARAM, index, at, now, bytes));
    for (uint64_t i = 0; i < bytes / sizeof *mean; i++) mean[i] += share * (now[i] - mean[i]);
    return remat_write_part(ema->session, REMAT_PARAM, index, at, mean, bytes);
}

remat_status rm_ema_update(rm_ema *ema, double decay, remat_session *weights) {
    if (!ema->session) return REMAT_OK;
    if (!ema->begun) {
        for (int64_t i = 0; i < remat_count(weights, REMAT_PARAM); i++)
            TRY(rm_stream_copy(weights, ema->session, REMAT_PARAM, i));
        ema->begun = true;
        return REMAT_OK;
    }
    for (int64_t i = 0; i < remat_count(weights, REMAT_PARAM); i++) {
        remat_array array;
        const uint64_t most = ROOM * sizeof *ema->room;
        TRY(remat_array_info(weights, REMAT_PARAM, i, &array));
        for (uint64_t at = 0; at < array.bytes; at += most)
            TRY(average(ema, (float)(1 - decay), weights, i, at, array.bytes - at < most ? array.bytes - at : most));
    }
    return REMAT_OK;
}

remat_status rm_ema_settle(rm_ema *ema, remat_session *weights, remat_session **out) {
    *out = ema->session ? ema->session : weights;
    for (int64_t i = 0; ema->session && i < remat_count(weights, REMAT_BUFFER); i++)
        TRY(rm_stream_copy(weights, ema->session, REMAT_BUFFER, i));
    return REMAT_OK;
}
