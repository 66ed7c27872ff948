/* ddp_compare.c: before the first step, compares what must be the same on all ranks and sends rank 0's data to the
 * others. ddp.c reduces the gradients of every step. */
#define _GNU_SOURCE /* gethostname */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/ddp/ddp_state.h"
#include "engine/abi.h"
#include "engine/hash.h"
#include "memory/host.h"

#define TEXT_MOST (UINT64_C(1) << 30)
enum { SENT_AT_ONCE = 1 << 20 }; /* bytes of parameters per broadcast */

/* ---- Texts that must be equal ------------------------------------------------------------------------------------ */

typedef struct {
    uint64_t hash, bytes; /* without the final 0 */
} text_sum;

static remat_status gather_sums(rm_ddp *ddp, const char *text, text_sum *all) {
    const uint64_t bytes = strlen(text);
    text_sum mine = {.hash = rm_hash(text, bytes, 0), .bytes = bytes};
    rm_collective what = {.kind = RM_ALL_GATHER, .wire = RM_WIRE_U8, .tag = RM_TAG_COMPARE, .count = sizeof mine};
    what.in = &mine;
    what.out = all;
    return rm_ddp_run(ddp, what);
}

static remat_status send_text(rm_ddp *ddp, int32_t root, uint32_t tag, char *text, uint64_t bytes) {
    return rm_ddp_run(
        ddp,
        (rm_collective){
            .kind = RM_BROADCAST, .wire = RM_WIRE_U8, .tag = tag, .root = root, .count = (int64_t)bytes, .out = text});
}

/* Gives rank `root`'s text to all ranks; freed with rm_free. */
static remat_status text_of(rm_ddp *ddp, int32_t root, const char *mine, uint64_t bytes, char **out) {
    char *text = rm_calloc(1, bytes + 1);
    REQUIRE(text, MEMORY, "out of memory for a text of %llu bytes from rank %d", (unsigned long long)bytes, root);
    if (root == ddp->ranks.rank) memcpy(text, mine, bytes);
    remat_status status = send_text(ddp, root, RM_TAG_COMPARE, text, bytes);
    if (status)
        rm_free(text);
    else
        *out = text;
    return status;
}

static size_t line_length(const char *text) { return strcspn(text, "\n"); }

/* For the last line: its terminating 0. */
static const char *next_line(const char *text) {
    text += line_length(text);
    return *text ? text + 1 : text;
}

static const char *line_text(const char *line, char *buffer, size_t bytes) {
    if (!*line) return "nothing more";
    snprintf(buffer, bytes, "'%.*s'", (int)(line_length(line) < 200 ? line_length(line) : 200), line);
    return buffer;
}

/* Advances both texts to the first line that differs. */
static void find_difference(const char **a, const char **b) {
    while (**a && **b && line_length(*a) == line_length(*b) && !memcmp(*a, *b, line_length(*a)))
        *a = next_line(*a), *b = next_line(*b);
}

/* Fails with PEER and a message about two texts that differ. */
typedef remat_status sayer(const char *what, const char *a, const char *b, int32_t other);

static remat_status say_line(const char *what, const char *a, const char *b, int32_t other) {
    char here[220], there[220];
    find_difference(&a, &b);
    FAIL(PEER, "ranks 0 and %d disagree about %.100s: %s on rank 0, but %s on rank %d", other, what,
         line_text(a, here, sizeof here), line_text(b, there, sizeof there), other);
}

/* Lines are settings: "momentum 0.9". */
static remat_status say_setting(const char *what, const char *a, const char *b, int32_t other) {
    find_difference(&a, &b);
    const int here = *a ? (int)line_length(a) : 12, there = *b ? (int)line_length(b) : 12;
    FAIL(PEER, "rank %d has %.*s, but rank 0 has %.*s; %s must be the same on all ranks", other, there,
         *b ? b : "nothing more", here, *a ? a : "nothing more", what);
}

static remat_status explain(rm_ddp *ddp, const char *what, const char *text, const text_sum *all, int32_t other,
                            sayer *say) {
    char *first = NULL, *second = NULL;
    remat_status status = text_of(ddp, 0, text, all[0].bytes, &first);
    if (!status) status = text_of(ddp, other, text, all[other].bytes, &second);
    if (!status) status = say(what, first, second, other);
    rm_free(first);
    rm_free(second);
    return status;
}

