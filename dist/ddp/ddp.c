/* ddp.c: averages gradients over ranks, bucket by bucket: implements remat_ranks with the collectives of a group.
 * ddp_compare.c compares and sends data before the first step. Main entry: rm_ddp_open. */
#include "dist/ddp/ddp.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "dist/ddp/ddp_state.h"
#include "dist/group/reduce.h"
#include "memory/clock.h"
#include "memory/host.h"

/* ---- Names for messages ----------------------------------------------------------------------------------------- */

/* Any thread of the group may ask for a name at any time, even just after a ddp was closed. A pointer is therefore
 * looked up among the open ones before it is dereferenced. */
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static rm_ddp *all_open;

static void enter(rm_ddp *ddp) {
    pthread_mutex_lock(&names_lock);
    ddp->next = all_open;
    all_open = ddp;
    pthread_mutex_unlock(&names_lock);
}

static void leave(rm_ddp *ddp) {
    pthread_mutex_lock(&names_lock);
    for (rm_ddp **link = &all_open; *link; link = &(*link)->next)
        if (*link == ddp) {
            *link = ddp->next;
            break;
        }
    pthread_mutex_unlock(&names_lock);
}

static bool is_open(const rm_ddp *ddp) {
    const rm_ddp *other = all_open;
    while (other && other != ddp) other = other->next;
    return other != NULL;
}

static const char *name_of_other(uint32_t tag) {
    static const char *const names[RM_TAGS_END - RM_TAG_FIRST] = {
        [RM_TAG_CONFIG - RM_TAG_FIRST] = "batch sizes",
        [RM_TAG_ORDER - RM_TAG_FIRST] = "parameter order",
        [RM_TAG_USED - RM_TAG_FIRST] = "parameters in use",
        [RM_TAG_SUM - RM_TAG_FIRST] = "sums of losses and norms",
        [RM_TAG_COMPARE - RM_TAG_FIRST] = "comparing ranks",
        [RM_TAG_SHARE - RM_TAG_FIRST] = "text sent by rank 0",
        [RM_TAG_PARAMETERS - RM_TAG_FIRST] = "parameters of rank 0",
        [RM_TAG_VERSION - RM_TAG_FIRST] = "versions of Remat",
    };
    return names[tag - RM_TAG_FIRST];
}

const char *rm_ddp_tag_name(void *ddp_pointer, uint32_t tag) {
    static _Thread_local char text[2][160]; /* a message may contain two of them */
    static _Thread_local int turn;
    if (tag >= RM_TAG_FIRST && tag < RM_TAGS_END) return name_of_other(tag);
    char *out = text[turn ^= 1];
    pthread_mutex_lock(&names_lock);
    const rm_ddp *ddp = __atomic_load_n((rm_ddp **)ddp_pointer, __ATOMIC_ACQUIRE);
    const bool known = is_open(ddp) && tag < (uint32_t)ddp->buckets && ddp->bucket[tag].first;
    if (known)
        snprintf(out, sizeof text[0], "bucket %u, which begins with %.100s", tag, ddp->bucket[tag].first);
    else
        snprintf(out, sizeof text[0], "bucket %u", tag);
    pthread_mutex_unlock(&names_lock);
    return out;
}

/* ---- Buckets ---------------------------------------------------------------------------------------------------- */

static bool make_room(rm_ddp *ddp, int32_t buckets) {
    int64_t before = ddp->room;
    if (!rm_grow(&ddp->bucket, &ddp->room, buckets, sizeof *ddp->bucket)) return false;
    if (ddp->room > before) memset(ddp->bucket + before, 0, (size_t)(ddp->room - before) * sizeof *ddp->bucket);
    return true;
}

rm_ddp_bucket *rm_ddp_know(rm_ddp *ddp, int32_t index, const char *first) {
    const bool known = index < ddp->buckets && ddp->bucket[index].first && !strcmp(ddp->bucket[index].first, first);
    if (known) return &ddp->bucket[index];
    char *name = rm_strdup(first);
    pthread_mutex_lock(&names_lock);
    const bool fine = name && make_room(ddp, index + 1);
    if (fine) {
        rm_free(ddp->bucket[index].first);
        ddp->bucket[index].first = name;
        if (ddp->buckets <= index) ddp->buckets = index + 1;
    }
    pthread_mutex_unlock(&names_lock);
    if (fine) return &ddp->bucket[index];
    rm_free(name);
    (void)rm_fail(REMAT_MEMORY, "out of memory for the record of bucket %d", index);
    return NULL;
}

