/* early.c: see early.h. A copy:
 *
 *     ranks | statistics | states of rank 0: array 0, 1, ... | of rank 1 | ... */
#include "train/run/early.h"

#include "memory/host.h"

#include <string.h>

#define HEAD sizeof(int64_t)

/* ---- Sizes ----------------------------------------------------------------------------------------------------- */

static int64_t count_of(const remat_session *session, remat_kind kind, bool stateful) {
    return kind == REMAT_CARRIED && !stateful ? 0 : remat_count(session, kind);
}

static remat_status add_bytes(remat_session *session, remat_kind kind, bool stateful, uint64_t *bytes) {
    *bytes = 0;
    for (int64_t i = 0; i < count_of(session, kind, stateful); i++) {
        remat_array array;
        TRY(remat_array_info(session, kind, i, &array));
        *bytes += array.bytes;
    }
    return REMAT_OK;
}

typedef struct {
    uint64_t statistics, states; /* bytes; the states are of one rank */
} sizes;

static remat_status find_sizes(remat_session *session, bool stateful, sizes *out) {
    TRY(add_bytes(session, REMAT_BUFFER, stateful, &out->statistics));
    return add_bytes(session, REMAT_CARRIED, stateful, &out->states);
}

bool rm_early_any(const remat_session *session, bool stateful) {
    return count_of(session, REMAT_BUFFER, stateful) || count_of(session, REMAT_CARRIED, stateful);
}

/* ---- Keeping --------------------------------------------------------------------------------------------------- */

static remat_status read_all(remat_session *session, remat_kind kind, bool stateful, char *at) {
    for (int64_t i = 0; i < count_of(session, kind, stateful); i++) {
        remat_array array;
        TRY(remat_array_info(session, kind, i, &array));
        TRY(remat_read(session, kind, i, at, array.bytes));
        at += array.bytes;
    }
    return REMAT_OK;
}

/* Behind the copy is room for this rank's states. */
static remat_status take_room(rm_early_copy *copy, const sizes *size, const rm_ranks *ranks) {
    if (copy->data) return REMAT_OK;
    copy->bytes = HEAD + size->statistics + (uint64_t)ranks->size * size->states;
    copy->data = rm_malloc(copy->bytes + size->states);
    REQUIRE(copy->data, MEMORY, "no memory to keep running statistics and carried states of a step");
    return REMAT_OK;
}

remat_status rm_early_keep(rm_early *early, rm_ranks *ranks, remat_session *session, bool stateful, int64_t step) {
    sizes size;
    rm_early_copy *copy = &early->copy[step % 2];
    const int64_t from = ranks->size;
    TRY(find_sizes(session, stateful, &size));
    TRY(take_room(copy, &size, ranks));
    char *states = copy->data + HEAD + size.statistics, *own = copy->data + copy->bytes;
    copy->step = -1;
    memcpy(copy->data, &from, HEAD);
    TRY(read_all(session, REMAT_BUFFER, stateful, copy->data + HEAD));
    TRY(read_all(session, REMAT_CARRIED, stateful, own));
    if (size.states) TRY(rm_ranks_gather(ranks, own, (int64_t)size.states, states));
    copy->step = step;
    return REMAT_OK;
}

const rm_early_copy *rm_early_find(const rm_early *early, int64_t step) {
    const rm_early_copy *copy = &early->copy[step % 2];
    return copy->data && copy->step == step ? copy : NULL;
}

void rm_early_free(rm_early *early) {
    for (int i = 0; i < 2; i++) rm_free(early->copy[i].data);
    *early = (rm_early){0};
}

/* ---- Sharing --------------------------------------------------------------------------------------------------- */

static remat_status receive(rm_early_copy *copy, rm_ranks *ranks) {
    remat_status status = REMAT_OK;
    TRY(rm_ranks_tell(ranks, &copy->bytes, sizeof copy->bytes));
    if (ranks->rank) copy->data = rm_malloc(copy->bytes);
    if (!copy->data)
        status = rm_fail(REMAT_MEMORY, "no memory for the running statistics and carried states of a step");
    TRY(rm_ranks_agree(ranks, status));
    return rm_ranks_tell(ranks, copy->data, (int64_t)copy->bytes);
}

static remat_status write_statistics(remat_session *session, const char *at) {
    for (int64_t i = 0; i < remat_count(session, REMAT_BUFFER); i++) {
        remat_array array;
        TRY(remat_array_info(session, REMAT_BUFFER, i, &array));
        TRY(remat_write(session, REMAT_BUFFER, i, at, array.bytes));
        at += array.bytes;
    }
    return REMAT_OK;
}

/* Row i of rank r of W is row r + W i of the batch (train/data/loader.h). `from`: the ranks that kept the copy. */
static remat_status write_states(remat_session *session, const rm_ranks *ranks, int64_t from, const char *states,
                                 uint64_t bytes_each) {
    uint64_t before = 0;
    for (int64_t i = 0; i < remat_count(session, REMAT_CARRIED); i++) {
        remat_array array;
        TRY(remat_array_info(session, REMAT_CARRIED, i, &array));
        const uint64_t row = array.bytes / (uint64_t)array.dim[0];
        for (int64_t k = 0; k < array.dim[0]; k++) {
            const int64_t of_all = ranks->rank + ranks->size * k;
            const char *at = states + (uint64_t)(of_all % from) * bytes_each + before + (uint64_t)(of_all / from) * row;
            TRY(remat_write_part(session, REMAT_CARRIED, i, (uint64_t)k * row, at, row));
        }
        before += row * (uint64_t)(array.dim[0] * ranks->size / from);
    }
    return REMAT_OK;
}

remat_status rm_early_share(rm_early_copy *copy, rm_ranks *ranks, remat_session *session, bool stateful) {
    sizes size;
    int64_t from;
    TRY(receive(copy, ranks));
    TRY(find_sizes(session, stateful, &size));
    const uint64_t all_states = size.states * (uint64_t)ranks->size;
    REQUIRE(copy->bytes == HEAD + size.statistics + all_states, INTERNAL,
            "the step that rank 0 holds in memory has %llu bytes of running statistics and carried states, and this "
            "network %llu",
            (unsigned long long)copy->bytes, (unsigned long long)(HEAD + size.statistics + all_states));
    memcpy(&from, copy->data, HEAD);
    TRY(write_statistics(session, copy->data + HEAD));
    if (!size.states) return REMAT_OK;
    return write_states(session, ranks, from, copy->data + HEAD + size.statistics, all_states / (uint64_t)from);
}
