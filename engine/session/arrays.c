/* arrays.c: the named arrays of a session: their lists, copying them in and out, and initial parameters. */
#include <stdio.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/finite.h"
#include "engine/hash.h"
#include "engine/rng.h"
#include "engine/session/session.h"
#include "memory/host.h"

/* ---- The lists ------------------------------------------------------------------------------------------------ */

static remat_status add_array(remat_session *s, remat_kind kind, const char *name, const char *suffix, remat_desc desc,
                              const rm_where *where, int holder) {
    int64_t n = s->n_arrays[kind];
    REQUIRE(rm_grow(&s->array[kind], &s->array_capacity[kind], n + 1, sizeof *s->array[kind]), MEMORY,
            "out of memory for the list of arrays");
    size_t length = strlen(name) + strlen(suffix) + 2;
    char *text = rm_malloc(length);
    REQUIRE(text, MEMORY, "out of memory for the name %s", name);
    snprintf(text, length, *suffix ? "%s.%s" : "%s%s", name, suffix);
    s->array[kind][n] = (rm_session_array){
        .name = text, .desc = desc, .where = *where, .elsewhere = rm_is_elsewhere(where), .holder = holder};
    if (!rm_is_elsewhere(where)) s->array[kind][n].held = rm_desc_count(&desc);
    s->n_arrays[kind]++;
    return REMAT_OK;
}

static remat_status list_param(remat_session *s, const rm_parameter *p) {
    int32_t v = p->value;
    const rm_value *value = &s->graph->value[v];
    const rm_residents *at = &s->chain.at;
    const int holder = rm_chain_holder(&s->chain, v);
    TRY(add_array(s, REMAT_PARAM, value->name, "", value->desc, &at->value[v], holder));
    bool elsewhere = rm_is_elsewhere(&at->value[v]);
    if (s->inference || !(elsewhere ? value->needs_gradient : p->bucket >= 0)) return REMAT_OK;
    TRY(add_array(s, REMAT_GRADIENT, value->name, "", value->desc, &at->gradient[v], holder));
    for (int i = 0; s->optimizer && i < s->optimizer->states_used(&s->update); i++) {
        TRY(add_array(s, REMAT_OPTIMIZER, value->name, s->optimizer->state_name[i], value->desc,
                      elsewhere ? &at->value[v]
                                : &at->optimizer_state[(p - at->buckets.param) * RM_MAX_OPTIMIZER_STATE + i],
                      holder));
        rm_session_array *array = &s->array[REMAT_OPTIMIZER][s->n_arrays[REMAT_OPTIMIZER] - 1];
        array->first = p->first;
        array->held = p->held;
    }
    return REMAT_OK;
}

static remat_status list_carried(remat_session *s) {
    for (int k = 0; s->stateful && k < s->chain.n_carried; k++) {
        const rm_carried *carried = &s->chain.carried[k];
        if (!carried->keeps) continue;
        remat_desc x[REMAT_MAX_INPUTS], y, state[REMAT_MAX_STATES];
        rm_node_descs(s->graph, &s->graph->node[carried->node], 0, x, &y, state);
        char name[80];
        rm_chain_state_name(&s->chain, k, name);
        TRY(add_array(s, REMAT_CARRIED, name, "", state[carried->state], &s->chain.at.carried[k],
                      rm_chain_holder(&s->chain, s->graph->node[carried->node].y)));
    }
    return REMAT_OK;
}

/* Whether a live node reads the value: dead nodes contribute neither to the loss nor to an output. */
static bool is_read(const remat_session *s, int32_t value) {
    for (int32_t n = 0; n < s->graph->n_nodes; n++)
        for (int i = 0; s->chain.role[n] != RM_ROLE_DEAD && i < REMAT_MAX_INPUTS; i++)
            if (s->graph->node[n].x[i] == value) return true;
    return false;
}

