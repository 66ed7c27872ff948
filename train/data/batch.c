/* batch.c: see batch.h. */
#include "train/data/batch.h"

#include "memory/host.h"

/* ---- Fields ------------------------------------------------------------------------------------------------------- */

static rm_field input(const rm_data_shape *s, int64_t T, int64_t B) {
    if (s->channels) return (rm_field){"input", REMAT_F32, REMAT_STATIC, 4, {B, s->channels, s->height, s->width}, 0};
    if (s->vocabulary) return (rm_field){"input", REMAT_I32, REMAT_SEQUENCE, 2, {T, B}, 0};
    return (rm_field){"input", REMAT_F32, REMAT_SEQUENCE, 3, {T, B, s->features}, 0};
}

static rm_field target(const rm_data_shape *s, int64_t T, int64_t B) {
    int64_t answers = s->answer_steps ? s->answer_steps : T;
    if (s->labels) return (rm_field){"target", REMAT_I32, REMAT_STATIC, 2, {B, s->labels}, -1};
    if (s->pixels) return (rm_field){"target", REMAT_I32, REMAT_STATIC, 2, {B, s->pixels}, -1};
    if (s->every_step && s->classes) return (rm_field){"target", REMAT_I32, REMAT_SEQUENCE, 2, {answers, B}, -1};
    if (s->every_step) return (rm_field){"target", REMAT_F32, REMAT_SEQUENCE, 3, {answers, B, s->values}, 0};
    if (s->classes) return (rm_field){"target", REMAT_I32, REMAT_STATIC, 1, {B}, -1};
    return (rm_field){"target", REMAT_F32, REMAT_STATIC, 2, {B, s->values}, 0};
}

void rm_data_fields(const rm_data_shape *s, int64_t T, int64_t B, rm_field f[RM_FIELDS]) {
    const int64_t A = s->answer_steps;
    for (int i = 0; i < RM_FIELDS; i++) f[i] = (rm_field){0};
    f[RM_INPUT] = input(s, T, B);
    f[RM_TARGET] = target(s, T, B);
    if (s->lengths) f[RM_LAST] = (rm_field){"last", REMAT_I32, REMAT_STATIC, 1, {B}, 0};
    if (s->lengths) f[RM_LENGTH] = (rm_field){"length", REMAT_I32, REMAT_STATIC, 1, {B}, 0};
    if (s->lengths) f[RM_ENDS] = (rm_field){"ends", REMAT_F32, REMAT_SEQUENCE, 2, {T, B}, 0};
    if (s->documents || A) f[RM_BEGINS] = (rm_field){"begins", REMAT_F32, REMAT_SEQUENCE, 2, {T, B}, 0};
    if (A || rm_data_pads(s)) f[RM_PADDING] = (rm_field){"padding", REMAT_I32, REMAT_SEQUENCE, 2, {T, B}, 1};
    if (A) f[RM_PREVIOUS] = (rm_field){"previous", REMAT_I32, REMAT_SEQUENCE, 2, {A, B}, 0};
    if (s->weighted) f[RM_CLASS_WEIGHTS] = (rm_field){"class_weights", REMAT_F32, REMAT_STATIC, 1, {s->classes}, 0};
}

/* Every element has four bytes. UINT64_MAX on overflow. */
uint64_t rm_field_bytes(const rm_field *field) {
    uint64_t bytes = field->name ? 4 : 0;
    for (int d = 0; d < field->rank; d++)
        if (__builtin_mul_overflow(bytes, (uint64_t)field->dim[d], &bytes)) return UINT64_MAX;
    return bytes;
}

static uint64_t batch_bytes(const rm_field field[RM_FIELDS]) {
    uint64_t bytes = 0;
    for (int i = 0; i < RM_CLASS_WEIGHTS; i++) bytes += rm_field_bytes(&field[i]);
    return bytes;
}

uint64_t rm_data_batch_bytes(const rm_data_shape *shape, int64_t batch, int64_t batches) {
    rm_field field[RM_FIELDS];
    rm_data_fields(shape, shape->timesteps, batch, field);
    return (uint64_t)batches * batch_bytes(field) + rm_field_bytes(&field[RM_CLASS_WEIGHTS]);
}

/* ---- A batch ------------------------------------------------------------------------------------------------------ */

remat_status rm_batch_create(rm_dataset *dataset, int64_t batch, rm_batch *out) {
    const rm_data_shape *shape = &dataset->shape;
    *out = (rm_batch){.dataset = dataset, .batch = batch};
    rm_data_fields(shape, shape->timesteps, batch, out->field);
    out->bytes = batch_bytes(out->field);
    out->data[RM_CLASS_WEIGHTS] = dataset->class_weights;
    for (int i = 0; i < RM_CLASS_WEIGHTS; i++) {
        uint64_t bytes = rm_field_bytes(&out->field[i]);
        if (!bytes) continue;
        out->data[i] = bytes < UINT64_MAX ? rm_malloc(bytes) : NULL;
        REQUIRE(out->data[i], MEMORY,
                "no memory for a batch of %lld samples of %lld timesteps: reduce --batch or --seq-len",
                (long long)batch, (long long)shape->timesteps);
    }
    return REMAT_OK;
}

void rm_batch_free(rm_batch *batch) {
    for (int i = 0; i < RM_CLASS_WEIGHTS; i++) rm_free(batch->data[i]);
    *batch = (rm_batch){0};
}

