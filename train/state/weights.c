/* weights.c: see weights.h. */
#include "train/state/weights.h"

#include "memory/host.h"
#include "train/state/stream.h"
#include "train/text.h"

#include <stdio.h>
#include <string.h>

/* ---- What a file of parameters holds: buffers, too, behind them ------------------------------------------------------ */

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
    for (int64_t i = 0; i < count && !status; i++) status = stored_info(session, kind, i, &array[i]);
    if (!status) status = rm_safetensors_begin(writer, array, count);
    rm_free(array);
    return status;
}

remat_status rm_weights_write(remat_session *session, remat_kind kind, rm_file_writer *writer) {
    remat_status status = write_header(session, kind, writer);
    for (int64_t i = 0; i < count_stored(session, kind) && !status; i++) {
        const stored at = stored_at(session, kind, i);
        status = rm_stream_out(session, at.kind, at.index, writer);
    }
    if (!status) status = rm_file_finish(writer);
    rm_file_abandon(writer);
    return status;
}

remat_status rm_weights_save(remat_session *session, remat_kind kind, const char *path, rm_file_writer *writer) {
    TRY(rm_file_create(path, writer));
    remat_status status = rm_weights_write(session, kind, writer);
    if (status) rm_file_remove(path);
    return status;
}

/* ---- Names ------------------------------------------------------------------------------------------------------ */

static const char *const prefixes[] = {"module.", "_orig_mod.", "model.", "transformer."};
static const char *const rooms[][2] = {
    {"lstm", "rnn"}, {"gru", "rnn"},     {"emb", "embedding"}, {"embed", "embedding"}, {"encoder", "embedding"},
    {"fc", "head"},  {"linear", "head"}, {"out", "head"},      {"output", "head"},     {"decoder", "head"}};

static const char *without_prefixes(const char *name) {
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0];) {
        size_t length = strlen(prefixes[i]);
        if (!strncmp(name, prefixes[i], length)) {
            name += length;
            i = 0;
        } else {
            i++;
        }
    }
    return name;
}

void rm_weights_our_name(const char *name, char *out, size_t out_bytes) {
    name = without_prefixes(name);
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
             theirs->name, a, ours->name, b, foreign ? ", or --init-head=new where the last layer alone differs" : "");
    }
    REQUIRE(!strcmp(theirs->dtype, "F32") || (foreign && is_half(theirs)), INVALID,
            "%s: '%s' is %s; weights must be F32%s: save it with .float()", path, theirs->name, theirs->dtype,
            foreign ? ", F16 or BF16" : "");
    return REMAT_OK;
}

/* What would be taken: "rnn.weight_ih_l0, ..., head.bias", cut where there are many. */
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

/* Of a model whose head is its embedding: what the head is called elsewhere. */
static const char *const ties[2][2] = {{"head.weight", "embedding.weight"}, {"lm_head.weight", "wte.weight"}};

static bool begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

/* What this model calls it; it may have a name of its own that is another program's for something else: torchvision's fc. */
static int64_t find_foreign(const remat_session *session, remat_kind kind, const char *theirs, char *name,
                            size_t bytes) {
    snprintf(name, bytes, "%s", without_prefixes(theirs));
    int64_t i = find_stored(session, kind, name);
    if (i >= 0) return i;
    rm_weights_our_name(theirs, name, bytes);
    i = find_stored(session, kind, name);
    for (int t = 0; t < 2 && i < 0; t++)
        if (!strcmp(name, ties[t][0])) i = find_stored(session, kind, ties[t][1]);
    return i;
}

/* The same numbers under two names, as PyTorch's state_dict has them of what is tied. */
static bool are_same(const rm_safetensors *file, const rm_st_array *a, const rm_st_array *b) {
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

/* What other programs keep beside the numbers of a model: PyTorch's batch norm counts its batches; GPT-2's attention has a causal
 * mask, and a large number to mask with. */
static bool is_mask(const char *name) {
    return begins(without_prefixes(name), "h.") && rm_text_ends(name, ".attn.bias");
}
static bool is_no_weight(const char *name) {
    bool of_gpt2 = begins(without_prefixes(name), "h.") && rm_text_ends(name, ".attn.masked_bias");
    return of_gpt2 || is_mask(name) || rm_text_ends(name, ".num_batches_tracked");
}

/* Element e of a mask (..,n,n), of so many bytes: is it there exactly where row e/n may look? */
static bool looks_back(const uint8_t *element, int64_t bytes, int64_t e, int64_t n) {
    bool set = false;
    for (int64_t b = 0; b < bytes; b++) set |= element[b] != 0;
    return set == (e % n <= e / n % n);
}

/* Attention that may look elsewhere is another model's. */
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
    REQUIRE(causal, INVALID, "%s: '%.80s' is not a causal mask, which is the only one that --model=gpt2 has",
            file->path, mask->name);
    return REMAT_OK;
}