static remat_status list_input(remat_session *s, int32_t v) {
    const rm_value *value = &s->graph->value[v];
    const int holder = rm_chain_holder(&s->chain, v);
    TRY(add_array(s, REMAT_INPUT, value->name, "", value->desc, &s->chain.at.value[v], holder));
    rm_session_array *array = &s->array[REMAT_INPUT][s->n_arrays[REMAT_INPUT] - 1];
    array->bound = rm_chain_bound(&s->chain, v);
    array->ignored = rm_chain_ignored(&s->chain, v);
    array->missing = is_read(s, v) && array->where.space != RM_EXTERNAL;
    const rm_where *gradient = &s->chain.at.gradient[v];
    return gradient->space ? add_array(s, REMAT_GRADIENT, value->name, "", value->desc, gradient, holder) : REMAT_OK;
}

static remat_status list_output(remat_session *s, int i) {
    char name[RM_OUTPUT_NAME];
    rm_output_name(i, name);
    int32_t v = s->chain.outputs[i];
    const remat_desc *desc = &s->graph->value[v].desc;
    const int holder = rm_chain_holder(&s->chain, v);
    TRY(add_array(s, REMAT_OUTPUT, name, "", *desc, &s->chain.at.output[i], holder));
    if (i >= s->chain.n_differentiated) return REMAT_OK;
    return add_array(s, REMAT_OUTPUT_GRADIENT, name, "", *desc, &s->chain.at.gradient[v], holder);
}

remat_status rm_session_list_arrays(remat_session *s) {
    for (int32_t i = 0; i < s->chain.at.buckets.n_params; i++) TRY(list_param(s, &s->chain.at.buckets.param[i]));
    for (int32_t v = 1; v < s->graph->n_values; v++)
        if (s->graph->value[v].origin == RM_VALUE_INPUT) TRY(list_input(s, v));
    for (int32_t v = 1; v < s->graph->n_values; v++)
        if (s->graph->value[v].origin == RM_VALUE_BUFFER)
            TRY(add_array(s, REMAT_BUFFER, s->graph->value[v].name, "", s->graph->value[v].desc, &s->chain.at.value[v],
                          rm_chain_holder(&s->chain, v)));
    for (int i = 0; i < s->chain.n_outputs; i++) TRY(list_output(s, i));
    return list_carried(s);
}

void rm_session_free_arrays(remat_session *s) {
    for (int kind = 0; kind < RM_ARRAY_KINDS; kind++) {
        for (int64_t i = 0; i < s->n_arrays[kind]; i++) rm_free(s->array[kind][i].name);
        rm_free(s->array[kind]);
    }
}

/* ---- Queries -------------------------------------------------------------------------------------------------- */

int64_t remat_count(const remat_session *s, remat_kind kind) {
    return s && (unsigned)kind < RM_ARRAY_KINDS ? s->n_arrays[kind] : 0;
}

static remat_status find_array(const remat_session *s, remat_kind kind, int64_t index, const rm_session_array **out) {
    REQUIRE(index >= 0 && index < remat_count(s, kind), INVALID, "no array %lld of that kind; this session has %lld",
            (long long)index, (long long)remat_count(s, kind));
    *out = &s->array[kind][index];
    return REMAT_OK;
}

uint64_t rm_session_held_bytes(const rm_session_array *array) {
    return (uint64_t)array->held * rm_dtype_bytes(array->desc.dtype);
}

remat_status remat_array_info(const remat_session *s, remat_kind kind, int64_t index, remat_array *out) {
    const rm_session_array *array = NULL;
    NEED(s, "a session");
    NEED(out, "a place for the result");
    TRY(find_array(s, kind, index, &array));
    remat_array info = {.name = array->name,
                        .dtype = array->desc.dtype,
                        .rank = array->desc.rank,
                        .bytes = rm_session_held_bytes(array),
                        .first = array->first,
                        .count = array->held};
    memcpy(info.dim, array->desc.dim, sizeof info.dim);
    *out = info;
    return REMAT_OK;
}

int64_t remat_find(const remat_session *s, remat_kind kind, const char *name) {
    for (int64_t i = 0; name && i < remat_count(s, kind); i++)
        if (!strcmp(s->array[kind][i].name, name)) return i;
    return -1;
}

/* ---- Copying -------------------------------------------------------------------------------------------------- */

static remat_status check_whole(const remat_session *s, remat_kind kind, int64_t index, uint64_t bytes) {
    const rm_session_array *array = NULL;
    TRY(find_array(s, kind, index, &array));
    if (array->elsewhere) return REMAT_OK;
    REQUIRE(bytes == rm_session_held_bytes(array), INVALID, "%s holds %llu bytes, but %llu were given", array->name,
            (unsigned long long)rm_session_held_bytes(array), (unsigned long long)bytes);
    return REMAT_OK;
}