static rm_wire half_wire(const rm_ddp *ddp) {
    return ddp->config.compress == RM_COMPRESS_FP16 ? RM_WIRE_F16 : RM_WIRE_BF16;
}

/* The group that transfers gradients and parameters. */
static rm_group *carrier(const rm_ddp *ddp) { return ddp->config.gpus ? ddp->config.gpus : ddp->config.group; }

/* Checked on every call from a session. A session that outlives its job gets an error instead of following a freed
 * pointer. */
static remat_status must_be_open(const rm_ddp *ddp) {
    REQUIRE(!ddp->closed, INVALID,
            "this session's job has been left (remat_leave), so there are no ranks to train with; free the session "
            "with remat_session_free first, then leave the job");
    return REMAT_OK;
}

/* Buffers for compressed gradients, allocated before the first step (remat_ranks.prepare) and kept. */
static remat_status need_half(rm_ddp *ddp, rm_ddp_bucket *own, int64_t count) {
    if (own->half_count >= count) return REMAT_OK;
    rm_group_free(ddp->config.group, own->half);
    own->half_count = 0;
    own->half = rm_group_alloc(ddp->config.group, (uint64_t)count * sizeof *own->half);
    if (!own->half) return rm_fail_in(REMAT_MEMORY, "compressed gradients");
    own->half_count = count;
    return REMAT_OK;
}

static remat_status prepare(void *context, const remat_bucket *bucket) {
    rm_ddp *ddp = context;
    rm_ddp_bucket *own = rm_ddp_know(ddp, bucket->index, bucket->first);
    return own ? need_half(ddp, own, bucket->count) : REMAT_MEMORY;
}

/* ---- Gradients: remat_ranks.reduce and wait ---------------------------------------------------------------------- */

static int64_t part_of(const rm_ddp *ddp, const remat_bucket *bucket) { return bucket->count / ddp->ranks.size; }

/* Sharded: the sum of this rank's shard goes to its own place. Otherwise the whole sum goes to every rank. */
static rm_collective reduction_of(const rm_ddp *ddp, const remat_bucket *bucket, rm_wire wire, void *data) {
    rm_collective what = {.kind = RM_ALL_REDUCE, .wire = wire, .tag = (uint32_t)bucket->index, .count = bucket->count};
    what.in = what.out = data;
    what.after = bucket->ready;
    what.reduction = ddp->config.compress ? RM_SUM : ddp->config.deterministic_world ? RM_TREE : RM_MEAN;
    if (!ddp->config.shard_optimizer) return what;
    what.kind = RM_REDUCE_SCATTER;
    what.count = part_of(ddp, bucket);
    what.out = (char *)data + (uint64_t)(what.count * ddp->ranks.rank) * rm_wire_bytes(wire);
    return what;
}

/* The first bucket starts a step, for the statistics. */
static void begin_step(rm_ddp *ddp) {
    ddp->busy_before_ns = rm_group_busy_ns(carrier(ddp));
    ddp->cost = (rm_ddp_cost){0};
}

static remat_status issue(rm_ddp *ddp, const rm_collective *what, rm_ticket *ticket) {
    ddp->cost.bytes += rm_collective_in_bytes(what, ddp->ranks.size);
    TRY(rm_group_issue(carrier(ddp), what, ticket));
    ddp->issued = *ticket;
    return REMAT_OK;
}

static remat_status await(rm_ddp *ddp, rm_ticket ticket) {
    const uint64_t start = rm_now_ns();
    remat_status status = rm_group_wait(carrier(ddp), ticket);
    ddp->cost.waited_ns += rm_now_ns() - start;
    if (ticket > ddp->waited) ddp->waited = ticket;
    return status;
}

/* Called before memory is freed that the group's thread may still be reducing: a step failed half-way, and no rank can
 * finish it. */
