/* buckets.c: see buckets.h. */
#include "engine/chain/buckets.h"

#include <stdlib.h>
#include <string.h>

#include "memory/host.h"

enum { UNIT = RM_ALIGN / sizeof(float) }; /* alignment of arrays, in floats */

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* ---- The parameters -------------------------------------------------------------------------------------------- */

static remat_status list_parameters(const rm_chain *chain, rm_buckets *b) {
    const remat_graph *graph = chain->graph;
    for (int32_t v = 1; v < graph->n_values; v++) b->n_params += graph->value[v].origin == RM_VALUE_PARAM;
    size_t n = (size_t)b->n_params + 1;
    b->param = rm_calloc(n, sizeof *b->param);
    b->order = rm_calloc(n, sizeof *b->order);
    b->item = rm_calloc(n, sizeof *b->item);
    REQUIRE(b->param && b->order && b->item, MEMORY, "out of memory for the layout of %d parameters", b->n_params);
    int32_t i = 0;
    for (int32_t v = 1; v < graph->n_values; v++)
        if (graph->value[v].origin == RM_VALUE_PARAM)
            b->param[i++] = (rm_parameter){.value = v, .bucket = -1, .count = rm_desc_count(&graph->value[v].desc)};
    return REMAT_OK;
}

/* ---- The order ------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t first_read; /* place of its first reader in a forward pass, which is its last in a backward pass */
    int32_t param;
} reader;

static int by_last_first(const void *a, const void *b) {
    const reader *x = a, *y = b;
    if (x->first_read != y->first_read) return x->first_read < y->first_read ? 1 : -1;
    return x->param < y->param ? 1 : -1;
}

/* Notes the places where a node reads its inputs. Tables run before the chain in forward, and after it in backward. */
static void note_reads(const rm_chain *chain, int32_t node, int64_t place, int64_t *first_read) {
    const rm_node *n = &chain->graph->node[node];
    for (int i = 0; i < REMAT_MAX_INPUTS && chain->use[n->y] == RM_DIFFERENTIATED; i++) {
        int64_t at = place * REMAT_MAX_INPUTS + i;
        if (n->x[i] && at < first_read[n->x[i]]) first_read[n->x[i]] = at;
    }
}

static void sort_parameters(const rm_chain *chain, int64_t *first_read, reader *readers, rm_buckets *b) {
    for (int32_t v = 0; v < chain->graph->n_values; v++) first_read[v] = INT64_MAX;
    for (int32_t n = 0; n < chain->graph->n_nodes; n++)
        if (chain->role[n] == RM_ROLE_TABLE) note_reads(chain, n, n - chain->graph->n_nodes, first_read);
    for (int32_t i = 0; i < chain->n_order; i++) note_reads(chain, chain->order[i], i, first_read);
    for (int32_t i = 0; i < b->n_params; i++) {
        readers[i] = (reader){first_read[b->param[i].value], i};
        b->param[i].used = chain->use[b->param[i].value] == RM_DIFFERENTIATED;
    }
    qsort(readers, (size_t)b->n_params, sizeof *readers, by_last_first);
    for (int32_t i = 0; i < b->n_params; i++) b->order[i] = readers[i].param;
}

static remat_status find_order(const rm_chain *chain, rm_buckets *b) {
    size_t values = (size_t)chain->graph->n_values;
    int64_t *first_read = rm_calloc(values, sizeof *first_read);
    reader *readers = rm_calloc((size_t)b->n_params + 1, sizeof *readers);
    bool got = first_read && readers;
    if (got) sort_parameters(chain, first_read, readers, b);
    rm_free(first_read);
    rm_free(readers);
    REQUIRE(got, MEMORY, "out of memory for the order of %d parameters", b->n_params);
    return REMAT_OK;
}

