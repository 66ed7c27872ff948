/* holes.c: holes in a treap (Aragon and Seidel, "Randomized search trees", 1989): a search tree by offset that is also
 * a heap by random priority, which keeps it shallow. Each node stores the largest hole of its subtree, so that a search
 * never enters a subtree without enough room. The priorities come from a fixed seed: the same calls give the same
 * answers. */
#include "memory/holes.h"

#include "memory/host.h"

#define NONE 0

static uint64_t largest(const rm_holes *h, int32_t i) { return i ? h->node[i].largest : 0; }

static void update(rm_holes *h, int32_t i) {
    rm_hole *n = &h->node[i];
    uint64_t most = n->bytes, left = largest(h, n->left), right = largest(h, n->right);
    if (left > most) most = left;
    if (right > most) most = right;
    n->largest = most;
}

/* ---- Nodes -------------------------------------------------------------------------------------- */

static bool reserve(rm_holes *h) {
    if (h->unused) return true;
    return h->count < INT32_MAX - 1 && rm_grow(&h->node, &h->capacity, (int64_t)h->count + 2, sizeof *h->node);
}

/* Does not fail: reserve() made room. */
static int32_t new_node(rm_holes *h, uint64_t offset, uint64_t bytes) {
    int32_t i = h->unused;
    if (i)
        h->unused = h->node[i].left;
    else
        i = ++h->count;
    h->seed = h->seed * 1664525u + 1013904223u;
    uint32_t mixed = (h->seed ^ h->seed >> 16) * 0x85EBCA6Bu; /* the low bits of this sequence are not random enough */
    h->node[i] = (rm_hole){.offset = offset, .bytes = bytes, .largest = bytes, .priority = mixed ^ mixed >> 13};
    return i;
}

static void drop_node(rm_holes *h, int32_t i) {
    h->node[i].left = h->unused;
    h->unused = i;
}

/* ---- The tree ----------------------------------------------------------------------------------- */

/* Moves nodes below `offset` to *low and the others to *high. */
static void split(rm_holes *h, int32_t i, uint64_t offset, int32_t *low, int32_t *high) {
    if (!i) {
        *low = *high = NONE;
        return;
    }
    int32_t part; /* not &node->left directly: the recursion reads it */
    if (h->node[i].offset < offset) {
        split(h, h->node[i].right, offset, &part, high);
        h->node[i].right = part;
        *low = i;
    } else {
        split(h, h->node[i].left, offset, low, &part);
        h->node[i].left = part;
        *high = i;
    }
    update(h, i);
}

/* Requires every hole in `low` to lie below every hole in `high`. */
static int32_t join(rm_holes *h, int32_t low, int32_t high) {
    if (!low || !high) return low ? low : high;
    if (h->node[low].priority > h->node[high].priority) {
        h->node[low].right = join(h, h->node[low].right, high);
        update(h, low);
        return low;
    }
    h->node[high].left = join(h, low, h->node[high].left);
    update(h, high);
    return high;
}

/* Updates the nodes from `i` down to the one at `offset`, whose size has changed. */
static void update_down_to(rm_holes *h, int32_t i, uint64_t offset) {
    rm_hole *n = &h->node[i];
    if (n->offset != offset) update_down_to(h, offset < n->offset ? n->left : n->right, offset);
    update(h, i);
}

static int32_t remove_below(rm_holes *h, int32_t i, uint64_t offset) {
    rm_hole *n = &h->node[i];
    if (n->offset == offset) {
        int32_t rest = join(h, n->left, n->right);
        drop_node(h, i);
        return rest;
    }
    if (offset < n->offset)
        n->left = remove_below(h, n->left, offset);
    else
        n->right = remove_below(h, n->right, offset);
    update(h, i);
    return i;
}

static void insert(rm_holes *h, uint64_t offset, uint64_t bytes) {
    int32_t low, high, made = new_node(h, offset, bytes);
    split(h, h->root, offset, &low, &high);
    h->root = join(h, join(h, low, made), high);
}

/* The holes next to `offset`, which lies in no hole. */
static void neighbours(const rm_holes *h, uint64_t offset, int32_t *before, int32_t *after) {
    *before = *after = NONE;
    for (int32_t i = h->root; i;) {
        bool lower = h->node[i].offset < offset;
        *(lower ? before : after) = i;
        i = lower ? h->node[i].right : h->node[i].left;
    }
}

/* ---- The block ---------------------------------------------------------------------------------- */

bool rm_holes_begin(rm_holes *h, uint64_t size) {
    *h = (rm_holes){.node = h->node, .capacity = h->capacity, .seed = 1, .size = size};
    if (!reserve(h)) return false;
    if (size > 0) insert(h, 0, size);
    return true;
}

void rm_holes_free(rm_holes *h) {
    rm_free(h->node);
    *h = (rm_holes){0};
}

/* Shrinks hole `i` after bytes were taken from its low or high end. */
static void shrink(rm_holes *h, int32_t i, uint64_t offset, uint64_t bytes) {
    uint64_t key = h->node[i].offset;
    if (bytes == 0) {
        h->root = remove_below(h, h->root, key);
        return;
    }
    h->node[i].offset = offset; /* still between the same neighbours */
    h->node[i].bytes = bytes;
    update_down_to(h, h->root, offset);
}

bool rm_holes_take_low(rm_holes *h, uint64_t bytes, uint64_t *offset) {
    int32_t i = h->root;
    if (largest(h, i) < bytes || !i) return false;
    for (;;) {
        const rm_hole *n = &h->node[i];
        if (n->left && largest(h, n->left) >= bytes)
            i = n->left;
        else if (n->bytes >= bytes)
            break;
        else
            i = n->right;
    }
    *offset = h->node[i].offset;
    shrink(h, i, *offset + bytes, h->node[i].bytes - bytes);
    return true;
}

bool rm_holes_take_high(rm_holes *h, uint64_t bytes, uint64_t *offset) {
    int32_t i = h->root;
    if (largest(h, i) < bytes || !i) return false;
    for (;;) {
        const rm_hole *n = &h->node[i];
        if (n->right && largest(h, n->right) >= bytes)
            i = n->right;
        else if (n->bytes >= bytes)
            break;
        else
            i = n->left;
    }
    uint64_t start = h->node[i].offset, left = h->node[i].bytes - bytes;
    *offset = start + left;
    shrink(h, i, start, left);
    return true;
}

bool rm_holes_give(rm_holes *h, uint64_t offset, uint64_t bytes) {
    int32_t before, after;
    neighbours(h, offset, &before, &after);
    bool joins_before = before && h->node[before].offset + h->node[before].bytes == offset;
    bool joins_after = after && offset + bytes == h->node[after].offset;
    if (!joins_before && !joins_after) {
        if (!reserve(h)) return false;
        insert(h, offset, bytes);
        return true;
    }
    if (joins_after) {
        bytes += h->node[after].bytes;
        if (joins_before) h->root = remove_below(h, h->root, h->node[after].offset);
    }
    if (joins_before)
        shrink(h, before, h->node[before].offset, h->node[before].bytes + bytes);
    else
        shrink(h, after, offset, bytes);
    return true;
}