/* Two arrays of a file mean one of ours. Names that are tied mean it both. */
static remat_status two_for_one(const rm_safetensors *file, const rm_st_array *a, const rm_st_array *b,
                                const char *ours) {
    char first[256], second[256];
    rm_weights_our_name(a->name, first, sizeof first);
    rm_weights_our_name(b->name, second, sizeof second);
    REQUIRE(!strcmp(first, second), INVALID,
            "%s: '%.80s' and '%.80s' differ, so the head is not tied to the embedding: %s", file->path, a->name,
            b->name, !strcmp(ours, ties[1][1]) ? "use --no-tie" : "remove --tie-embeddings");
    FAIL(INVALID, "%s: '%.80s' and '%.80s' both mean %s", file->path, a->name, b->name, ours);
}

/* How arrays in a file are told. */
typedef struct {
    bool foreign;     /* by names that may be other programs' */
    const char *anew; /* those of ours that begin so are not looked for, nor taken; NULL: none */
} reading;

/* source[i] becomes the index in the file of the session's array i; -1: it stays as it is. */
static remat_status match_all(remat_session *session, remat_kind kind, const rm_safetensors *file, reading how,
                              int64_t *source) {
    const bool foreign = how.foreign;
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
        if (foreign && source[i] >= 0 && are_same(file, &file->array[source[i]], &file->array[j])) continue;
        if (source[i] >= 0) return two_for_one(file, &file->array[source[i]], &file->array[j], ours.name);
        source[i] = j;
        TRY(must_match(file->path, &ours, &file->array[j], foreign));
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

static remat_status copy_all(remat_session *session, remat_kind kind, const rm_safetensors *file,
                             const int64_t *source) {
    for (int64_t i = 0; i < count_stored(session, kind); i++) {
        if (source[i] < 0) continue;
        const rm_st_array *theirs = &file->array[source[i]];
        const stored to = stored_at(session, kind, i);
        uint64_t bytes = theirs->end - theirs->begin, at = file->data_start + theirs->begin;
        if (is_half(theirs))
            TRY(rm_stream_in_halves(session, to.kind, to.index, 0, 2 * bytes, file->fd, file->path, at,
                                    *theirs->dtype == 'B'));
        else
            TRY(rm_stream_in(session, to.kind, to.index, 0, bytes, file->fd, file->path, at));
    }
    return REMAT_OK;
}

static remat_status load(remat_session *session, remat_kind kind, const char *path, reading how, bool copy) {
    rm_safetensors file;
    int64_t *source = rm_calloc((size_t)count_stored(session, kind) + 1, sizeof *source);
    REQUIRE(source, MEMORY, "no memory to read %s", path);
    remat_status status = rm_safetensors_open(path, &file);
    if (!status) status = match_all(session, kind, &file, how, source);
    if (!status && copy) status = copy_all(session, kind, &file, source);
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

/* ---- The model that a file is of ---------------------------------------------------------------------------------- */

/* Is this the projection of a layer of mingru or minlstm? Its number; else -1. */
static int minimal_layer(const char *name, const char *projection) {
    char expected[64];
    int layer;
    if (sscanf(name, "layers.%9d.", &layer) != 1) return -1;
    snprintf(expected, sizeof expected, "layers.%d.2.%s.weight", layer, projection);
    return strcmp(name, expected) ? -1 : layer;
}

static void note_minimal(const char *name, const rm_st_array *array, rm_weights_shape *out) {
    static const char *const projections[] = {"to_hidden_and_gate", "to_hidden_and_f_i_gate"};
    for (int i = 0; i < 2; i++) {
        int layer = minimal_layer(name, projections[i]);
        if (layer < 0) continue;
        out->minimal = i + 1;
        out->hidden = array->dim[1];
        if (layer >= out->layers) out->layers = layer + 1;
    }
    if (!strcmp(name, "to_logits.weight")) out->outputs = array->dim[0];
}

static void note_gpt2(const char *name, const rm_st_array *array, rm_weights_shape *out) {
    int layer, end = 0;
    if (!strcmp(name, "wpe.weight")) out->gpt2_positions = array->dim[0], out->hidden = array->dim[1];
    if (!strcmp(name, "wte.weight")) out->outputs = array->dim[0];
    if (sscanf(name, "h.%9d.attn.c_attn.weight%n", &layer, &end) == 1 && end && layer >= out->layers)
        out->layers = layer + 1;
}

/* ---- ... of pictures ------------------------------------------------------------------------------------------------ */

/* What tells the models of pictures apart: blocks in two stages of a resnet, the last linear layer of an mlp, and names. */
typedef struct {
    int64_t first_blocks, third_blocks, mlp_last;
    bool bottleneck, cnn, unet;
} picture_marks;

static void note_blocks(const char *name, picture_marks *m) {
    int stage, block, conv;
    if (sscanf(name, "layer%1d.%3d.conv%1d.weight", &stage, &block, &conv) != 3) return;
    int64_t *blocks = stage == 1 ? &m->first_blocks : &m->third_blocks;
    if ((stage == 1 || stage == 3) && block >= *blocks) *blocks = block + 1;
    m->bottleneck = m->bottleneck || conv == 3;
}

static void note_pictures(const char *name, const rm_st_array *array, picture_marks *m, rm_weights_shape *out) {
    int number, end = 0;
    note_blocks(name, m);
    if (!strcmp(name, "conv1.weight") && array->rank == 4) out->cifar_stem = array->dim[2] == 3;
    if (!strcmp(name, "fc1.weight")) m->cnn = true;
    if (!strcmp(name, "fc2.weight") && array->rank == 2) out->outputs = array->dim[0];
    if (!strcmp(name, "outc.conv.weight")) out->outputs = array->dim[0];
    if (!strcmp(name, "inc.double_conv.0.weight")) m->unet = true, out->hidden = array->dim[0];
    if (sscanf(name, "down%3d.maxpool_conv.", &number) == 1 && number > out->layers) out->layers = number;
    if (sscanf(name, "%9d.weight%n", &number, &end) == 1 && end && !name[end] && array->rank == 2) {
        if (number == 0) out->hidden = array->dim[0];
        if (number >= m->mlp_last) m->mlp_last = number, out->outputs = array->dim[0];
        if (number / 2 > out->layers) out->layers = number / 2;
    }
}

static const char *model_of_pictures(const picture_marks *m) {
    if (m->unet) return "unet";
    if (m->first_blocks == 2 && m->third_blocks == 2 && !m->bottleneck) return "resnet18";
    if (m->first_blocks == 3 && m->third_blocks == 6) return m->bottleneck ? "resnet50" : "resnet34";
    return m->first_blocks ? NULL : m->cnn ? "cnn" : m->mlp_last ? "mlp" : NULL;
}

/* What array j says, if it is one of those that say something. */
static void note_shape(const rm_st_array *array, rm_weights_shape *out) {
    char name[256];
    int layer, end = 0;
    rm_weights_our_name(array->name, name, sizeof name);
    if (strstr(name, "bias")) out->biases = true;
    if (!strcmp(name, "head.bias")) out->tied = true; /* unless there is a weight */
    if (!strcmp(name, "rnn.weight_hh_l0_reverse")) out->bidirectional = true;
    if (!strcmp(name, "decoder_rnn.weight_ih_l0")) out->pairs = true;
    if (!strcmp(name, "embedding.weight") || !strcmp(name, "token_emb.weight")) out->symbols = true;
    if (array->rank != 2) return;
    if (sscanf(name, "rnn.weight_hh_l%9d%n", &layer, &end) == 1 && !name[end] && layer >= out->layers) {
        out->layers = layer + 1;
        if (!out->projection) out->hidden = array->dim[1];
        if (!out->projection) out->gates = out->hidden ? array->dim[0] / out->hidden : 0;
    }
    if (!strcmp(name, "rnn.weight_hr_l0")) /* of an lstm alone */
        out->projection = array->dim[0], out->hidden = array->dim[1], out->gates = 4;
    if (!strcmp(name, "embedding.weight")) out->embed = array->dim[1];
    if (!strcmp(name, "head.weight")) out->outputs = array->dim[0];
    note_minimal(name, array, out);
    note_gpt2(name, array, out);
}

static const rm_st_array *named(const rm_safetensors *file, const char *ours) {
    char name[256];
    for (int64_t j = 0; j < file->count; j++) {
        rm_weights_our_name(file->array[j].name, name, sizeof name);
        if (!strcmp(name, ours)) return &file->array[j];
    }
    return NULL;
}

/* Both names are there, for different numbers. */
static bool is_untied(const rm_safetensors *file) {
    const rm_st_array *head = named(file, ties[1][0]), *embedding = named(file, ties[1][1]);
    return head && embedding && !are_same(file, head, embedding);
}

remat_status rm_weights_shape_of(const char *path, rm_weights_shape *out) {
    rm_safetensors file;
    *out = (rm_weights_shape){0};
    picture_marks marks = {0};
    remat_status status = rm_safetensors_open(path, &file);
    for (int64_t j = 0; j < file.count && !status; j++) {
        note_shape(&file.array[j], out);
        note_pictures(without_prefixes(file.array[j].name), &file.array[j], &marks, out);
    }
    out->pictures = model_of_pictures(&marks);
    out->untied = !status && out->gpt2_positions && is_untied(&file);
    out->tied = out->tied && out->gates && out->embed && !out->outputs;
    rm_safetensors_free(&file);
    return status;
}

remat_status rm_weights_copy(remat_session *from, remat_session *to) {
    for (int64_t i = 0; i < count_stored(from, REMAT_PARAM); i++) {
        const stored at = stored_at(from, REMAT_PARAM, i);
        TRY(rm_stream_copy(from, to, at.kind, at.index));
    }
    return REMAT_OK;
}
