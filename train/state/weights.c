/* weights.c: see weights.h. */
#include "train/state/weights.h"

#include "memory/host.h"
#include "train/state/nanogpt.h"
#include "train/state/stream.h"
#include "train/text.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The arrays in a file: parameters, then buffers ------------------------------------------------------------------- */

typedef struct {
    remat_kind kind;
    int64_t index;
} stored;

static int64_t count_stored(const remat_session *session, remat_kind kind) {
    return remat_count(session, kind) + (kind == REMAT_PARAM ? remat_count(session, REMAT_BUFFER) : 0);
}

static stored stored_at(const remat_session *session, remat_kind kind, int64_t i) {
    const int64_t n = remat_count(session, kind);
    return i < n ? (stored){kind, i} : (stored){REMAT_BUFFER, i - n};
}

static remat_status stored_info(const remat_session *session, remat_kind kind, int64_t i, remat_array *out) {
    const stored at = stored_at(session, kind, i);
    return remat_array_info(session, at.kind, at.index, out);
}

/* -1: there is none. */
static int64_t find_stored(const remat_session *session, remat_kind kind, const char *name) {
    int64_t i = remat_find(session, kind, name);
    if (i >= 0 || kind != REMAT_PARAM) return i;
    i = remat_find(session, REMAT_BUFFER, name);
    return i < 0 ? i : remat_count(session, kind) + i;
}

/* ---- Saving ----------------------------------------------------------------------------------------------------- */

static remat_status write_header(remat_session *session, remat_kind kind, rm_file_writer *writer) {
    int64_t count = count_stored(session, kind);
    remat_array *array = rm_calloc((size_t)count + 1, sizeof *array);
    REQUIRE(array, MEMORY, "no memory to write %s", writer->path);
    remat_status status = REMAT_OK;
    for (int64_t i = 0; i < count && !status; i++) {
        status = stored_info(session, kind, i, &array[i]);
        array[i].bytes = rm_stream_whole_bytes(&array[i]);
    }
    if (!status) status = rm_safetensors_begin(writer, array, count);
    rm_free(array);
    return status;
}

/* In a pipeline every rank takes part for every array, also if writing has failed. */
static remat_status stream_all(remat_session *session, remat_kind kind, rm_file_writer *writer, remat_status status) {
    for (int64_t i = 0; i < count_stored(session, kind); i++) {
        const stored at = stored_at(session, kind, i);
        remat_status here = rm_stream_out(session, at.kind, at.index, status ? NULL : writer);
        if (!status) status = here;
    }
    return status;
}

remat_status rm_weights_write(remat_session *session, remat_kind kind, rm_file_writer *writer) {
    remat_status status = stream_all(session, kind, writer, write_header(session, kind, writer));
    if (!status) status = rm_file_finish(writer);
    rm_file_abandon(writer);
    return status;
}

remat_status rm_weights_save(remat_session *session, remat_kind kind, const char *path, rm_file_writer *writer) {
    if (!path) return stream_all(session, kind, NULL, REMAT_OK);
    remat_status status = rm_file_create(path, writer);
    if (status) return stream_all(session, kind, NULL, status);
    status = rm_weights_write(session, kind, writer);
    if (status) rm_file_remove(path);
    return status;
}

/* ---- Names ------------------------------------------------------------------------------------------------------ */

static const char *const prefixes[] = {"module.", "_orig_mod.", "model.", "transformer."};
static const char *const rooms[][2] = {
    {"lstm", "rnn"}, {"gru", "rnn"},     {"emb", "embedding"}, {"embed", "embedding"}, {"encoder", "embedding"},
    {"fc", "head"},  {"linear", "head"}, {"out", "head"},      {"output", "head"},     {"decoder", "head"}};

/* NULL: it has none. */
static const char *without_prefix(const char *name) {
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return name + strlen(prefixes[i]);
    return NULL;
}

const char *rm_weights_without_prefixes(const char *name) {
    for (const char *rest = name; rest; rest = without_prefix(rest)) name = rest;
    return name;
}

void rm_weights_our_name(const char *name, char *out, size_t out_bytes) {
    name = rm_weights_without_prefixes(name);
    size_t first = strcspn(name, ".");
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++)
        if (strlen(rooms[i][0]) == first && !strncmp(name, rooms[i][0], first)) {
            snprintf(out, out_bytes, "%s%s", rooms[i][1], name + first);
            return;
        }
    snprintf(out, out_bytes, "%s", name);
}

/* ---- Loading ---------------------------------------------------------------------------------------------------- */

