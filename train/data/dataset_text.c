/* dataset_text.c: tokens for language models: the bytes of any file, token numbers from a file (--vocab), or a text
 * encoded by a tokenizer. Sample i is tokens [i*T, i*T + T]; the last one is only a target. Samples are read from the
 * file when needed, so a text may be larger than memory. A gzipped file does not allow seeking and is decompressed into
 * memory; tokens from a tokenizer are kept in memory too, 4 bytes each. */
#include "train/data/batch.h"

#include "engine/rng.h"
#include "memory/host.h"
#include "train/data/file_kind.h"
#include "train/data/npy.h"
#include "train/data/tokenizer.h"

#include <string.h>
#include <unistd.h>
#include <zlib.h>

typedef struct {
    rm_dataset base;
    int fd; /* -1: the tokens are in `unpacked` */
    uint8_t *unpacked;
    char *path;
    rm_tokenizer *tokenizer; /* only while the file is opened */
    bool encoded;            /* `unpacked` is the tokenizer's output, int32_t */
    uint64_t begin;          /* offset of the first token in the file */
    int32_t document_end;
    bool random; /* samples begin at random places */
    uint64_t seed;
    rm_array sample; /* a token's type; its elements are the T + 1 tokens in `bytes` */
    uint8_t *bytes;  /* with room for MOST_BYTES per token */
} text_data;
enum { MOST_BYTES = 8 };

static remat_status read_at(const text_data *data, uint64_t at, void *to, size_t bytes) {
    if (!data->unpacked) return rm_file_read_at(data->fd, data->path, at, to, bytes);
    memcpy(to, data->unpacked + at, bytes);
    return REMAT_OK;
}

static remat_status check_token(const text_data *data, uint64_t place, double token) {
    int64_t vocabulary = data->base.shape.vocabulary;
    REQUIRE(token >= 0 && token < (double)vocabulary, INVALID,
            "%s: token %llu is %.0f, but --vocab=%lld allows 0 to %lld: give a larger --vocab, or other tokens",
            data->path, (unsigned long long)place, token, (long long)vocabulary, (long long)vocabulary - 1);
    return REMAT_OK;
}

enum { NODE = 0x717D }; /* of the random key */

/* The sample's first token. With random windows it is a function of (seed, epoch, sample), like an image's augmentation, so it does not
 * depend on ranks, and a resumed run draws the same. */
static int64_t first_token(const text_data *data, int64_t index) {
    int64_t T = data->base.shape.timesteps, epoch = data->base.epoch;
    if (!data->random) return index * T;
    rm_philox draw = rm_random4(rm_seed_at(data->seed, (uint64_t)epoch), (uint64_t)index, NODE, 0, (uint32_t)epoch);
    uint64_t places = (uint64_t)((data->base.drawn_from - 1) * T + 1);
    return (int64_t)(((uint64_t)draw.word[0] << 32 | draw.word[1]) % places);
}

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    text_data *data = (text_data *)base;
    int64_t T = base->shape.timesteps;
    int32_t *x = input, *y = target; /* (T,B) */
    int64_t first = first_token(data, index);
    uint64_t bytes = (uint64_t)data->sample.bytes, at = data->begin + (uint64_t)first * bytes;
    TRY(read_at(data, at, data->bytes, (size_t)((uint64_t)(T + 1) * bytes)));
    for (int64_t t = 0; t <= T; t++) {
        double token = rm_array_at(&data->sample, t, 0, 0);
        TRY(check_token(data, (uint64_t)(first + t), token));
        if (t < T) x[t * batch + column] = (int32_t)token;
        if (t) y[(t - 1) * batch + column] = (int32_t)token;
    }
    return REMAT_OK;
}

/* Marks where documents begin: after each end token, which may be the last token before this sample. */
static remat_status mark(rm_dataset *base, int64_t index, int64_t column, rm_batch *batch) {
    text_data *data = (text_data *)base;
    const int32_t *x = batch->data[RM_INPUT]; /* (T,B) */
    float *begins = batch->data[RM_BEGINS];
    int64_t T = base->shape.timesteps, B = batch->batch;
    uint64_t bytes = (uint64_t)data->sample.bytes;
    int64_t first = first_token(data, index);
    bool begun = first == 0;
    if (!base->shape.documents) return REMAT_OK;
    if (!begun) {
        TRY(read_at(data, data->begin + ((uint64_t)first - 1) * bytes, data->bytes, bytes));
        begun = rm_array_at(&data->sample, 0, 0, 0) == data->document_end;
    }
    for (int64_t t = 0; t < T; t++, begun = x[(t - 1) * B + column] == data->document_end)
        begins[t * B + column] = begun;
    return REMAT_OK;
}