remat_status rm_batch_put(rm_batch *b, int64_t column, int64_t sample) {
    rm_dataset *data = b->dataset;
    TRY(rm_dataset_fill(data, sample, column, b->batch, b->data[RM_INPUT], b->data[RM_TARGET]));
    return data->kind->mark ? data->kind->mark(data, sample, column, b) : REMAT_OK;
}

void rm_batch_put_length(rm_batch *b, int64_t column, int64_t length) {
    int32_t *last = b->data[RM_LAST], *lengths = b->data[RM_LENGTH], *padding = b->data[RM_PADDING];
    float *ends = b->data[RM_ENDS];
    lengths[column] = (int32_t)length;
    last[column] = (int32_t)length - 1;
    for (int64_t t = 0; t < b->dataset->shape.timesteps; t++) {
        ends[t * b->batch + column] = t + 1 == length;
        if (padding) padding[t * b->batch + column] = t >= length;
    }
}

/* ---- Into a session ----------------------------------------------------------------------------------------------- */

static int64_t longest(const rm_batch *b) {
    const int32_t *length = b->data[RM_LENGTH];
    int64_t most = 1;
    for (int64_t i = 0; i < b->batch; i++)
        if (length[i] > most) most = length[i];
    return most;
}

/* The number of timesteps up to the last one that is not padding in every row. */
static int64_t used(const rm_batch *b, rm_field_name name) {
    const int32_t *rows = b->data[name];
    int64_t end = b->field[name].dim[0] * b->batch;
    while (end > b->batch && rows[end - 1] == b->field[name].fill) end--;
    return (end + b->batch - 1) / b->batch;
}

/* A session has one end for all sequences of the same number of timesteps. A pipeline computes all tiles, to the same
 * bits. */
static remat_status end_sequences(const rm_batch *b, remat_session *session) {
    int64_t S = b->dataset->shape.timesteps, T = b->dataset->shape.answer_steps;
    if (remat_pipeline_cut(session)) return REMAT_OK;
    if (b->data[RM_LENGTH]) TRY(remat_set_sequence_end(session, S, longest(b)));
    if (!T) return REMAT_OK;
    int64_t source = used(b, RM_PADDING), target = used(b, RM_TARGET);
    if (S == T) source = target = source > target ? source : target;
    TRY(remat_set_sequence_end(session, S, source));
    return remat_set_sequence_end(session, T, target);
}

/* Time is the outermost axis, so a window is a contiguous part of the buffer. */
rm_window rm_batch_whole(const rm_batch *b) {
    int64_t T = b->dataset->shape.timesteps;
    return (rm_window){0, T, 0, T};
}

/* Marks timesteps from..end-1 of a window's targets as ignored. */
static remat_status leave_out(const rm_batch *b, int64_t from, int64_t end, remat_session *session) {
    int32_t none[1024];
    uint64_t at = (uint64_t)(from * b->batch) * sizeof *none, left = (uint64_t)((end - from) * b->batch) * sizeof *none;
    for (int i = 0; i < 1024; i++) none[i] = b->field[RM_TARGET].fill;
    for (uint64_t n; left; at += n, left -= n) {
        n = left < sizeof none ? left : sizeof none;
        TRY(remat_write_part(session, REMAT_INPUT, 1, at, none, n));
    }
    return REMAT_OK;
}

static remat_status write_targets(const rm_batch *b, rm_window w, remat_session *session) {
    const rm_field *field = &b->field[RM_TARGET];
    uint64_t bytes = rm_field_bytes(field);
    if (w.counted == b->dataset->shape.timesteps)
        return remat_write(session, REMAT_INPUT, 1, b->data[RM_TARGET], bytes);
    uint64_t each = bytes / (uint64_t)field->dim[0];
    TRY(leave_out(b, 0, w.from - w.first, session));
    TRY(remat_write_part(session, REMAT_INPUT, 1, (uint64_t)(w.from - w.first) * each,
                         (const char *)b->data[RM_TARGET] + (uint64_t)w.from * each, (uint64_t)w.counted * each));
    return leave_out(b, w.from - w.first + w.counted, w.count, session);
}

static remat_status write_field(const rm_batch *b, rm_field_name name, rm_window w, remat_session *session) {
    const rm_field *field = &b->field[name];
    int64_t at = field->name ? remat_find(session, REMAT_INPUT, field->name) : -1;
    bool cut = field->axis == REMAT_SEQUENCE && w.count < b->dataset->shape.timesteps;
    uint64_t bytes = rm_field_bytes(field), each = bytes / (uint64_t)(field->dim[0] ? field->dim[0] : 1);
    if (at < 0) return REMAT_OK;
    if (!cut) return remat_write(session, REMAT_INPUT, at, b->data[name], bytes);
    return remat_write(session, REMAT_INPUT, at, (const char *)b->data[name] + (uint64_t)w.first * each,
                       (uint64_t)w.count * each);
}

remat_status rm_batch_write(const rm_batch *b, rm_window w, remat_session *session) {
    TRY(write_targets(b, w, session));
    TRY(end_sequences(b, session));
    for (int i = 0; i < RM_FIELDS; i++)
        if (i != RM_TARGET) TRY(write_field(b, i, w, session));
    return REMAT_OK;
}