static remat_status compare(rm_ddp *ddp, const char *what, const char *text, sayer *say) {
    const int32_t size = ddp->ranks.size;
    text_sum *all = rm_calloc((size_t)size, sizeof *all);
    REQUIRE(all, MEMORY, "out of memory to compare %s", what);
    remat_status status = gather_sums(ddp, text, all);
    int32_t other = 1;
    while (!status && other < size && !memcmp(&all[other], &all[0], sizeof *all)) other++;
    if (!status && other < size) status = explain(ddp, what, text, all, other, say);
    rm_free(all);
    return status;
}

remat_status rm_ddp_compare(rm_ddp *ddp, const char *what, const char *text) {
    return compare(ddp, what, text, say_line);
}

/* ---- The version of Remat ---------------------------------------------------------------------------------------- */

const char *rm_ddp_version = REMAT_VERSION;

typedef struct {
    char version[32], host[224];
} installed;

/* Every rank sees the same list, so all ranks fail with the same message. */
static remat_status check_versions(const installed *all, int32_t size) {
    for (int32_t r = 1; r < size; r++)
        REQUIRE(!strncmp(all[r].version, all[0].version, sizeof all[r].version), PEER,
                "rank 0 on %.200s runs Remat %.30s, but rank %d on %.200s runs Remat %.30s; bits are only promised to "
                "be equal within one version: install the same version on both hosts",
                all[0].host, all[0].version, r, all[r].host, all[r].version);
    return REMAT_OK;
}

remat_status rm_ddp_compare_versions(rm_ddp *ddp) {
    installed mine = {.host = ""}, *all = rm_calloc((size_t)ddp->ranks.size, sizeof *all);
    REQUIRE(all, MEMORY, "out of memory to compare the versions of %d ranks", ddp->ranks.size);
    snprintf(mine.version, sizeof mine.version, "%s", rm_ddp_version);
    if (gethostname(mine.host, sizeof mine.host - 1)) strcpy(mine.host, "?");
    rm_collective what = {.kind = RM_ALL_GATHER, .wire = RM_WIRE_U8, .tag = RM_TAG_VERSION, .count = sizeof mine};
    what.in = &mine;
    what.out = all;
    remat_status status = rm_ddp_run(ddp, what);
    if (!status) status = check_versions(all, ddp->ranks.size);
    rm_free(all);
    return status;
}

/* ---- Text from rank 0 -------------------------------------------------------------------------------------------- */

/* Of a text that is too long, only the length is sent, so that all ranks fail alike. */
remat_status rm_ddp_share_text(rm_ddp *ddp, const char *text, char **out) {
    uint64_t bytes = ddp->ranks.rank == 0 ? strlen(text) : 0;
    TRY(send_text(ddp, 0, RM_TAG_SHARE, (char *)&bytes, sizeof bytes));
    REQUIRE(bytes <= TEXT_MOST, INVALID,
            "a text of %llu bytes is too long to be sent to the other ranks; the maximum is 1 GiB",
            (unsigned long long)bytes);
    char *shared = rm_calloc(1, bytes + 1);
    REQUIRE(shared, MEMORY, "out of memory for a text of %llu bytes from rank 0", (unsigned long long)bytes);
    if (ddp->ranks.rank == 0) memcpy(shared, text, bytes);
    remat_status status = send_text(ddp, 0, RM_TAG_SHARE, shared, bytes);
    if (status)
        rm_free(shared);
    else
        *out = shared;
    return status;
}

/* ---- Parameters -------------------------------------------------------------------------------------------------- */

/* One line per parameter: "lstm.weight_hh_l0 (16,4) f32". */
static remat_status list(const remat_session *session, remat_kind kind, FILE *out) {
    static const char *const types[] = {[REMAT_F32] = "f32", [REMAT_F64] = "f64", [REMAT_I32] = "i32"};
    for (int64_t i = 0; i < remat_count(session, kind); i++) {
        remat_array array;
        TRY(remat_array_info(session, kind, i, &array));
        fprintf(out, "%s (", array.name);
        for (int d = 0; d < array.rank; d++) fprintf(out, "%s%lld", d ? "," : "", (long long)array.dim[d]);
        fprintf(out, ") %s\n", types[array.dtype]);
    }
    return REMAT_OK;
}

static remat_status list_parameters(const remat_session *session, char **text, size_t *bytes) {
    FILE *out = open_memstream(text, bytes);
    REQUIRE(out, MEMORY, "out of memory for the list of parameters");
    remat_status status = list(session, REMAT_PARAM, out);
    if (!status) status = list(session, REMAT_BUFFER, out);
    const bool bad = ferror(out);
    if (fclose(out) || bad) status = rm_fail(REMAT_MEMORY, "out of memory for the list of parameters");
    return status;
}