static void settle(rm_ddp *ddp) {
    if (ddp->waited >= ddp->issued) return;
    if (!rm_group_done(carrier(ddp), ddp->issued))
        rm_group_abort(carrier(ddp), "the step failed while gradients were being reduced");
    (void)rm_group_wait(carrier(ddp), ddp->issued);
    ddp->waited = ddp->issued;
}

static remat_status reduce(void *context, const remat_bucket *bucket) {
    rm_ddp *ddp = context;
    TRY(must_be_open(ddp));
    rm_ddp_bucket *own = rm_ddp_know(ddp, bucket->index, bucket->first);
    if (!own) return REMAT_MEMORY;
    if (bucket->index == 0) begin_step(ddp);
    void *data = bucket->gradients;
    rm_wire wire = RM_WIRE_F32;
    if (ddp->config.compress) {
        TRY(need_half(ddp, own, bucket->count));
        data = own->half;
        wire = half_wire(ddp);
        rm_narrow(wire, ddp->share, bucket->gradients, own->half, bucket->count);
    } else if (ddp->config.deterministic_world) {
        rm_scale(wire, ddp->share, data, data, bucket->count);
    }
    rm_collective what = reduction_of(ddp, bucket, wire, data);
    ddp->cost.buckets++;
    return issue(ddp, &what, &own->reduced);
}

static remat_status wait(void *context, const remat_bucket *bucket) {
    rm_ddp *ddp = context;
    TRY(must_be_open(ddp));
    const rm_ddp_bucket *own = &ddp->bucket[bucket->index];
    TRY(await(ddp, own->reduced));
    if (!ddp->config.compress) return REMAT_OK;
    const int64_t n = ddp->config.shard_optimizer ? part_of(ddp, bucket) : bucket->count;
    const int64_t at = ddp->config.shard_optimizer ? n * ddp->ranks.rank : 0;
    rm_widen(half_wire(ddp), own->half + at, bucket->gradients + at, n);
    return REMAT_OK;
}

/* ---- Parameters: remat_ranks.gather and gathered ----------------------------------------------------------------- */

static remat_status gather(void *context, const remat_bucket *bucket) {
    rm_ddp *ddp = context;
    TRY(must_be_open(ddp));
    rm_ddp_bucket *own = rm_ddp_know(ddp, bucket->index, bucket->first);
    if (!own) return REMAT_MEMORY;
    rm_collective what = {.kind = RM_ALL_GATHER, .tag = (uint32_t)bucket->index, .count = part_of(ddp, bucket)};
    what.in = bucket->parameters + what.count * ddp->ranks.rank;
    what.out = bucket->parameters;
    what.after = bucket->ready;
    return issue(ddp, &what, &own->gathered);
}

static remat_status gathered(void *context, const remat_bucket *bucket) {
    rm_ddp *ddp = context;
    TRY(must_be_open(ddp));
    return await(ddp, ddp->bucket[bucket->index].gathered);
}

/* ---- The rest of remat_ranks ------------------------------------------------------------------------------------- */

remat_status rm_ddp_run(rm_ddp *ddp, rm_collective what) {
    TRY(must_be_open(ddp));
    return rm_group_run(ddp->config.group, &what);
}

/* One-byte numbers are added as integers: 255 ranks would wrap around to -1, 256 to 0. */
static remat_status agree_on_used(rm_ddp *ddp, uint8_t *used, int64_t n) {
    int32_t *sum = rm_calloc((size_t)n, sizeof *sum);
    REQUIRE(sum, MEMORY, "out of memory to compare which of %lld parameters are used", (long long)n);
    for (int64_t i = 0; i < n; i++) sum[i] = used[i];
    rm_collective what = {
        .kind = RM_ALL_REDUCE, .wire = RM_WIRE_I32, .tag = RM_TAG_USED, .count = n, .in = sum, .out = sum};
    remat_status status = rm_ddp_run(ddp, what);
    for (int64_t i = 0; !status && i < n; i++) used[i] = sum[i] > 0;
    rm_free(sum);
    return status;
}