static remat_status check_part(const remat_session *s, remat_kind kind, int64_t index, uint64_t first, const void *data,
                               uint64_t bytes, const rm_session_array **array) {
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it holds no arrays");
    TRY(find_array(s, kind, index, array));
    uint64_t held = rm_session_held_bytes(*array), element = rm_dtype_bytes((*array)->desc.dtype);
    REQUIRE(data || !bytes, INVALID, "%s: data is NULL, but %llu bytes are to be copied", (*array)->name,
            (unsigned long long)bytes);
    REQUIRE(first <= held && bytes <= held - first, INVALID, "%s holds %llu bytes, not %llu from byte %llu on",
            (*array)->name, (unsigned long long)held, (unsigned long long)bytes, (unsigned long long)first);
    REQUIRE(first % element == 0 && bytes % element == 0, INVALID,
            "%s: %llu bytes from byte %llu on are not whole elements of %llu bytes", (*array)->name,
            (unsigned long long)bytes, (unsigned long long)first, (unsigned long long)element);
    return REMAT_OK;
}

/* `data` has n elements; its first is element `first` of the array. */
static remat_status check_range(const rm_session_array *array, const int32_t *data, uint64_t first, uint64_t n) {
    for (uint64_t i = 0; array->bound && i < n; i++)
        REQUIRE((data[i] >= 0 && data[i] < array->bound) || (array->ignored && data[i] == array->ignored), INVALID,
                "%s: element %llu is %d; the layers that read it allow 0 to %lld", array->name,
                (unsigned long long)(first + i), data[i], (long long)array->bound - 1);
    return REMAT_OK;
}

void *rm_session_address(const remat_session *s, const rm_session_array *array) {
    if (array->theirs) return rm_session_address(s->lender, array->theirs);
    return rm_run_address(&s->runner, &array->where);
}

static remat_status check_here(const rm_session_array *array) {
    REQUIRE(!array->elsewhere, INVALID, "%s lies on another rank of the pipeline: read it there", array->name);
    return REMAT_OK;
}

static remat_status check_there(const remat_session *s, const rm_session_array *array) {
    bool there = array->where.space != RM_EXTERNAL || rm_session_address(s, array);
    REQUIRE(there, INVALID, "%s is external and has no memory yet: call remat_set_external for it", array->name);
    return REMAT_OK;
}

/* Can remat_backward continue although the program changed an array of this kind? */
static bool keeps_forward(remat_kind kind) {
    return kind == REMAT_GRADIENT || kind == REMAT_OUTPUT_GRADIENT || kind == REMAT_OPTIMIZER;
}

remat_status remat_set_external(remat_session *s, remat_kind kind, int64_t index, void *memory, uint64_t bytes) {
    const rm_session_array *array = NULL;
    NEED(s, "a session");
    NEED(memory, "memory");
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it holds no arrays");
    TRY(check_whole(s, kind, index, bytes));
    TRY(find_array(s, kind, index, &array));
    TRY(check_here(array));
    REQUIRE(array->where.space == RM_EXTERNAL, INVALID,
            "%s is in the arena; to keep it in external memory, list it in external", array->name);
    REQUIRE((uintptr_t)memory % rm_dtype_bytes(array->desc.dtype) == 0, INVALID,
            "%s: the memory at %p does not begin at a multiple of %llu bytes; align it", array->name, memory,
            (unsigned long long)rm_dtype_bytes(array->desc.dtype));
    REQUIRE(!array->theirs, INVALID, "%s is another session's (share): move it there", array->name);
    s->runner.external[array->where.slot] = memory;
    s->ran_forward &= keeps_forward(kind);
    return REMAT_OK;
}

static uint64_t hash_of(const remat_session *s, const rm_session_array *array) {
    return rm_hash(rm_session_address(s, array), rm_session_held_bytes(array), 0);
}