static remat_status compare_parameters(rm_ddp *ddp, const remat_session *session) {
    char *text = NULL;
    size_t bytes;
    remat_status status = list_parameters(session, &text, &bytes);
    if (!status) status = rm_ddp_compare(ddp, "the parameters (name, shape, type)", text);
    free(text); /* allocated by open_memstream */
    return status;
}

/* At this point the settings are equal on all ranks, so all ranks get the same result. */
static remat_status check_settings(const rm_ddp *ddp, const char *settings) {
    const bool deterministic_world = strstr(settings, "\ndeterministic_world on\n") != NULL;
    REQUIRE(deterministic_world == ddp->config.deterministic_world, INVALID,
            "{deterministic_world} is %s for the session, but %s for its ranks; set it for both, or for neither",
            deterministic_world ? "on" : "off", ddp->config.deterministic_world ? "on" : "off");
    return REMAT_OK;
}

static remat_status compare_settings(rm_ddp *ddp, const remat_session *session) {
    char *settings = remat_settings_text(session);
    REQUIRE(settings, MEMORY, "out of memory for the session's settings");
    remat_status status = compare(ddp, "settings of the session", settings, say_setting);
    if (!status) status = check_settings(ddp, settings);
    remat_text_free(settings);
    return status;
}

typedef enum { MEASURE, READ, WRITE } errand;

/* Handles arrays from byte *first of array *index on, as many as fit into `room`. Returns their bytes and advances
 * *index and *first. */
static remat_status pass(remat_session *session, remat_kind kind, errand what, int64_t *index, uint64_t *first,
                         char *room, uint64_t *bytes) {
    const int64_t count = remat_count(session, kind);
    for (*bytes = 0; *index < count && *bytes < SENT_AT_ONCE;) {
        remat_array array;
        TRY(remat_array_info(session, kind, *index, &array));
        uint64_t left = SENT_AT_ONCE - *bytes, some = array.bytes - *first < left ? array.bytes - *first : left;
        if (what == READ && some) TRY(remat_read_part(session, kind, *index, *first, room + *bytes, some));
        if (what == WRITE && some) TRY(remat_write_part(session, kind, *index, *first, room + *bytes, some));
        *bytes += some;
        *first += some;
        if (*first < array.bytes) break; /* the buffer is full */
        *first = 0;
        ++*index;
    }
    return REMAT_OK;
}

/* Sends many small arrays in one broadcast, since the latency of each broadcast dominates. */
static remat_status send_arrays(rm_ddp *ddp, remat_session *session, remat_kind kind, char *room) {
    int64_t index = 0, sent = 0;
    for (uint64_t first = 0, start = 0, bytes; index < remat_count(session, kind);) {
        TRY(pass(session, kind, ddp->ranks.rank ? MEASURE : READ, &index, &first, room, &bytes));
        TRY(send_text(ddp, 0, RM_TAG_PARAMETERS, room, bytes));
        if (ddp->ranks.rank) TRY(pass(session, kind, WRITE, &sent, &start, room, &bytes));
    }
    return REMAT_OK;
}

remat_status rm_ddp_send_arrays(rm_ddp *ddp, remat_session *session, remat_kind kind) {
    if (!remat_count(session, kind)) return REMAT_OK;
    char *room = rm_malloc(SENT_AT_ONCE);
    REQUIRE(room, MEMORY, "out of memory for a buffer to send arrays (%d bytes)", SENT_AT_ONCE);
    remat_status status = send_arrays(ddp, session, kind, room);
    rm_free(room);
    return status;
}

/* Registers the buckets, so that errors of the first step already have their names. */
static remat_status know_buckets(rm_ddp *ddp, const remat_session *session) {
    for (int64_t i = 0; i < remat_bucket_count(session); i++) {
        remat_bucket bucket = rm_bucket_at(session, i);
        if (!rm_ddp_know(ddp, bucket.index, bucket.first)) return REMAT_MEMORY;
    }
    return REMAT_OK;
}

/* Uses the session's own functions to read and write parameters, since they know where a parameter is stored and what
 * is derived from it. */
remat_status rm_ddp_broadcast(rm_ddp *ddp, remat_session *session) {
    TRY(compare_parameters(ddp, session));
    TRY(compare_settings(ddp, session));
    TRY(know_buckets(ddp, session));
    TRY(rm_ddp_send_arrays(ddp, session, REMAT_PARAM));
    return rm_ddp_send_arrays(ddp, session, REMAT_BUFFER);
}

remat_status rm_ddp_broadcast_buffers(rm_ddp *ddp, remat_session *session) {
    return rm_ddp_send_arrays(ddp, session, REMAT_BUFFER);
}