/* Rank 0's order is used, but it must be a permutation of this rank's parameters. */
static remat_status check_order(const rm_buckets *b, uint8_t *seen) {
    memset(seen, 0, (size_t)b->n_params);
    for (int32_t i = 0; i < b->n_params; i++) {
        bool fresh = b->order[i] >= 0 && b->order[i] < b->n_params && !seen[b->order[i]];
        REQUIRE(fresh, PEER,
                "rank 0's order of parameters is not an order of this rank's %d parameters; train the same network on "
                "all ranks",
                b->n_params);
        seen[b->order[i]] = 1;
    }
    return REMAT_OK;
}

static remat_status agree(const remat_ranks *ranks, rm_buckets *b) {
    if (!ranks->agree) return REMAT_OK;
    uint8_t *used = rm_calloc((size_t)b->n_params + 1, 1);
    REQUIRE(used, MEMORY, "out of memory for the order of %d parameters", b->n_params);
    for (int32_t i = 0; i < b->n_params; i++) used[i] = b->param[i].used;
    remat_status status = ranks->agree(ranks->context, b->order, used, b->n_params);
    for (int32_t i = 0; i < b->n_params && !status; i++) b->param[i].used = used[i] != 0;
    if (!status) status = check_order(b, used);
    rm_free(used);
    return status;
}

/* Frozen parameters have no gradient, even if other ranks train them. They end the order, which lists all parameters: a
 * session that shares with this one adopts it. */
static void leave_out_frozen(const rm_chain *chain, rm_buckets *b) {
    for (int32_t i = 0; i < b->n_params; i++) {
        int32_t k = b->order[i];
        rm_parameter *p = &b->param[k];
        bool trained = chain->graph->value[p->value].needs_gradient && rm_chain_holds(chain, p->value);
        p->used &= trained;
        if (!trained) continue;
        b->order[i] = b->order[b->n_trained];
        b->order[b->n_trained++] = k;
    }
}

/* ---- The cut --------------------------------------------------------------------------------------------------- */

/* PyTorch's rule (compute_bucket_assignment_by_size): a bucket is closed once it has reached its limit, so it may
 * exceed the limit by almost one array. Sizes exclude the padding between arrays. */
static void fill_buckets(rm_buckets *b, const remat_ranks *ranks) {
    uint64_t first = ranks->first_bucket_bytes ? ranks->first_bucket_bytes : (uint64_t)1 << 20;
    uint64_t later = ranks->bucket_bytes ? ranks->bucket_bytes : (uint64_t)25 << 20, held = 0;
    for (int32_t i = 0; i < b->n_trained; i++) {
        rm_parameter *p = &b->param[b->order[i]];
        rm_bucket *bucket = &b->item[b->n];
        if (!bucket->n_params++) *bucket = (rm_bucket){.at = b->count, .first_param = i, .n_params = 1};
        p->bucket = b->n;
        p->at = b->count;
        b->count += round_up(p->count, UNIT);
        held += (uint64_t)p->count * sizeof(float);
        if (held < (b->n ? later : first) && i + 1 < b->n_trained) continue;
        bucket->count = round_up(b->count - bucket->at, (int64_t)UNIT * ranks->size);
        b->count = bucket->at + bucket->count;
        b->n++;
        held = 0;
    }
}

/* Finds, for each parameter, the elements in this rank's part of its bucket. */
static void share_out(rm_buckets *b) {
    for (int32_t i = 0; i < b->n_params; i++) {
        rm_parameter *p = &b->param[i];
        if (p->bucket < 0) continue;
        const rm_bucket *bucket = &b->item[p->bucket];
        int64_t begin = bucket->at + rm_part_at(b, bucket), end = begin + rm_part_count(b, bucket);
        int64_t from = p->at > begin ? p->at : begin, until = p->at + p->count < end ? p->at + p->count : end;
        p->held = until > from ? until - from : 0;
        p->first = p->held ? from - p->at : 0;
    }
}

remat_status rm_buckets_cut(rm_chain *chain, const remat_ranks *ranks) {
    rm_buckets *b = &chain->at.buckets;
    TRY(list_parameters(chain, b));
    TRY(find_order(chain, b));
    TRY(agree(ranks, b));
    leave_out_frozen(chain, b);
    b->rank = ranks->shard_optimizer ? ranks->rank : 0;
    b->parts = ranks->shard_optimizer ? ranks->size : 1;
    fill_buckets(b, ranks);
    share_out(b);
    return REMAT_OK;
}