/* Notes that from now on the program may write there without a call. */
remat_status remat_array_memory(remat_session *s, remat_kind kind, int64_t index, void **memory) {
    const rm_session_array *array = NULL;
    NEED(s, "a session");
    NEED(memory, "a place for the result");
    REQUIRE(!s->plan_only, INVALID, "this session was made to plan only; it holds no arrays");
    TRY(find_array(s, kind, index, &array));
    TRY(check_here(array));
    TRY(check_there(s, array));
    REQUIRE(s->api->reachable || !array->bound, MISSING,
            "%s: integers are checked when they are written, and on the device \"%s\" nothing else can check them; "
            "use remat_write",
            array->name, s->api->name);
    rm_session_array *mine = &s->array[kind][index];
    if (kind == REMAT_PARAM && s->ran_forward && !mine->hashed && s->api->reachable) {
        mine->hash = hash_of(s, mine); /* the value that the forward pass read */
        mine->hashed = true;
    }
    rm_session_owned(mine)->shown = true;
    mine->missing = false;
    *memory = rm_session_address(s, array);
    return REMAT_OK;
}

/* Every rank writes all inputs, including those that only other ranks read. */
static remat_status write_elsewhere(remat_session *s, remat_kind kind, int64_t index) {
    s->array[kind][index].missing = false;
    s->ran_forward = false;
    return REMAT_OK;
}

remat_status remat_write_part(remat_session *s, remat_kind kind, int64_t index, uint64_t first, const void *data,
                              uint64_t bytes) {
    const rm_session_array *array = NULL;
    NEED(s, "a session");
    TRY(find_array(s, kind, index, &array));
    if (array->elsewhere) return write_elsewhere(s, kind, index);
    TRY(check_part(s, kind, index, first, data, bytes, &array));
    TRY(check_there(s, array));
    if (array->desc.dtype == REMAT_I32) TRY(check_range(array, data, first / 4, bytes / 4));
    if (bytes) s->api->copy_in(s->runner.queue, (char *)rm_session_address(s, array) + first, data, bytes);
    rm_session_root(s)->parameters_version += kind == REMAT_PARAM;
    s->ran_forward &= keeps_forward(kind);
    if (bytes) s->array[kind][index].missing = false;
    return s->api->synchronize(s->runner.queue);
}

remat_status remat_write(remat_session *s, remat_kind kind, int64_t index, const void *data, uint64_t bytes) {
    NEED(s, "a session");
    TRY(check_whole(s, kind, index, bytes));
    return remat_write_part(s, kind, index, 0, data, bytes);
}

remat_status remat_read(remat_session *s, remat_kind kind, int64_t index, void *data, uint64_t bytes) {
    NEED(s, "a session");
    TRY(check_whole(s, kind, index, bytes));
    return remat_read_part(s, kind, index, 0, data, bytes);
}

static bool is_made(const remat_session *s, int64_t output) {
    return s->evaluated || (s->handed_out && output < s->chain.n_differentiated) ||
           (s->trained && s->chain.use[s->chain.outputs[output]] != RM_UNUSED);
}

remat_status remat_read_part(remat_session *s, remat_kind kind, int64_t index, uint64_t first, void *data,
                             uint64_t bytes) {
    const rm_session_array *array = NULL;
    NEED(s, "a session");
    TRY(find_array(s, kind, index, &array));
    TRY(check_here(array));
    TRY(check_part(s, kind, index, first, data, bytes, &array));
    REQUIRE(kind != REMAT_GRADIENT || s->chain.at.buckets.parts == 1 || index >= s->chain.at.buckets.n_trained, INVALID,
            "%s: with a sharded optimizer, a rank receives only its part of the gradients; to read them, do not shard",
            array->name);
    REQUIRE(
        kind != REMAT_OUTPUT || is_made(s, index), INVALID,
        "%s has not been computed yet: call remat_evaluate; an output that the loss depends on is also computed by a "
        "training step",
        array->name);
    TRY(check_there(s, array));
    if (bytes) s->api->copy_out(s->runner.queue, data, (char *)rm_session_address(s, array) + first, bytes);
    return s->api->synchronize(s->runner.queue);
}

/* A step on inputs that were never written would not fail visibly. The null device computes nothing and reads no
 * inputs. */