static void shape_text(int rank, const int64_t *dim, char *out, size_t bytes) {
    size_t at = (size_t)snprintf(out, bytes, "(");
    for (int i = 0; i < rank && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, i ? ",%lld" : "%lld", (long long)dim[i]);
    if (at < bytes) snprintf(out + at, bytes - at, ")");
}

static bool is_half(const rm_st_array *array) { return !strcmp(array->dtype, "BF16") || !strcmp(array->dtype, "F16"); }

static remat_status must_match(const char *path, const remat_array *ours, const rm_st_array *theirs, bool foreign) {
    bool same = ours->rank == theirs->rank;
    for (int i = 0; same && i < ours->rank; i++) same = ours->dim[i] == theirs->dim[i];
    if (!same) {
        char a[120], b[120];
        shape_text(theirs->rank, theirs->dim, a, sizeof a);
        shape_text(ours->rank, ours->dim, b, sizeof b);
        FAIL(INVALID, "%s: '%s' is %s, but this model's %s is %s: give the flags of the model that was saved%s", path,
             theirs->name, a, ours->name, b, foreign ? ", or --init-head=new if only the last layer differs" : "");
    }
    REQUIRE(!strcmp(theirs->dtype, "F32") || (foreign && is_half(theirs)), INVALID,
            "%s: '%s' is %s; weights must be F32%s: save it with .float()", path, theirs->name, theirs->dtype,
            foreign ? ", F16 or BF16" : "");
    return REMAT_OK;
}

/* The names that the model has: "rnn.weight_ih_l0, ..., head.bias", shortened if there are many. */
static void list_names(remat_session *session, remat_kind kind, char *list, size_t bytes) {
    int64_t count = count_stored(session, kind);
    size_t at = 0;
    *list = 0;
    for (int64_t i = 0; i < count && at < bytes; i++) {
        remat_array array;
        bool last = i + 1 == count;
        if (at > bytes / 2 && !last) continue;
        if (stored_info(session, kind, i, &array)) break;
        bool skipped = last && at > bytes / 2;
        at += (size_t)snprintf(list + at, bytes - at, "%s%s%s", i ? ", " : "", skipped ? "..., " : "", array.name);
    }
}

static remat_status unknown_name(remat_session *session, remat_kind kind, const rm_safetensors *file,
                                 const rm_st_array *array, bool foreign) {
    char list[400];
    list_names(session, kind, list, sizeof list);
    FAIL(INVALID, "%s has an array '%.80s' that this model does not have: it has %s%s", file->path, array->name, list,
         foreign
             ? " (or lstm, gru for rnn; emb, embed, encoder for embedding; fc, linear, out, output, decoder for head)"
             : "");
}

/* The name of a tied head in other files, and the embedding that it equals. */
static const char *const ties[][2] = {{"head.weight", "embedding.weight"},
                                      {"lm_head.weight", "wte.weight"},
                                      {"lm_head.weight", "backbone.embeddings.weight"},
                                      {"lm_head.weight", "model.embed_tokens.weight"}};
enum { TIES = sizeof ties / sizeof *ties };

static bool begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

/* Finds our array for another program's name. A name of this model wins, even if it means something else elsewhere: torchvision's fc,
 * or if a prefix is part of it: gdn's model. */
static int64_t find_foreign(const remat_session *session, remat_kind kind, const char *theirs, char *name,
                            size_t bytes) {
    int64_t i = -1;
    for (const char *rest = theirs; rest && i < 0; rest = without_prefix(rest)) {
        snprintf(name, bytes, "%s", rest);
        i = find_stored(session, kind, name);
    }
    if (i >= 0) return i;
    rm_weights_our_name(theirs, name, bytes);
    i = find_stored(session, kind, name);
    for (int t = 0; t < TIES && i < 0; t++)
        if (!strcmp(name, ties[t][0])) i = find_stored(session, kind, ties[t][1]);
    return i;
}

/* Whether two arrays are equal, as tied weights are in PyTorch's state_dict. */
bool rm_weights_same(const rm_safetensors *file, const rm_st_array *a, const rm_st_array *b) {
    uint8_t x[4096], y[4096];
    uint64_t bytes = a->end - a->begin;
    bool same = b->end - b->begin == bytes && !strcmp(a->dtype, b->dtype);
    for (uint64_t at = 0; at < bytes && same; at += sizeof x) {
        size_t part = bytes - at < sizeof x ? (size_t)(bytes - at) : sizeof x;
        same = !rm_file_read_at(file->fd, file->path, file->data_start + a->begin + at, x, part) &&
               !rm_file_read_at(file->fd, file->path, file->data_start + b->begin + at, y, part) && !memcmp(x, y, part);
    }
    return same;
}