/* ---- When a bucket is final ------------------------------------------------------------------------------------ */

/* The k-th gradient of the layout. */
static const rm_where *gradient_at(const rm_residents *at, int32_t k) {
    return &at->gradient[at->buckets.param[at->buckets.order[k]].value];
}

static bool begins_after(const rm_where *gradient, const rm_where *where) {
    return where->space == RM_EXTERNAL ? gradient->slot > where->slot : gradient->offset > where->offset;
}

/* The bucket that contains this operand, a gradient; NULL: none. */
static rm_bucket *bucket_at(rm_residents *at, const rm_where *where) {
    bool stays = where->space == RM_RESIDENT || where->space == RM_EXTERNAL;
    int32_t low = 0, high = at->buckets.n_trained - 1;
    while (stays && low < high) {
        int32_t middle = (low + high + 1) / 2;
        if (begins_after(gradient_at(at, middle), where))
            high = middle - 1;
        else
            low = middle;
    }
    const rm_where *found = stays && high >= 0 ? gradient_at(at, low) : NULL;
    bool same = found && found->space == where->space &&
                (where->space == RM_EXTERNAL ? found->slot == where->slot : found->offset == where->offset);
    return same ? &at->buckets.item[at->buckets.param[at->buckets.order[low]].bucket] : NULL;
}

static void note_write(rm_residents *at, const rm_where *where, int64_t stage, int option, int32_t number) {
    rm_bucket *bucket = bucket_at(at, where);
    if (!bucket) return;
    if (bucket->stage != stage) memset(bucket->after, 0, sizeof bucket->after);
    bucket->stage = stage;
    bucket->after[option] = number + 1;
}

static void note_writes(rm_residents *at, const rm_program *program, int64_t stage, int option) {
    for (int32_t n = 0; n < program->n; n++) {
        rm_instruction item = rm_program_at(program, n);
        for (int i = 0; i < REMAT_MAX_INPUTS; i++) note_write(at, &item.dx[i], stage, option, n);
        if (item.what != RM_DO_BACKWARD) note_write(at, &item.y, stage, option, n);
    }
}

/* Buckets are passed on in order, so a bucket is not final before those that precede it. */
static void put_in_order(rm_buckets *b) {
    for (int32_t i = 1; i < b->n; i++) {
        const rm_bucket *before = &b->item[i - 1];
        rm_bucket *bucket = &b->item[i];
        if (bucket->stage > before->stage) {
            bucket->stage = before->stage;
            memcpy(bucket->after, before->after, sizeof bucket->after);
        }
        for (int k = 0; k < RM_MAX_OPTIONS && bucket->stage == before->stage; k++)
            if (bucket->after[k] < before->after[k]) bucket->after[k] = before->after[k];
    }
}

/* Visits backward programs in the order in which every plan runs them, so that a later write overrides an earlier one.
 * Stages of one kind are consecutive in a sweep; only the first of them, which backward runs last, is visited. */
void rm_buckets_find_final(rm_chain *chain) {
    rm_residents *at = &chain->at;
    for (int32_t i = 0; i < at->buckets.n; i++) at->buckets.item[i].stage = chain->n_stages - 1;
    for (int64_t s = chain->n_stages - 1; s >= 0; s--) {
        const rm_stage_kind *kind = rm_stage_kind_of(chain, s);
        const rm_sweep *sweep = rm_stage_sweep(chain, s);
        int64_t first_alike = sweep->first + (sweep->head != sweep->inner);
        if (kind == &chain->kind[sweep->inner] && !kind->last) s = first_alike;
        for (int k = 0; k < kind->n_options; k++) note_writes(at, &kind->option[k].backward, s, k);
    }
    note_writes(at, &chain->epilogue, -1, 0);
    put_in_order(&at->buckets);
}