static remat_status check_input(const remat_session *s, const rm_session_array *array) {
    REQUIRE(!array->missing, INVALID,
            "the input %s has never been written: call remat_write for it before the first pass", array->name);
    bool unnoticed = array->shown || array->where.space == RM_EXTERNAL;
    return unnoticed ? check_range(array, rm_session_address(s, array), 0, (uint64_t)array->held) : REMAT_OK;
}

/* The program may give output gradients, and before remat_backward all gradients, their memory later. */
remat_status rm_session_check_arrays(const remat_session *s, bool gradients) {
    for (int kind = 0; kind < RM_ARRAY_KINDS && s->chain.at.n_external && rm_session_is_real(s); kind++) {
        bool later = kind == REMAT_OUTPUT_GRADIENT || (kind == REMAT_GRADIENT && !gradients);
        for (int64_t i = 0; i < s->n_arrays[kind] && !later; i++) TRY(check_there(s, &s->array[kind][i]));
    }
    for (int64_t i = 0; rm_session_is_real(s) && i < s->n_arrays[REMAT_INPUT]; i++)
        TRY(check_input(s, &s->array[REMAT_INPUT][i]));
    return REMAT_OK;
}

static remat_status check_finite(const remat_session *s, const rm_session_array *array, double loss) {
    float room[1024];
    const char *at = rm_session_address(s, array);
    for (int64_t first = 0, some; first < array->held; first += some) {
        some = array->held - first < 1024 ? array->held - first : 1024;
        s->api->copy_out(s->runner.queue, room, at + first * (int64_t)sizeof *room, (uint64_t)some * sizeof *room);
        TRY(s->api->synchronize(s->runner.queue));
        const int64_t i = rm_find_nonfinite(room, some);
        REQUIRE(i < 0, INVALID, "the loss is %g, because the input %s is %g at element %lld: check the data", loss,
                array->name, (double)room[i], (long long)(first + i));
    }
    return REMAT_OK;
}

remat_status rm_session_explain_loss(const remat_session *s, double loss) {
    for (int64_t i = 0; !isfinite(loss) && i < s->n_arrays[REMAT_INPUT]; i++)
        if (s->array[REMAT_INPUT][i].desc.dtype == REMAT_F32) TRY(check_finite(s, &s->array[REMAT_INPUT][i], loss));
    return REMAT_OK;
}

/* Compares hashes, which takes a fraction of the time of packing weights again. On devices that the host cannot
 * read, the answer is always yes. */
bool rm_session_parameters_changed(remat_session *s) {
    bool changed = false;
    for (int64_t i = 0; i < s->n_arrays[REMAT_PARAM] && rm_session_is_real(s); i++) {
        rm_session_array *array = &s->array[REMAT_PARAM][i];
        const rm_session_array *owner = rm_session_owned(array);
        const bool hashed = array->hashed;
        array->hashed = owner->shown || owner->where.space == RM_EXTERNAL;
        if (!array->hashed) continue;
        uint64_t hash = s->api->reachable ? hash_of(s, array) : 0;
        changed |= !hashed || hash != array->hash || !s->api->reachable;
        array->hash = hash;
    }
    return changed;
}

const char *rm_session_changed_since(const remat_session *s) {
    for (int64_t i = 0; i < s->n_arrays[REMAT_PARAM] && rm_session_is_real(s) && s->api->reachable; i++) {
        const rm_session_array *array = &s->array[REMAT_PARAM][i];
        if (array->hashed && hash_of(s, array) != array->hash) return array->name;
    }
    return NULL;
}

/* ---- Initial parameters and buffers --------------------------------------------------------------------------- */

enum {
    DRAW_STEP = 0x696e6974, /* "init": a step of the random key that no training step reaches */
    DRAW_AT_ONCE = 1 << 16  /* elements drawn at a time; the budget has no bytes for a copy of a whole parameter */
};