static remat_status agree(void *context, int32_t *order, uint8_t *used, int64_t n_parameters) {
    rm_ddp *ddp = context;
    rm_collective what = {
        .kind = RM_BROADCAST, .wire = RM_WIRE_I32, .tag = RM_TAG_ORDER, .count = n_parameters, .out = order};
    TRY(rm_ddp_run(ddp, what));
    return agree_on_used(ddp, used, n_parameters);
}

static remat_status map(void *context, void *address, uint64_t bytes) {
    rm_ddp *ddp = context;
    TRY(must_be_open(ddp));
    if (!ddp->config.gpus) TRY(rm_group_map(ddp->config.group, address, bytes));
    ddp->mapped++;
    return REMAT_OK;
}
static void unmap(void *context, void *address) {
    rm_ddp *ddp = context;
    ddp->mapped--;
    if (ddp->closed) {
        if (!ddp->mapped) rm_free(ddp);
        return;
    }
    settle(ddp);
    if (!ddp->config.gpus) rm_group_unmap(ddp->config.group, address);
}

/* As a tree if bits may not depend on the number of ranks. */
static remat_status sum(void *context, double *values, int64_t count) {
    rm_ddp *ddp = context;
    rm_collective what = {.kind = RM_ALL_REDUCE, .wire = RM_WIRE_F64, .tag = RM_TAG_SUM, .count = count};
    what.in = what.out = values;
    what.reduction = ddp->config.deterministic_world ? RM_TREE : RM_SUM;
    const uint64_t start = rm_now_ns(); /* the loss comes after the last bucket and waits for all buckets */
    remat_status status = rm_ddp_run(ddp, what);
    ddp->cost.waited_ns += rm_now_ns() - start;
    return status;
}

