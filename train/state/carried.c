/* carried.c: see carried.h. */
#include "train/state/carried.h"

#include "memory/host.h"
#include "train/state/safetensors.h"
#include "train/state/stream.h"

#include <string.h>

static remat_status agree(const rm_state_ranks *ranks, remat_status mine, double *values, int64_t count) {
    return ranks->size > 1 ? ranks->agree(ranks->context, mine, values, count) : mine;
}

/* The array as on disk, with the rows of all ranks. */
static remat_status whole_info(remat_session *session, int64_t index, int64_t size, remat_array *out) {
    TRY(remat_array_info(session, REMAT_CARRIED, index, out));
    out->dim[0] *= size;
    out->bytes = rm_stream_whole_bytes(out);
    out->count = (int64_t)(out->bytes / sizeof(float));
    return REMAT_OK;
}

/* ---- Saving ----------------------------------------------------------------------------------------------------- */

/* Room for the largest array, and for its bits as numbers: ranks sum these exactly, because each adds zeros for the others' rows. */
typedef struct {
    uint32_t *bits;
    double *values;
} room;

static remat_status take_room(remat_session *session, int64_t size, room *out) {
    uint64_t most = 1;
    *out = (room){0};
    for (int64_t i = 0; i < remat_count(session, REMAT_CARRIED); i++) {
        remat_array array;
        TRY(whole_info(session, i, size, &array));
        if (array.bytes / sizeof(float) > most) most = array.bytes / sizeof(float);
    }
    out->bits = rm_malloc(most * sizeof *out->bits);
    out->values = rm_malloc(most * sizeof *out->values);
    REQUIRE(out->bits && out->values, MEMORY, "no memory to save carried states");
    return REMAT_OK;
}

static void give_room(room *r) {
    rm_free(r->bits);
    rm_free(r->values);
}

/* Places this rank's rows among zeros; another rank of the pipeline may have them. */
static remat_status scatter(remat_session *session, int64_t index, const rm_state_ranks *ranks, room *r) {
    remat_array array;
    TRY(remat_array_info(session, REMAT_CARRIED, index, &array));
    int64_t rows = array.dim[0], width = array.count / rows;
    memset(r->values, 0, rm_stream_whole_bytes(&array) / sizeof(float) * (size_t)ranks->replicas * sizeof *r->values);
    if (!array.count) return REMAT_OK;
    TRY(remat_read(session, REMAT_CARRIED, index, r->bits, array.bytes));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < width; k++)
            r->values[(ranks->replica + ranks->replicas * i) * width + k] = r->bits[i * width + k];
    return REMAT_OK;
}

static remat_status write_array(const rm_state_ranks *ranks, int64_t count, const room *r, rm_file_writer *writer) {
    if (ranks->rank) return REMAT_OK;
    for (int64_t k = 0; k < count; k++) r->bits[k] = (uint32_t)r->values[k];
    return rm_file_write(writer, r->bits, (size_t)count * sizeof *r->bits);
}

static remat_status write_header(remat_session *session, const rm_state_ranks *ranks, rm_file_writer *writer) {
    int64_t count = remat_count(session, REMAT_CARRIED);
    if (ranks->rank) return REMAT_OK;
    remat_array *array = rm_calloc((size_t)count + 1, sizeof *array);
    REQUIRE(array, MEMORY, "no memory to write %s", writer->path);
    remat_status status = REMAT_OK;
    for (int64_t i = 0; i < count && !status; i++) status = whole_info(session, i, ranks->replicas, &array[i]);
    if (!status) status = rm_safetensors_begin(writer, array, count);
    rm_free(array);
    return status;
}

/* Either every rank takes part in every sum, or none does. */
static remat_status gather(remat_session *session, const rm_state_ranks *ranks, remat_status status, room *r,
                           rm_file_writer *writer) {
    for (int64_t i = 0; i < remat_count(session, REMAT_CARRIED); i++) {
        remat_array array;
        if (!status) status = whole_info(session, i, ranks->replicas, &array);
        if (!status) status = scatter(session, i, ranks, r);
        TRY(agree(ranks, status, r->values, status ? 0 : array.count));
        status = write_array(ranks, array.count, r, writer);
    }
    if (!status && ranks->rank == 0) status = rm_file_finish(writer);
    return agree(ranks, status, NULL, 0);
}

remat_status rm_carried_save(remat_session *session, const rm_state_ranks *ranks, const char *path, remat_status mine,
                             rm_file_writer *writer) {
    room r = {0};
    *writer = (rm_file_writer){.fd = -1, .path = path};
    remat_status status = mine;
    if (!status) status = take_room(session, ranks->replicas, &r);
    if (!status && ranks->rank == 0) status = rm_file_create(path, writer);
    if (!status) status = write_header(session, ranks, writer);
    status = gather(session, ranks, status, &r, writer);
    rm_file_abandon(writer);
    give_room(&r);
    return status;
}

/* ---- Loading ---------------------------------------------------------------------------------------------------- */

static remat_status match(const rm_safetensors *file, remat_session *session, int64_t size) {
    REQUIRE(file->count == remat_count(session, REMAT_CARRIED), INVALID,
            "%s has the states of another model: give the flags of the model that was saved", file->path);
    for (int64_t i = 0; i < file->count; i++) {
        remat_array ours;
        TRY(whole_info(session, i, size, &ours));
        const rm_st_array *theirs = rm_safetensors_find(file, ours.name);
        REQUIRE(theirs && theirs->rank == ours.rank && theirs->dim[1] == ours.dim[1] && !strcmp(theirs->dtype, "F32"),
                INVALID, "%s has no '%s' of this model: give the flags of the model that was saved", file->path,
                ours.name);
        REQUIRE(theirs->dim[0] == ours.dim[0], INVALID,
                "%s has the states of %lld rows, and this run has %lld: with --stateful, --batch times ranks must stay "
                "the same",
                file->path, (long long)theirs->dim[0], (long long)ours.dim[0]);
    }
    return REMAT_OK;
}

static remat_status load_rows(const rm_safetensors *file, int64_t index, int64_t rank, int64_t size,
                              remat_session *session) {
    remat_array array;
    TRY(remat_array_info(session, REMAT_CARRIED, index, &array));
    uint64_t row = array.bytes / (uint64_t)array.dim[0];
    const rm_st_array *saved = rm_safetensors_find(file, array.name);
    for (int64_t i = 0; i < array.dim[0]; i++)
        TRY(rm_stream_in(session, REMAT_CARRIED, index, (uint64_t)i * row, row, file, saved,
                         (uint64_t)(rank + size * i) * row));
    return REMAT_OK;
}

remat_status rm_carried_load(const char *path, int64_t rank, int64_t size, remat_session *session) {
    rm_safetensors file;
    remat_status status = rm_safetensors_open(path, &file);
    if (!status) status = match(&file, session, size);
    for (int64_t i = 0; !status && i < file.count; i++) status = load_rows(&file, i, rank, size, session);
    rm_safetensors_free(&file);
    return status;
}

remat_status rm_carried_clear(remat_session *session) {
    static const float zeros[4096];
    for (int64_t i = 0; i < remat_count(session, REMAT_CARRIED); i++) {
        remat_array state;
        TRY(remat_array_info(session, REMAT_CARRIED, i, &state));
        for (uint64_t at = 0; at < state.bytes; at += sizeof zeros) {
            uint64_t bytes = state.bytes - at < sizeof zeros ? state.bytes - at : sizeof zeros;
            TRY(remat_write_part(session, REMAT_CARRIED, i, at, zeros, bytes));
        }
    }
    return REMAT_OK;
}