/* Box-Muller on two uniforms; 1-u keeps the logarithm finite. */
static double normal(uint32_t first, uint32_t second) {
    double u = 1.0 - rm_uniform(first), v = rm_uniform(second);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

/* The inverse of softplus at a step that is log-uniform in [most/100, most]. */
static double time_step(double most, uint32_t random) {
    double step = most * pow(100, rm_uniform(random) - 1);
    return step + log(-expm1(-step));
}

/* The inverse of softplus at -log(u)/2, u uniform in [0.9^2, 0.999^2]. */
static double ring(uint32_t random) {
    double u = 0.9 * 0.9 + (0.999 * 0.999 - 0.9 * 0.9) * rm_uniform(random) + 1e-8;
    return log(expm1(-0.5 * log(u)));
}

/* Of element `at` of the biases of four gates; scale: REMAT_INIT_FORGET_GATES. */
static double forget_gate(double scale, int64_t at, int64_t biases) {
    int64_t width = (int64_t)scale > 0 ? (int64_t)scale : 1, quarter = biases / 4;
    double depth = 2 * (scale - (double)width), unit = (double)(at % quarter % width);
    if (at / quarter != 1) return 0;
    return 5 - 12 * pow(width > 1 ? unit / (double)(width - 1) : 0, 0.3 + 1.3 * depth);
}

/* Of channel `at` of RWKV-7's arrays (REMAT_INIT_RWKV7_MIX, ..). */
static double rwkv7_channel(remat_init init, int64_t at, int64_t channels) {
    int64_t width = (int64_t)init.scale > 0 ? (int64_t)init.scale : 1;
    double place = channels > 1 ? (double)at / (double)(channels - 1) : 0, line = place - 0.5;
    double u = width > 1 ? 2 * (double)(at % width) / (double)(width - 1) - 1 : 0, zigzag = u * fabs(u);
    if (init.kind == REMAT_INIT_RWKV7_MIX) return 1 - pow((double)at / (double)channels, init.scale);
    if (init.kind == REMAT_INIT_RWKV7_RATE) return -0.19 + 0.3 * zigzag + 0.4 * line;
    if (init.kind == REMAT_INIT_RWKV7_VALUE) return 0.73 - 0.4 * line;
    if (init.kind == REMAT_INIT_RWKV7_KEY) return 0.71 - 0.1 * line;
    double depth = 2 * (init.scale - (double)width);
    return -5.5 + 6 * pow(place, 1 + pow(depth, 0.3)) + 2.5 * zigzag;
}

/* Draws elements first to first + n - 1. */
static void draw(const rm_value *value, uint64_t key, int64_t first, int64_t n, float *out) {
    double scale = value->init.scale;
    const int rank = value->desc.rank;
    int64_t last_axis = rank ? value->desc.dim[rank - 1] : 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = first + i;
        rm_philox r = rm_random4(key, (uint64_t)DRAW_STEP << 32, 0, (uint32_t)(at >> 32), (uint32_t)at);
        switch (value->init.kind) {
        case REMAT_INIT_ZERO:
            out[i] = 0;
            break;
        case REMAT_INIT_CONSTANT:
            out[i] = (float)scale;
            break;
        case REMAT_INIT_NORMAL:
            out[i] = (float)(scale * normal(r.word[0], r.word[1]));
            break;
        case REMAT_INIT_UNIFORM:
            out[i] = (float)(scale * (2.0 * rm_uniform(r.word[0]) - 1.0));
            break;
        case REMAT_INIT_LOG_COUNT:
            out[i] = (float)log((double)(at % last_axis + 1));
            break;
        case REMAT_INIT_TIME_STEP:
            out[i] = (float)time_step(scale, r.word[0]);
            break;
        case REMAT_INIT_LOG_UNIFORM:
            out[i] = (float)log(scale * (1 + 1599 * rm_uniform(r.word[0])) / 1600);
            break;
        case REMAT_INIT_RING:
            out[i] = (float)ring(r.word[0]);
            break;
        case REMAT_INIT_FORGET_GATES:
            out[i] = (float)forget_gate(scale, at, rm_desc_count(&value->desc));
            break;
        case REMAT_INIT_EVENLY:
            out[i] =
                (float)(scale / 2 * (1 + (last_axis > 1 ? (double)(at % last_axis) / (double)(last_axis - 1) : 0)));
            break;
        case REMAT_INIT_IDENTITY:
            out[i] = rank > 1 && at / last_axis % value->desc.dim[rank - 2] == at % last_axis;
            break;
        case REMAT_INIT_ORTHOGONAL: /* of which draw_orthogonal makes the matrix */
            out[i] = (float)normal(r.word[0], r.word[1]);
            break;
        case REMAT_INIT_RWKV7_MIX:
        case REMAT_INIT_RWKV7_DECAY:
        case REMAT_INIT_RWKV7_RATE:
        case REMAT_INIT_RWKV7_VALUE:
        case REMAT_INIT_RWKV7_KEY:
            out[i] = (float)rwkv7_channel(value->init, at % last_axis, last_axis);
            break;
        }
    }
}