enum { STRETCH = 65536, STRETCHES = 4096 };

/* The i-th of the stretches that are read before a run. They cover the tokens of samples, without the remainder at the
 * end of the file. */
static bool find_stretch(const text_data *data, uint64_t i, uint64_t *at, size_t *part) {
    uint64_t bytes = ((uint64_t)(data->base.count * data->base.shape.timesteps) + 1) * (uint64_t)data->sample.bytes;
    bool whole = bytes <= (uint64_t)STRETCH * STRETCHES;
    *at = whole ? i * STRETCH : (uint64_t)((double)(bytes - STRETCH) * (double)i / (STRETCHES - 1));
    if (i >= STRETCHES || *at >= bytes) return false;
    *part = bytes - *at < STRETCH ? (size_t)(bytes - *at) : STRETCH;
    return true;
}

/* Splits the stretches into pieces that fit on the stack. The last pieces of a short stretch are empty. */
enum { PIECE = 16384, PIECES = STRETCH / PIECE };
static bool find_piece(const text_data *data, uint64_t i, uint64_t *at, size_t *part) {
    size_t before = (size_t)(i % PIECES) * PIECE;
    if (!find_stretch(data, i / PIECES, at, part)) return false;
    before = before < *part ? before : *part;
    *at += before, *part -= before;
    if (*part > PIECE) *part = PIECE;
    return true;
}

static remat_status checksum(rm_dataset *base, uint32_t *crc32) {
    const text_data *data = (text_data *)base;
    uint8_t block[PIECE];
    uint64_t at;
    size_t part;
    for (uint64_t i = 0; find_piece(data, i, &at, &part); i++) {
        TRY(read_at(data, data->begin + at, block, part));
        *crc32 = (uint32_t)crc32_z(*crc32, block, part);
    }
    return REMAT_OK;
}

/* Finds invalid tokens before the run starts, not after hours. Very large files are only sampled; `fill` checks the
 * rest. */
static remat_status check_tokens(const text_data *data) {
    uint8_t block[PIECE]; /* a multiple of every token size */
    uint64_t at, bytes = (uint64_t)data->sample.bytes;
    size_t part;
    rm_array tokens = data->sample;
    tokens.item = block;
    for (uint64_t i = 0; find_piece(data, i, &at, &part); i++) {
        at -= at % bytes;
        TRY(read_at(data, data->begin + at, block, part));
        for (uint64_t k = 0; k < part / bytes; k++)
            TRY(check_token(data, at / bytes + k, rm_array_at(&tokens, (int64_t)k, 0, 0)));
    }
    return REMAT_OK;
}

static void close_text(rm_dataset *base) {
    text_data *data = (text_data *)base;
    if (data->fd >= 0) close(data->fd);
    rm_free(data->unpacked);
    rm_free(data->path);
    rm_tokenizer_free(data->tokenizer);
    rm_free(data->bytes);
}

rm_data_shape rm_text_shape(int64_t timesteps, int64_t vocabulary) {
    if (!vocabulary) vocabulary = 256;
    return (rm_data_shape){
        .timesteps = timesteps ? timesteps : 1000, .vocabulary = vocabulary, .classes = vocabulary, .every_step = true};
}

/* The bytes of such files could be trained on, but that is always a mistake. */
static remat_status refuse_arrays(rm_file_kind kind, const char *path) {
    REQUIRE(kind != RM_KIND_NPY && kind != RM_KIND_IDX, INVALID,
            "%s is an array (%s), not a text: use --task=classify and --labels=FILE%s", path,
            kind == RM_KIND_NPY ? ".npy" : "IDX",
            kind == RM_KIND_NPY ? "; or, if it holds tokens, give the vocabulary's size, --vocab=N" : "");
    REQUIRE(kind != RM_KIND_ZIP, INVALID,
            "%s is a .zip or .npz file, not a text: unpack it and give one of its files; for arrays, use "
            "--task=classify",
            path);
    REQUIRE(kind != RM_KIND_TORCH, INVALID,
            "%s was written by torch.save and is not a text: save its tokens as .npy and give them with --vocab=N; "
            "save weights as .safetensors and pass them to --init",
            path);
    REQUIRE(
        kind != RM_KIND_PACKED, INVALID,
        "%s is compressed in an unsupported way: unpack it (bzip2 -d, xz -d, zstd -d, tar -x), or compress it once, "
        "with gzip",
        path);
    REQUIRE(kind != RM_KIND_SAFETENSORS, INVALID,
            "%s holds weights (.safetensors), not a text: pass them to --init, and give a text to --data", path);
    return REMAT_OK;
}

