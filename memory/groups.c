/* groups.c: the levels of groups.h, and the ways to keep a group. */
#include "memory/groups.h"

#include <stdlib.h>
#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"

#define MOST_MIXES 17

static remat_status no_memory(int64_t count) {
    return rm_fail(REMAT_MEMORY, "out of host memory to plan for %lld stages", (long long)count);
}

void rm_level_free(rm_level *level) {
    for (int64_t i = 0; i < level->n_groups; i++) {
        rm_free(level->group[i].kept);
        rm_free(level->group[i].mix);
        rm_free(level->group[i].alone);
        rm_free(level->group[i].alone_drops);
        rm_free(level->group[i].first);
        rm_free(level->group[i].how);
    }
    rm_free(level->group);
    rm_free(level->member);
    *level = (rm_level){0};
}

static remat_status begin_level(int64_t count, rm_level *level) {
    *level = (rm_level){.count = count};
    level->member = rm_malloc((size_t)count * sizeof *level->member);
    level->group = rm_calloc((size_t)count, sizeof *level->group);
    return level->member && level->group ? REMAT_OK : no_memory(count);
}

/* ---- Finding equal groups ----------------------------------------------------------------------- */

/* Open addressing: a hash table of the numbers of the items seen so far, by their bytes. */
typedef struct {
    int32_t *slot; /* -1: empty */
    uint64_t mask;
} index_of;

static remat_status begin_index(int64_t count, index_of *index) {
    uint64_t size = 16;
    while (size < (uint64_t)count * 2) size *= 2;
    index->mask = size - 1;
    index->slot = rm_malloc(size * sizeof *index->slot);
    if (!index->slot) return no_memory(count);
    memset(index->slot, -1, size * sizeof *index->slot);
    return REMAT_OK;
}