static remat_status poll(void *context) {
    const rm_ddp *ddp = context;
    TRY(must_be_open(ddp));
    TRY(rm_group_poll(ddp->config.group));
    return ddp->config.gpus ? rm_group_poll(ddp->config.gpus) : REMAT_OK;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static remat_status compare_config(rm_ddp *ddp) {
    const rm_ddp_config *c = &ddp->config;
    static const char *const compress[] = {"none", "fp16", "bf16"};
    char text[400];
    snprintf(text, sizeof text,
             "first bucket: %llu bytes\nother buckets: %llu bytes\ngradient compression: %s\ndeterministic world: %s\n"
             "sharded optimizer: %s\nfused update: %s\n",
             (unsigned long long)c->first_bucket_bytes, (unsigned long long)c->bucket_bytes,
             (unsigned)c->compress < 3 ? compress[c->compress] : "?", c->deterministic_world ? "yes" : "no",
             c->shard_optimizer ? "yes" : "no", c->fused_update ? "yes" : "no");
    return rm_ddp_compare(ddp, "gradient reduction settings", text);
}

/* Runs after the comparison, so that all ranks fail alike. */
static remat_status check_config(const rm_ddp *ddp) {
    const rm_ddp_config *c = &ddp->config;
    const int32_t size = ddp->ranks.size;
    REQUIRE((unsigned)c->compress <= RM_COMPRESS_BF16, INVALID, "%d is not a gradient compression", (int)c->compress);
    REQUIRE(!c->gpus || (!c->compress && !c->deterministic_world), MISSING,
            "{grad_compress} and {deterministic_world} need gradients in host memory, but with {device}=cuda they are "
            "on GPUs; remove them, or use {device}=cpu");
    REQUIRE(!c->deterministic_world || !c->compress, INVALID,
            "with compressed gradients, bits depend on the number of ranks; use {grad_compress}=none with "
            "{deterministic_world}");
    REQUIRE(!c->deterministic_world || !(size & (size - 1)), INVALID,
            "{deterministic_world} adds up ranks in pairs, so their number must be a power of two, not %d", size);
    return REMAT_OK;
}

/* For a mean over all rows, a rank's weight is its number of rows; it is exactly 1 if all ranks have equally many. */
static remat_status weigh(rm_ddp *ddp) {
    const int32_t size = ddp->ranks.size;
    double *rows = rm_calloc((size_t)size, sizeof *rows), mine = (double)ddp->config.rows, total = 0;
    REQUIRE(rows, MEMORY, "out of memory to compare the batches of %d ranks", size);
    rm_collective what = {.kind = RM_ALL_GATHER, .wire = RM_WIRE_F64, .tag = RM_TAG_CONFIG, .count = 1};
    what.in = &mine;
    what.out = rows;
    remat_status status = rm_ddp_run(ddp, what);
    for (int32_t r = 0; r < size && !status; r++) {
        if (!(rows[r] >= 1))
            status = rm_fail(REMAT_INVALID, "rank %d has a batch of %.0f rows; the minimum is 1", r, rows[r]);
        total += rows[r];
    }
    if (!status) ddp->ranks.weight = mine * size / total;
    rm_free(rows);
    return status;
}

static void fill_in(rm_ddp *ddp) {
    rm_ddp_config *c = &ddp->config;
    if (!c->first_bucket_bytes) c->first_bucket_bytes = UINT64_C(1) << 20;
    if (!c->bucket_bytes) c->bucket_bytes = UINT64_C(25) << 20;
    ddp->ranks = (remat_ranks){.struct_bytes = sizeof ddp->ranks,
                               .context = ddp,
                               .rank = rm_group_rank(c->group),
                               .size = rm_group_size(c->group),
                               .first_bucket_bytes = c->first_bucket_bytes,
                               .bucket_bytes = c->bucket_bytes,
                               .shard_optimizer = c->shard_optimizer,
                               .fused_update = c->fused_update,
                               .device = c->gpus ? "cuda" : NULL,
                               .heeds_events = c->gpus != NULL,
                               .device_bytes = c->gpus ? rm_group_device_bytes(c->gpus) : 0,
                               .wire_bytes = c->compress ? (int)sizeof(uint16_t) : 0,
                               .prepare = c->compress ? prepare : NULL,
                               .agree = agree,
                               .map = map,
                               .unmap = unmap,
                               .reduce = reduce,
                               .wait = wait,
                               .gather = gather,
                               .gathered = gathered,
                               .sum = sum,
                               .poll = poll};
    ddp->share = 1.0f / (float)ddp->ranks.size;
}

remat_status rm_ddp_open(const rm_ddp_config *config, rm_ddp **out) {
    REQUIRE(config->group, INVALID, "data-parallel training needs a group of ranks");
    rm_ddp *ddp = rm_calloc(1, sizeof *ddp);
    REQUIRE(ddp, MEMORY, "out of memory for data-parallel training");
    ddp->config = *config;
    fill_in(ddp);
    enter(ddp);
    remat_status status = rm_ddp_compare_versions(ddp);
    if (!status) status = compare_config(ddp);
    if (!status) status = check_config(ddp);
    if (!status) status = weigh(ddp);
    if (status)
        rm_ddp_close(ddp);
    else
        __atomic_store_n(out, ddp, __ATOMIC_RELEASE); /* another thread may be asking for tag names */
    return status;
}

void rm_ddp_close(rm_ddp *ddp) {
    if (!ddp) return;
    settle(ddp);
    leave(ddp);
    for (int32_t i = 0; i < ddp->buckets; i++) {
        rm_free(ddp->bucket[i].first);
        rm_group_free(ddp->config.group, ddp->bucket[i].half);
    }
    rm_free(ddp->bucket);
    ddp->closed = true;
    if (!ddp->mapped) rm_free(ddp); /* otherwise the last session frees it when it unmaps its pages */
}

void rm_ddp_set_buckets(rm_ddp *ddp, uint64_t first_bytes, uint64_t bytes) {
    ddp->ranks.first_bucket_bytes = ddp->config.first_bucket_bytes = first_bytes;
    ddp->ranks.bucket_bytes = ddp->config.bucket_bytes = bytes;
}

const remat_ranks *rm_ddp_ranks(const rm_ddp *ddp) { return &ddp->ranks; }

rm_ddp_cost rm_ddp_last_cost(const rm_ddp *ddp) {
    rm_ddp_cost cost = ddp->cost;
    cost.busy_ns = rm_group_busy_ns(carrier(ddp)) - ddp->busy_before_ns;
    return cost;
}