/* Reads the whole file, decompressed. */
static remat_status load(text_data *data, uint64_t budget, const char *remedy, uint64_t *size) {
    uint64_t most = budget ? budget : RM_UNPACKED_BYTES;
    size_t got;
    TRY(rm_file_read_first(data->path, most + 1, &data->unpacked, &got));
    REQUIRE(got <= most, INFEASIBLE, "%s is larger than %llu bytes%s", data->path, (unsigned long long)most, remedy);
    data->base.held_bytes += got;
    *size = got;
    return REMAT_OK;
}

static remat_status unpack(text_data *data, uint64_t budget, uint64_t *size) {
    return load(data, budget,
                budget ? " when decompressed, the memory budget: decompress it with gunzip; a plain text takes the "
                         "memory of one sample"
                       : " when decompressed, the limit without a memory budget: decompress it with gunzip; a plain "
                         "text takes the memory of one sample",
                size);
}

/* ---- Texts for a tokenizer ----------------------------------------------------------------------------------------- */

/* The text stays in memory until all its tokens exist. */
static remat_status encode(text_data *data, uint64_t budget, uint64_t *size) {
    rm_tokens tokens = {0};
    TRY(load(data, budget,
             budget ? ", the memory budget: --tokenizer holds the text and its tokens in memory; encode it once, and "
                      "give the tokens as .npy"
                    : ", the limit for --tokenizer without a memory budget: encode it once, and give the tokens as "
                      ".npy",
             size));
    remat_status status = rm_tokenizer_encode(data->tokenizer, data->unpacked, (size_t)*size, &tokens);
    rm_free(data->unpacked);
    data->base.held_bytes -= *size;
    *size = (uint64_t)tokens.count * sizeof *tokens.id;
    data->unpacked = rm_shrink(tokens.id, (size_t)*size);
    data->base.held_bytes += *size;
    data->encoded = true;
    return status ? rm_fail_in(status, "%s", data->path) : REMAT_OK;
}

/* The bytes of all targets: of every token that samples use, except the first. */
static uint64_t count_target_bytes(const text_data *data) {
    const int32_t *id = (const int32_t *)data->unpacked;
    uint64_t bytes = 0;
    for (int64_t i = 1; i <= data->base.count * data->base.shape.timesteps; i++) {
        size_t length;
        rm_tokenizer_decode(data->tokenizer, id[i], &length);
        bytes += length;
    }
    return bytes;
}

/* ---- The file ------------------------------------------------------------------------------------------------------ */

/* Are these 4-byte numbers read as 2-byte tokens? Then every second token is 0, which does not happen in a text. */
static bool is_wider(const uint8_t *head, size_t bytes) {
    uint32_t above = 0, below = 0;
    for (size_t i = 0; i + 4 <= bytes; i += 4) below |= head[i] | head[i + 1], above |= head[i + 2] | head[i + 3];
    return bytes >= 64 && bytes % 4 == 0 && below && !above;
}

/* Finds the first token and the token size: from the header of an array, or from the size of the vocabulary. */
static remat_status find_tokens(text_data *data, const rm_data_source *source, bool npy, uint64_t size) {
    uint8_t head[4096];
    size_t part = size < sizeof head ? (size_t)size : sizeof head, header = 0;
    bool four = data->encoded || source->vocab > 65536;
    data->sample = (rm_array){.kind = 'u', .bytes = four ? 4 : source->vocab ? 2 : 1, .stride = {1}};
    if (npy) {
        rm_array array;
        TRY(read_at(data, 0, head, part));
        TRY(rm_npy_header(head, part, data->path, &array, &header));
        REQUIRE(array.rank == 1 && (array.kind == 'i' || array.kind == 'u'), INVALID,
                "%s does not hold integers in one dimension: save the tokens with .reshape(-1).astype('uint32')",
                data->path);
        data->sample.kind = array.kind, data->sample.bytes = array.bytes, data->sample.big_endian = array.big_endian;
        REQUIRE(size - header == (uint64_t)array.count * (uint64_t)array.bytes, IO,
                "%s has %llu bytes after its header, which declares %lld numbers of %lld bytes: save it again",
                data->path, (unsigned long long)(size - header), (long long)array.count, (long long)array.bytes);
    }
    if (!npy && data->sample.bytes == 2) {
        TRY(read_at(data, 0, head, part));
        REQUIRE(
            !is_wider(head, part), INVALID,
            "%s: every second token is 0, so it seems to hold 4-byte numbers, but tokens of --vocab=%lld have 2 bytes: "
            "save it as uint16, or as .npy, which declares its type",
            data->path, (long long)source->vocab);
    }
    data->begin = header;
    data->sample.item = data->bytes;
    REQUIRE((size - header) % (uint64_t)data->sample.bytes == 0, IO,
            "%s has %llu bytes, but tokens of --vocab=%lld have %lld: the file is truncated or has another token size",
            data->path, (unsigned long long)size, (long long)source->vocab, (long long)data->sample.bytes);
    return REMAT_OK;
}