static uint64_t hash(const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i + 4 <= n; i += 4) {
        uint32_t word;
        memcpy(&word, at + i, sizeof word);
        h = (h ^ word) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

/* The slot of the item with these bytes, or the empty slot where it belongs. key(context, number) returns the bytes of
 * an item in the table. */
static int32_t *find_slot(index_of *index, const void *bytes, size_t n, const void *(*key)(const void *, int32_t),
                          const void *context) {
    uint64_t i = hash(bytes, n) & index->mask;
    for (; index->slot[i] >= 0; i = (i + 1) & index->mask)
        if (!memcmp(key(context, index->slot[i]), bytes, n)) break;
    return &index->slot[i];
}

/* ---- Stages ------------------------------------------------------------------------------------- */

static remat_status begin_stage(const rm_footprint *footprint, int64_t s, rm_group *group) {
    const rm_foot *foot = &footprint->foot[s];
    *group = (rm_group){.begin = s, .length = 1, .n_kept = (int)foot->n_options};
    group->drop_ns = foot->drop_ns;
    group->drops = (rm_drops){1, foot->table_bytes};
    group->first_drop_bytes = foot->drop_bytes;
    group->next_dstate_bytes = foot->next_dstate_bytes;
    size_t ways = (size_t)group->n_kept;
    group->kept = rm_malloc(ways * sizeof *group->kept);
    group->alone = rm_malloc(ways * sizeof *group->alone);
    group->alone_drops = rm_calloc(ways, sizeof *group->alone_drops);
    rm_point_cost nothing = {0};
    rm_point merged[RM_MAX_OPTIONS], one;
    if (!group->kept || !group->alone || !group->alone_drops) return no_memory(footprint->problem->n_stages);
    memcpy(group->kept, foot->kept, ways * sizeof *group->kept);
    for (int k = 0; k < group->n_kept; k++) {
        rm_frontier_first(foot->kept[k], foot->next_dstate_bytes, &nothing, 1, 0, &one);
        one.right = (uint16_t)k;
        group->n_alone = rm_frontier_merge(group->alone, group->n_alone, &one, 1, merged);
        memcpy(group->alone, merged, (size_t)group->n_alone * sizeof one);
    }
    return REMAT_OK;
}

static const void *stage_key(const void *context, int32_t number) {
    const void *const *both = context; /* the footprint and the level */
    const rm_footprint *footprint = both[0];
    const rm_level *level = both[1];
    return &footprint->foot[level->group[number].begin];
}

remat_status rm_level_of_stages(const rm_footprint *footprint, rm_level *level) {
    int64_t count = footprint->problem->n_stages;
    const void *both[] = {footprint, level};
    index_of index = {0};
    TRY(begin_level(count, level));
    remat_status status = begin_index(count, &index);
    for (int64_t s = 0; s < count && !status; s++) {
        int32_t fresh = -1, *slot = &fresh;
        if (!footprint->skips) slot = find_slot(&index, &footprint->foot[s], sizeof(rm_foot), stage_key, both);
        if (*slot < 0) {
            *slot = (int32_t)level->n_groups++;
            status = begin_stage(footprint, s, &level->group[*slot]);
        }
        level->member[s] = *slot;
    }
    rm_free(index.slot);
    return status;
}

/* ---- Groups ------------------------------------------------------------------------------------- */

/* The sums over its children, and its position. */
static void begin_group(const rm_level *below, int64_t child_at, int32_t n, int64_t begin, rm_group *group) {
    *group = (rm_group){.begin = begin, .n = n, .child_at = child_at};
    for (int32_t i = 0; i < n; i++) {
        const rm_group *child = &below->group[rm_child(below, group, i)];
        group->length += child->length;
        group->drop_ns += child->drop_ns;
        group->drops.runs += child->drops.runs;
        group->drops.table_bytes += child->drops.table_bytes;
        if (i == 0) group->first_drop_bytes = child->first_drop_bytes;
        if (i > 0) group->rest_drop_bytes = rm_larger(group->rest_drop_bytes, child->first_drop_bytes);
        group->rest_drop_bytes = rm_larger(group->rest_drop_bytes, child->rest_drop_bytes);
        group->next_dstate_bytes = child->next_dstate_bytes;
    }
}

static const void *group_key(const void *context, int32_t number) {
    const void *const *both = context; /* the level below and the level */
    const rm_level *below = both[0], *level = both[1];
    return &below->member[level->group[number].child_at];
}

remat_status rm_level_of_groups(const rm_level *below, int64_t size, bool all_differ, rm_level *level) {
    int64_t count = (below->count + size - 1) / size, begin = 0;
    const void *both[] = {below, level};
    index_of index = {0};
    TRY(begin_level(count, level));
    remat_status status = begin_index(count, &index);
    for (int64_t i = 0; i < count && !status; i++) {
        int64_t at = i * size, n = below->count - at < size ? below->count - at : size;
        int32_t fresh = -1, *slot = &fresh;
        /* the last group may be shorter than the groups it would be compared with */
        if (!all_differ && n == size)
            slot = find_slot(&index, &below->member[at], (size_t)n * sizeof(int32_t), group_key, both);
        if (*slot < 0) {
            *slot = (int32_t)level->n_groups++;
            begin_group(below, at, (int32_t)n, begin, &level->group[*slot]);
        }
        level->member[i] = *slot;
        begin += level->group[*slot].length;
    }
    rm_free(index.slot);
    return status;
}

/* ---- Ways to keep a group ----------------------------------------------------------------------- */

/* One child switches to its next smaller way. */
typedef struct {
    double price; /* time per byte saved */
    int32_t child;
    uint8_t way;
} conversion;

/* The ways of a child on the lower convex hull of bytes and time, fastest first: order[0..]. Returns their number. */
static int hull(const rm_group *child, uint8_t *order) {
    int n = 0, at = 0;
    for (int k = 1; k < child->n_kept; k++) {
        const rm_kept *a = &child->kept[at], *b = &child->kept[k];
        if (b->time_ns < a->time_ns || (b->time_ns == a->time_ns && b->held_bytes < a->held_bytes)) at = k;
    }
    for (; at >= 0; n++) {
        order[n] = (uint8_t)at;
        const rm_kept *from = &child->kept[at];
        double best = 0;
        at = -1;
        for (int k = 0; k < child->n_kept; k++) {
            const rm_kept *to = &child->kept[k];
            if (to->held_bytes >= from->held_bytes) continue;
            double price = (double)(to->time_ns - from->time_ns) / (double)(from->held_bytes - to->held_bytes);
            bool further = at >= 0 && price == best && to->held_bytes < child->kept[at].held_bytes;
            if (at >= 0 && price >= best && !further) continue;
            best = price;
            at = k;
        }
    }
    return n;
}

static int by_price(const void *a, const void *b) {
    const conversion *x = a, *y = b;
    if (x->price != y->price) return x->price < y->price ? -1 : 1;
    if (x->child != y->child) return x->child - y->child;
    return x->way - y->way;
}

/* All conversions of a group, best first. start[]: the fastest way of each child. */
static int64_t list_conversions(const rm_level *below, const rm_group *group, conversion *list, uint8_t *start) {
    int64_t count = 0;
    for (int32_t i = 0; i < group->n; i++) {
        const rm_group *child = &below->group[rm_child(below, group, i)];
        uint8_t order[UINT8_MAX];
        int ways = hull(child, order);
        start[i] = order[0];
        for (int k = 1; k < ways; k++) {
            const rm_kept *from = &child->kept[order[k - 1]], *to = &child->kept[order[k]];
            double price = (double)(to->time_ns - from->time_ns) / (double)(from->held_bytes - to->held_bytes);
            list[count++] = (conversion){price, i, order[k]};
        }
    }
    qsort(list, (size_t)count, sizeof *list, by_price);
    return count;
}

static rm_kept kept_in_mix(const rm_level *below, const rm_group *group, const uint8_t *mix) {
    rm_kept all = {0};
    for (int32_t i = 0; i < group->n; i++)
        all = rm_kept_then(all, below->group[rm_child(below, group, i)].kept[mix[i]]);
    return all;
}

remat_status rm_group_mixes(const rm_level *below, rm_group *group) {
    int64_t most = 0, done = 0;
    for (int32_t i = 0; i < group->n; i++) most += below->group[rm_child(below, group, i)].n_kept;
    conversion *list = rm_malloc((size_t)most * sizeof *list);
    group->kept = rm_malloc(MOST_MIXES * sizeof *group->kept);
    group->mix = rm_malloc((size_t)(MOST_MIXES + 1) * (size_t)group->n);
    if (!list || !group->kept || !group->mix) {
        rm_free(list);
        return no_memory(group->n);
    }
    uint8_t *now = group->mix + (size_t)MOST_MIXES * (size_t)group->n; /* a scratch row */
    int64_t count = list_conversions(below, group, list, now);
    group->n_kept = count + 1 < MOST_MIXES ? (int)count + 1 : MOST_MIXES;
    for (int m = 0; m < group->n_kept; m++) {
        for (int64_t goal = m ? count * m / (group->n_kept - 1) : 0; done < goal; done++)
            now[list[done].child] = list[done].way;
        memcpy(group->mix + (size_t)m * (size_t)group->n, now, (size_t)group->n);
        group->kept[m] = kept_in_mix(below, group, now);
    }
    rm_free(list);
    return REMAT_OK;
}
