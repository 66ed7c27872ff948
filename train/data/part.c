/* part.c: see part.h. */
#include "train/data/part.h"

#include "engine/remat.h"
#include "memory/host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    rm_dataset base;
    rm_data_kind kind; /* has the same optional functions as the kind of `base.whole` */
    int64_t first;
    uint32_t *order; /* of the whole data set's samples; NULL: the file's order */
} part;

static int64_t sample_of(const rm_dataset *base, int64_t index) {
    const part *p = (const part *)base;
    return p->order ? p->order[p->first + index] : p->first + index;
}

static remat_status fill(rm_dataset *base, int64_t index, int64_t column, int64_t batch, void *input, void *target) {
    return rm_dataset_fill(base->whole, sample_of(base, index), column, batch, input, target);
}
static remat_status mark(rm_dataset *base, int64_t index, int64_t column, rm_batch *batch) {
    return base->whole->kind->mark(base->whole, sample_of(base, index), column, batch);
}
static int64_t length(const rm_dataset *base, int64_t index) {
    return base->whole->kind->length(base->whole, sample_of(base, index));
}
static int64_t answer_length(const rm_dataset *base, int64_t index) {
    return base->whole->kind->answer_length(base->whole, sample_of(base, index));
}
static remat_status checksum(rm_dataset *base, uint32_t *crc32) { return rm_dataset_checksum(base->whole, crc32); }

static void close_part(rm_dataset *base) {
    rm_dataset_close(base->whole);
    rm_free(((part *)base)->order);
}

static rm_data_kind view_of(const rm_data_kind *kind) {
    return (rm_data_kind){.bytes = sizeof(part),
                          .close = close_part,
                          .fill = fill,
                          .mark = kind->mark ? mark : NULL,
                          .length = kind->length ? length : NULL,
                          .answer_length = kind->answer_length ? answer_length : NULL,
                          .checksum = kind->checksum ? checksum : NULL,
                          .threads = kind->threads};
}

/* torch.randperm with a generator of this seed. */
static remat_status draw_order(part *p, int64_t seed) {
    int64_t n = p->base.whole->count;
    remat_sampler_config config = {
        .struct_bytes = sizeof config, .n = n, .replicas = 1, .seed = (uint64_t)seed, .shuffle = true};
    remat_sampler *sampler;
    p->order = rm_malloc((size_t)n * sizeof *p->order);
    REQUIRE(p->order, MEMORY, "no memory for the order of %lld samples", (long long)n);
    TRY(remat_sampler_create(&config, &sampler));
    for (int64_t i = 0; i < n; i++) p->order[i] = (uint32_t)remat_sampler_at(sampler, i);
    remat_sampler_free(sampler);
    p->base.held_bytes += (uint64_t)n * sizeof *p->order;
    return REMAT_OK;
}

static remat_status take_share(part *p, const rm_split *split, bool held_out) {
    rm_dataset *whole = p->base.whole;
    int64_t evaluated = llround(split->share * (double)whole->count), trained = whole->count - evaluated;
    REQUIRE(evaluated && trained, INVALID,
            "--eval-split=%g of %lld sample%s leaves none to %s: give a %s share, or --eval-data=FILE", split->share,
            (long long)whole->count, whole->count == 1 ? "" : "s", evaluated ? "train on" : "evaluate on",
            evaluated ? "smaller" : "larger");
    p->base.count = held_out ? evaluated : trained;
    p->first = held_out ? trained : 0;
    if (!held_out) p->base.whole->drawn_from = trained;
    return split->random ? draw_order(p, split->seed) : REMAT_OK;
}

/* target_bytes is known for all samples together, and for a part only if all samples have the same number of bytes. */
static uint64_t bytes_of_targets(const part *p) {
    const rm_dataset *whole = p->base.whole;
    uint64_t timesteps = (uint64_t)whole->shape.timesteps;
    return whole->target_bytes == (uint64_t)whole->count * timesteps ? (uint64_t)p->base.count * timesteps : 0;
}

remat_status rm_part_open(rm_dataset *whole, const rm_split *split, bool held_out, rm_dataset **out) {
    part *p = rm_calloc(1, sizeof *p);
    *out = NULL;
    if (!p) rm_dataset_close(whole);
    REQUIRE(p, MEMORY, "no memory for a part of the data");
    p->base = *whole;
    p->base.whole = whole;
    p->base.borrows = false;
    p->kind = view_of(whole->kind);
    p->base.kind = &p->kind;
    whole->tokenizer = NULL; /* moved to the part */
    remat_status status = take_share(p, split, held_out);
    p->base.target_bytes = bytes_of_targets(p);
    if (status)
        rm_dataset_close(&p->base);
    else
        *out = &p->base;
    return status;
}

remat_status rm_split_parse(const char *text, rm_split *out) {
    char *end;
    out->share = strtod(text, &end);
    out->random = !strcmp(end, ":random");
    bool sound = end > text && (!*end || out->random) && out->share > 0 && out->share < 1;
    REQUIRE(sound, INVALID,
            "--eval-split=%.60s is not a share between 0 and 1: give 0.1 for the last tenth of the samples, or "
            "0.1:random for a tenth drawn by --seed",
            text);
    return REMAT_OK;
}