/* Other programs save more than weights: PyTorch's batch norm a count of batches, GPT-2's attention a causal mask and a large negative
 * number. */
static bool is_mask(const char *name) {
    return begins(rm_weights_without_prefixes(name), "h.") && rm_text_ends(name, ".attn.bias");
}
static bool is_no_weight(const char *name) {
    bool of_gpt2 = begins(rm_weights_without_prefixes(name), "h.") && rm_text_ends(name, ".attn.masked_bias");
    return of_gpt2 || is_mask(name) || rm_text_ends(name, ".num_batches_tracked");
}

/* Whether element e of a mask (..,n,n), of `bytes` bytes, is set exactly where a causal mask is. */
static bool looks_back(const uint8_t *element, int64_t bytes, int64_t e, int64_t n) {
    bool set = false;
    for (int64_t b = 0; b < bytes; b++) set |= element[b] != 0;
    return set == (e % n <= e / n % n);
}

/* Another mask belongs to another model. */
static remat_status check_mask(const rm_safetensors *file, const rm_st_array *mask) {
    uint8_t part[4096];
    int64_t n = mask->rank < 2 ? 0 : mask->dim[mask->rank - 1], count = 1;
    for (int d = 0; d < mask->rank; d++) count *= mask->dim[d];
    int64_t bytes = count > 0 ? (int64_t)(mask->end - mask->begin) / count : 0, some = bytes ? 4096 / bytes : 0;
    bool causal = n > 0 && bytes > 0 && mask->dim[mask->rank - 2] == n;
    for (int64_t e = 0; e < count && causal; e += some) {
        int64_t here = count - e < some ? count - e : some;
        uint64_t at = file->data_start + mask->begin + (uint64_t)(e * bytes);
        TRY(rm_file_read_at(file->fd, file->path, at, part, (uint64_t)(here * bytes)));
        for (int64_t i = 0; i < here && causal; i++) causal = looks_back(part + i * bytes, bytes, e + i, n);
    }
    REQUIRE(causal, INVALID, "%s: '%.80s' is not a causal mask, and --model=gpt2 supports no other", file->path,
            mask->name);
    return REMAT_OK;
}

/* Two arrays of the file map to one of ours. That is an error unless they are tied and equal. */
static remat_status two_for_one(const rm_safetensors *file, const rm_st_array *a, const rm_st_array *b,
                                const char *ours) {
    char first[256], second[256];
    rm_weights_our_name(a->name, first, sizeof first);
    rm_weights_our_name(b->name, second, sizeof second);
    const char *remedy = !strcmp(ours, ties[0][1])   ? "remove --tie-embeddings"
                         : !strcmp(ours, ties[1][1]) ? "use --no-tie"
                                                     : "this model has none of its own";
    REQUIRE(!strcmp(first, second), INVALID,
            "%s: '%.80s' and '%.80s' differ, so the head is not tied to the embedding: %s", file->path, a->name,
            b->name, remedy);
    FAIL(INVALID, "%s: '%.80s' and '%.80s' are both names of %s; remove one", file->path, a->name, b->name, ours);
}

/* How to match arrays of a file. */
typedef struct {
    bool foreign;     /* accept names of other programs */
    const char *anew; /* skip arrays of ours with this prefix; NULL: none */
} reading;

/* An array of a file with nanoGPT's layout, in the shape that ours has. */
static rm_st_array transposed(const rm_st_array *array) {
    rm_st_array turned = *array;
    turned.dim[0] = array->dim[1];
    turned.dim[1] = array->dim[0];
    return turned;
}

