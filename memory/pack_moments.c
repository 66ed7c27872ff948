/* pack_moments.c: see pack_moments.h. */
#include "memory/pack_moments.h"

#include <stdlib.h>
#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"

/* ---- Creation ----------------------------------------------------------------------------------- */

static void find_ends(rm_pack_moments *p) {
    for (int64_t i = 0; i < p->n; i++) {
        int64_t low = i + 1, high = p->n; /* the first item that begins after i's last step */
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (p->item[middle].first <= p->item[i].last)
                low = middle + 1;
            else
                high = middle;
        }
        p->end[i] = (int32_t)low;
        p->load[i] += p->item[i].bytes; /* differences; each prefix sum is a load */
        p->load[low] -= p->item[i].bytes;
    }
    for (int64_t i = 1; i < p->n; i++) p->load[i] += p->load[i - 1];
}

bool rm_pack_moments_create(rm_pack_moments *p, const rm_pack_item *item, int32_t n) {
    *p = (rm_pack_moments){.item = item, .n = n, .leaves = 1};
    while (p->leaves < n) p->leaves *= 2;
    size_t nodes = 2 * (size_t)p->leaves;
    p->end = rm_malloc((size_t)n * sizeof *p->end);
    p->load = rm_calloc((size_t)n + 1, sizeof *p->load);
    p->top = rm_calloc(nodes, sizeof *p->top);
    p->raised = rm_calloc(nodes, sizeof *p->raised);
    p->head = rm_calloc(nodes, sizeof *p->head);
    p->span = rm_malloc(((size_t)n + 1) * sizeof *p->span);
    bool ok = p->end && p->load && p->top && p->raised && p->head && p->span;
    if (ok)
        find_ends(p);
    else
        rm_pack_moments_free(p);
    return ok;
}

void rm_pack_moments_free(rm_pack_moments *p) {
    rm_free(p->end);
    rm_free(p->load);
    rm_free(p->top);
    rm_free(p->raised);
    rm_free(p->head);
    rm_free(p->next);
    rm_free(p->entry);
    rm_free(p->span);
    *p = (rm_pack_moments){0};
}

/* ---- The ground --------------------------------------------------------------------------------- */

/* top[node]: the highest known ground in its moments. raised[node]: all its moments are at least this high. Heights
 * only grow, so nothing has to be pushed down. */
uint64_t rm_pack_ground(const rm_pack_moments *p, int32_t i) {
    uint64_t most = 0;
    int64_t first = i + p->leaves, last = p->end[i] + p->leaves - 1;
    for (int64_t l = first, r = last + 1; l < r; l /= 2, r /= 2) {
        if (l & 1) most = rm_larger(most, p->top[l++]);
        if (r & 1) most = rm_larger(most, p->top[--r]);
    }
    for (int64_t l = first / 2, r = last / 2; l > 0; l /= 2, r /= 2)
        most = rm_larger(most, rm_larger(p->raised[l], p->raised[r]));
    return most;
}

static void raise_node(rm_pack_moments *p, int64_t node, uint64_t height) {
    p->top[node] = rm_larger(p->top[node], height);
    p->raised[node] = rm_larger(p->raised[node], height);
}

void rm_pack_raise_ground(rm_pack_moments *p, int32_t i, uint64_t height) {
    int64_t first = i + p->leaves, last = p->end[i] + p->leaves - 1;
    for (int64_t l = first, r = last + 1; l < r; l /= 2, r /= 2) {
        if (l & 1) raise_node(p, l++, height);
        if (r & 1) raise_node(p, --r, height);
    }
    for (int64_t l = first / 2, r = last / 2; l > 0; l /= 2, r /= 2) {
        p->top[l] = rm_larger(p->top[l], height);
        p->top[r] = rm_larger(p->top[r], height);
    }
}

/* ---- The other items ---------------------------------------------------------------------------- */

static bool link_item(rm_pack_moments *p, int32_t node, int32_t i) {
    int64_t next_capacity = p->link_capacity;
    if (!rm_grow(&p->next, &next_capacity, p->n_links + 2, sizeof *p->next) ||
        !rm_grow(&p->entry, &p->link_capacity, p->n_links + 2, sizeof *p->entry))
        return false;
    int32_t link = ++p->n_links;
    p->next[link] = p->head[node];
    p->entry[link] = i;
    p->head[node] = link;
    return true;
}

void rm_pack_clear_others(rm_pack_moments *p) {
    memset(p->head, 0, 2 * (size_t)p->leaves * sizeof *p->head);
    p->n_links = 0;
}

bool rm_pack_put_other(rm_pack_moments *p, int32_t i) {
    bool ok = true;
    for (int64_t l = i + p->leaves, r = p->end[i] + p->leaves; l < r && ok; l /= 2, r /= 2) {
        if (l & 1) ok = link_item(p, (int32_t)l++, i);
        if (r & 1) ok = ok && link_item(p, (int32_t)--r, i);
    }
    return ok;
}

static void add_span(rm_pack_moments *p, int32_t k, const uint64_t *offset) {
    p->span[p->n_spans++] = (rm_pack_span){offset[k], offset[k] + p->item[k].bytes};
}

/* Adds the placed items with index >= `from` that are alive at a moment. */
static void add_alive(rm_pack_moments *p, int32_t moment, int32_t from, const uint64_t *offset) {
    for (int32_t node = moment + p->leaves; node > 0; node /= 2)
        for (int32_t link = p->head[node]; link; link = p->next[link])
            if (p->entry[link] >= from) add_span(p, p->entry[link], offset);
}

/* Adds the items that live entirely inside the lifetime of i. */
static void add_inside(rm_pack_moments *p, int32_t i, const uint64_t *offset, const int32_t *early, int32_t n_early) {
    int32_t low = 0, high = n_early;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (early[middle] <= i)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < n_early && early[low] < p->end[i]; low++)
        if (p->end[early[low]] < p->end[i]) add_span(p, early[low], offset);
}

static int by_begin(const void *a, const void *b) {
    const rm_pack_span *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* An item that overlaps i in time and lives longer is alive at i's beginning or at its end. */
uint64_t rm_pack_lowest_room(rm_pack_moments *p, int32_t i, const uint64_t *offset, const int32_t *early,
                             int32_t n_early) {
    p->n_spans = 0;
    add_alive(p, i, 0, offset);
    add_alive(p, p->end[i] - 1, i + 1, offset);
    add_inside(p, i, offset, early, n_early);
    qsort(p->span, (size_t)p->n_spans, sizeof *p->span, by_begin);
    uint64_t at = rm_pack_ground(p, i);
    for (int32_t k = 0; k < p->n_spans && p->span[k].begin < at + p->item[i].bytes; k++)
        at = rm_larger(at, p->span[k].end);
    return at;
}