/* Makes `count` vectors of `n` numbers orthogonal and of length `gain`, by Gram and Schmidt; numbers of a vector are `by`
 * apart, vectors `apart`. A second pass removes what rounding leaves of the first. */
static void make_orthogonal(float *x, int64_t count, int64_t n, int64_t apart, int64_t by, double gain) {
    for (int64_t v = 0; v < count; v++) {
        float *own = x + v * apart;
        for (int64_t before = 0; before < 2 * v; before++) {
            const float *other = x + before % v * apart;
            double product = 0;
            for (int64_t i = 0; i < n; i++) product += (double)own[i * by] * other[i * by];
            for (int64_t i = 0; i < n; i++) own[i * by] -= (float)(product * other[i * by]);
        }
        double square = 0;
        for (int64_t i = 0; i < n; i++) square += (double)own[i * by] * own[i * by];
        for (int64_t i = 0; i < n; i++) own[i * by] = (float)(own[i * by] / sqrt(square));
    }
    for (int64_t i = 0; i < count * n; i++) x[i] = (float)(gain * x[i]);
}

/* Needs memory for the whole matrix, until it is drawn. */
static remat_status draw_orthogonal(remat_session *s, remat_kind kind, const rm_value *value, uint64_t key,
                                    int64_t index) {
    const int64_t rows = value->desc.dim[0], columns = value->desc.dim[1];
    const uint64_t bytes = rm_desc_bytes(&value->desc);
    float *x = rm_malloc(bytes);
    REQUIRE(x, MEMORY, "out of memory for drawing %s (%llu bytes)", value->name, (unsigned long long)bytes);
    draw(value, key, 0, rows * columns, x);
    if (rows <= columns)
        make_orthogonal(x, rows, columns, columns, 1, value->init.scale);
    else
        make_orthogonal(x, columns, rows, 1, columns, value->init.scale);
    remat_status status = remat_write_part(s, kind, index, 0, x, bytes);
    rm_free(x);
    return status;
}

/* The key is the name, not the index: C does not say in which order a call's arguments create parameters. */
static remat_status draw_array(remat_session *s, remat_kind kind, const rm_value *value, int64_t index, float *room) {
    uint64_t key = rm_hash(value->name, strlen(value->name), s->runner.seed);
    int64_t n = rm_desc_count(&value->desc);
    if (s->array[kind][index].where.space == RM_EXTERNAL) return REMAT_OK; /* the program has initialised it */
    if (value->init.kind == REMAT_INIT_ORTHOGONAL) return draw_orthogonal(s, kind, value, key, index);
    for (int64_t first = 0, some; first < n; first += some) {
        some = n - first < DRAW_AT_ONCE ? n - first : DRAW_AT_ONCE;
        draw(value, key, first, some, room);
        TRY(remat_write_part(s, kind, index, (uint64_t)first * sizeof *room, room, (uint64_t)some * sizeof *room));
    }
    return REMAT_OK;
}

remat_status rm_session_draw_parameters(remat_session *s) {
    int64_t n_params = 0, n_buffers = 0;
    remat_status status = REMAT_OK;
    float *room = rm_malloc(DRAW_AT_ONCE * sizeof *room);
    REQUIRE(room, MEMORY, "out of memory for drawing parameters (%zu bytes)", DRAW_AT_ONCE * sizeof *room);
    for (int32_t v = 1; v < s->graph->n_values && !status; v++) {
        const rm_value *value = &s->graph->value[v];
        if (value->origin == RM_VALUE_PARAM) status = draw_array(s, REMAT_PARAM, value, n_params++, room);
        if (value->origin == RM_VALUE_BUFFER) status = draw_array(s, REMAT_BUFFER, value, n_buffers++, room);
    }
    rm_free(room);
    return status;
}