/* source[i] becomes the index in the file of the session's array i; -1: not read. */
static remat_status match_all(remat_session *session, remat_kind kind, const rm_safetensors *file, reading how,
                              int64_t *source) {
    const bool foreign = how.foreign, nanogpt = foreign && rm_nanogpt_wrote(file);
    int64_t count = count_stored(session, kind);
    for (int64_t i = 0; i < count; i++) source[i] = -1;
    for (int64_t j = 0; j < file->count; j++) {
        char name[256];
        remat_array ours;
        if (foreign && is_mask(file->array[j].name)) TRY(check_mask(file, &file->array[j]));
        if (foreign && is_no_weight(file->array[j].name)) continue;
        snprintf(name, sizeof name, "%s", file->array[j].name);
        int64_t i = foreign ? find_foreign(session, kind, file->array[j].name, name, sizeof name)
                            : find_stored(session, kind, name);
        if (i >= 0) TRY(stored_info(session, kind, i, &ours));
        if (how.anew && (begins(name, how.anew) || (i >= 0 && begins(ours.name, how.anew)))) continue;
        if (i < 0) return unknown_name(session, kind, file, &file->array[j], foreign);
        if (foreign && source[i] >= 0 && rm_weights_same(file, &file->array[source[i]], &file->array[j])) continue;
        if (source[i] >= 0) return two_for_one(file, &file->array[source[i]], &file->array[j], ours.name);
        source[i] = j;
        rm_st_array theirs = file->array[j];
        if (nanogpt && theirs.rank == 2 && rm_nanogpt_transposes(ours.name)) theirs = transposed(&theirs);
        TRY(must_match(file->path, &ours, &theirs, foreign));
    }
    for (int64_t i = 0; i < count; i++) {
        remat_array ours;
        TRY(stored_info(session, kind, i, &ours));
        bool anew = how.anew && begins(ours.name, how.anew);
        REQUIRE(source[i] >= 0 || anew, INVALID,
                "%s has no '%s', which this model needs: give the flags of the model that was "
                "saved",
                file->path, ours.name);
    }
    return REMAT_OK;
}

static remat_status copy_all(remat_session *session, remat_kind kind, const rm_safetensors *file, reading how,
                             const int64_t *source) {
    const bool nanogpt = how.foreign && rm_nanogpt_wrote(file);
    for (int64_t i = 0; i < count_stored(session, kind); i++) {
        remat_array ours;
        if (source[i] < 0) continue;
        TRY(stored_info(session, kind, i, &ours));
        const rm_st_array *theirs = &file->array[source[i]];
        const stored to = stored_at(session, kind, i);
        if (nanogpt && rm_nanogpt_transposes(ours.name))
            TRY(rm_stream_in_transposed(session, to.kind, to.index, file, theirs));
        else
            TRY(rm_stream_in(session, to.kind, to.index, 0, rm_stream_whole_bytes(&ours), file, theirs, 0));
    }
    return REMAT_OK;
}

static remat_status load(remat_session *session, remat_kind kind, const char *path, reading how, bool copy) {
    rm_safetensors file;
    int64_t *source = rm_calloc((size_t)count_stored(session, kind) + 1, sizeof *source);
    REQUIRE(source, MEMORY, "no memory to read %s", path);
    remat_status status = rm_safetensors_open(path, &file);
    if (!status) status = match_all(session, kind, &file, how, source);
    if (!status && copy) status = copy_all(session, kind, &file, how, source);
    rm_safetensors_free(&file);
    rm_free(source);
    return status;
}

remat_status rm_weights_load(remat_session *session, remat_kind kind, const char *path) {
    return load(session, kind, path, (reading){false, NULL}, true);
}

remat_status rm_weights_check(remat_session *session, remat_kind kind, const char *path) {
    return load(session, kind, path, (reading){false, NULL}, false);
}

remat_status rm_weights_import(remat_session *session, const char *path, const char *anew) {
    return load(session, REMAT_PARAM, path, (reading){true, anew}, true);
}

/* ---- What models look for in a file -------------------------------------------------------------------------------- */

const rm_st_array *rm_weights_named(const rm_safetensors *file, const char *ours) {
    char name[256];
    for (int64_t j = 0; j < file->count; j++) {
        for (const char *rest = file->array[j].name; rest; rest = without_prefix(rest))
            if (!strcmp(rest, ours)) return &file->array[j];
        rm_weights_our_name(file->array[j].name, name, sizeof name);
        if (!strcmp(name, ours)) return &file->array[j];
    }
    return NULL;
}

int64_t rm_weights_layers(const rm_safetensors *file, const char *before, const char *after) {
    int64_t layers = 0;
    size_t length = strlen(before);
    for (int64_t j = 0; j < file->count; j++) {
        char name[256], *end;
        const char *rest = file->array[j].name;
        while (rest && strncmp(rest, before, length)) rest = without_prefix(rest);
        if (rest)
            snprintf(name, sizeof name, "%s", rest);
        else
            rm_weights_our_name(file->array[j].name, name, sizeof name);
        if (strncmp(name, before, length) || !isdigit((unsigned char)name[length])) continue;
        long layer = strtol(name + length, &end, 10);
        if (!strcmp(end, after) && layer >= layers && layer < INT_MAX) layers = layer + 1;
    }
    return layers;
}

remat_status rm_weights_copy(remat_session *from, remat_session *to) {
    for (int64_t i = 0; i < count_stored(from, REMAT_PARAM); i++) {
        const stored at = stored_at(from, REMAT_PARAM, i);
        TRY(rm_stream_copy(from, to, at.kind, at.index));
    }
    return REMAT_OK;
}