static remat_status find_kind(const char *path, rm_file_kind *kind, bool *packed) {
    rm_file_start *start;
    TRY(rm_file_begin(path, &start));
    *kind = rm_file_kind_of(start, path);
    *packed = start->packed;
    rm_free(start);
    return REMAT_OK;
}

static remat_status open_file(text_data *data, const rm_data_source *source) {
    const char *path = source->data;
    rm_file_kind kind;
    bool packed;
    uint64_t size;
    rm_data_shape *shape = &data->base.shape;
    int64_t T = shape->timesteps;
    REQUIRE(data->path = rm_strdup(path), MEMORY, "no memory to open %s", path);
    TRY(find_kind(path, &kind, &packed));
    bool npy = (source->vocab || source->tokenizer) && kind == RM_KIND_NPY, text = source->tokenizer && !npy;
    if (!npy) TRY(refuse_arrays(kind, path));
    if (source->tokenizer) TRY(rm_dataset_read_tokenizer(&data->base, source, &data->tokenizer, &shape->vocabulary));
    shape->classes = shape->vocabulary;
    if (text)
        TRY(encode(data, source->budget, &size));
    else
        TRY(packed ? unpack(data, source->budget, &size) : rm_file_open(path, &data->fd, &size));
    TRY(find_tokens(data, source, npy, size));
    REQUIRE(source->document_end <= data->base.shape.vocabulary, INVALID,
            "--document-end=%lld is not a token: give one of 0 to %lld", (long long)source->document_end - 1,
            (long long)data->base.shape.vocabulary - 1);
    uint64_t tokens = (size - data->begin) / (uint64_t)data->sample.bytes;
    data->base.count = data->base.drawn_from = tokens ? (int64_t)((tokens - 1) / (uint64_t)T) : 0;
    REQUIRE(data->base.count > 0, INVALID,
            "%s has %llu %s; one sample of %lld timesteps needs %lld: give a longer file or a smaller --seq-len", path,
            (unsigned long long)tokens, source->vocab || text ? "tokens" : "bytes", (long long)T, (long long)T + 1);
    if (!text && (source->vocab || npy)) TRY(check_tokens(data));
    if (text && rm_tokenizer_keeps_bytes(data->tokenizer)) data->base.target_bytes = count_target_bytes(data);
    if (!text && !source->vocab && !npy) data->base.target_bytes = (uint64_t)(data->base.count * T);
    return REMAT_OK;
}

static remat_status open_text(rm_dataset *base, const rm_data_source *source) {
    text_data *data = (text_data *)base;
    data->fd = -1;
    REQUIRE(source->data, INVALID, "--task=lm needs a text: give --data=FILE");
    base->shape = rm_text_shape(source->timesteps, source->vocab);
    base->shape.documents = source->document_end > 0;
    base->held_bytes = ((uint64_t)base->shape.timesteps + 1) * (source->vocab || source->tokenizer ? MOST_BYTES : 1);
    data->document_end = (int32_t)source->document_end - 1;
    data->random = source->random_windows && !source->held_out;
    data->seed = (uint64_t)source->seed;
    data->bytes = rm_malloc(base->held_bytes);
    REQUIRE(data->bytes, MEMORY, "no memory for a sample of %llu bytes", (unsigned long long)base->held_bytes);
    remat_status status = open_file(data, source);
    rm_tokenizer_free(data->tokenizer);
    data->tokenizer = NULL;
    return status;
}

static remat_status view(rm_dataset *copy) { return ((text_data *)copy)->random = false, REMAT_OK; }

const rm_data_kind rm_data_text = {.bytes = sizeof(text_data),
                                   .open = open_text,
                                   .close = close_text,
                                   .fill = fill,
                                   .view = view,
                                   .mark = mark,
                                   .checksum = checksum};
