/* command_export.c: `remat export`: weights from one safetensors file to another, with the names and layout of another program. Our own
 * are Hugging Face's. */
#include "train/commands/commands.h"

#include "memory/host.h"
#include "train/file.h"
#include "train/state/nanogpt.h"
#include "train/state/state.h"
#include "train/state/state_directory.h"
#include "train/state/stream.h"
#include "train/state/weights.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 256 };

typedef struct {
    rm_safetensors file;
    bool gpt2;                 /* the weights are of a gpt2 */
    bool was_nanogpt, nanogpt; /* the layout of the file, and of the result */
    int64_t count, *source;    /* arrays of the result, and their indices in the file */
    remat_array *array;
    char (*name)[NAME_BYTES];
    rm_file_writer writer;
} export;

static remat_status find_file(const rm_options *o, char path[RM_PATH_BYTES]) {
    char state[RM_PATH_BYTES];
    bool found;
    REQUIRE(o->out, INVALID, "there is no file to write: give --out=FILE.safetensors");
    REQUIRE(!o->resume != !o->init, INVALID, "give the weights: either --resume=DIR (a training state) or --init=FILE");
    TRY(rm_options_check(o, RM_EXPORT));
    if (o->init) return (void)snprintf(path, RM_PATH_BYTES, "%s", o->init), REMAT_OK;
    TRY(rm_state_find(o->resume, state, &found));
    REQUIRE(found, IO, "%s holds no training state: give the directory of --save", o->resume);
    TRY(rm_state_spare_files(state, RM_EXPORT, o));
    return rm_path_join(path, RM_PATH_BYTES, state, RM_STATE_MODEL);
}

static bool transposed(const export *e, const char *ours) {
    return e->was_nanogpt != e->nanogpt && rm_nanogpt_transposes(ours);
}

/* `name` is without prefixes. */
static void describe(export *e, int64_t source, const char *name, const char *prefix) {
    const rm_st_array *from = &e->file.array[source];
    remat_array *to = &e->array[e->count];
    const bool turn = transposed(e, name);
    *to = (remat_array){.name = e->name[e->count], .dtype = REMAT_F32, .rank = from->rank};
    to->bytes = from->end - from->begin;
    for (int d = 0; d < from->rank; d++) to->dim[d] = from->dim[turn ? from->rank - 1 - d : d];
    snprintf(e->name[e->count], NAME_BYTES, "%s%s", prefix, name);
    e->source[e->count++] = source;
}

/* nanoGPT's state_dict has a tied head twice, Hugging Face's file once. */
static remat_status describe_all(export *e) {
    const rm_st_array *wte = rm_weights_named(&e->file, "wte.weight"),
                      *head = rm_weights_named(&e->file, "lm_head.weight");
    const bool tied = !head || (wte && rm_weights_same(&e->file, wte, head));
    for (int64_t i = 0; i < e->file.count; i++) {
        const rm_st_array *from = &e->file.array[i];
        const char *name = e->gpt2 ? rm_weights_without_prefixes(from->name) : from->name;
        REQUIRE(!strcmp(from->dtype, "F32"), INVALID, "%s: '%s' is %s; export reads F32: save it with .float()",
                e->file.path, from->name, from->dtype);
        if (from == head && tied) continue;
        describe(e, i, name, e->nanogpt && from != head ? "transformer." : "");
    }
    if (e->nanogpt && tied && wte) describe(e, wte - e->file.array, "lm_head.weight", "");
    return REMAT_OK;
}

static remat_status write_array(export *e, int64_t i) {
    const rm_st_array *from = &e->file.array[e->source[i]];
    const bool turn = transposed(e, rm_weights_without_prefixes(from->name));
    uint64_t bytes = from->end - from->begin;
    int64_t columns = turn ? from->dim[1] : 0;
    float *data = rm_malloc(bytes + (uint64_t)columns * sizeof *data);
    REQUIRE(data, MEMORY, "no memory for '%s'", from->name);
    remat_status status = turn ? rm_stream_columns(&e->file, from, 0, columns, data + bytes / sizeof *data, data)
                               : rm_safetensors_read(&e->file, from, data);
    if (!status) status = rm_file_write(&e->writer, data, bytes);
    rm_free(data);
    return status;
}

static remat_status write_all(export *e, const char *path) {
    TRY(rm_file_replace(path, &e->writer));
    remat_status status = rm_safetensors_begin(&e->writer, e->array, e->count);
    for (int64_t i = 0; i < e->count && !status; i++) status = write_array(e, i);
    if (!status) status = rm_file_finish(&e->writer);
    rm_file_abandon(&e->writer);
    return status;
}

static remat_status run(export *e, const rm_options *o) {
    char path[RM_PATH_BYTES];
    TRY(find_file(o, path));
    TRY(rm_safetensors_spare(o->out, "out"));
    TRY(rm_safetensors_open(path, &e->file));
    e->was_nanogpt = rm_nanogpt_wrote(&e->file);
    e->nanogpt = !strcmp(o->names, "nanogpt");
    e->gpt2 = rm_weights_named(&e->file, "h.0.attn.c_attn.weight") != NULL;
    REQUIRE(!e->nanogpt || e->gpt2, INVALID, "--names=nanogpt: %s has no weights of a gpt2: remove --names", path);
    e->array = rm_calloc((size_t)e->file.count + 1, sizeof *e->array);
    e->source = rm_calloc((size_t)e->file.count + 1, sizeof *e->source);
    e->name = rm_calloc((size_t)e->file.count + 1, sizeof *e->name);
    REQUIRE(e->array && e->source && e->name, MEMORY, "no memory for the names in %s", path);
    TRY(describe_all(e));
    TRY(write_all(e, o->out));
    printf("%lld arrays are in %s\n", (long long)e->count, o->out);
    return rm_file_flush_output();
}

remat_status rm_command_export(rm_options *options, int *exit_status) {
    (void)exit_status;
    export e = {.file.fd = -1, .writer.fd = -1};
    remat_status status = run(&e, options);
    rm_safetensors_free(&e.file);
    rm_free(e.array);
    rm_free(e.source);
    rm_free(e.name);
    return status;
}
