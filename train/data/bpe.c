/* bpe.c: see bpe.h. */
#include "train/data/bpe.h"

#include "memory/host.h"

/* ---- Which pairs may be merged ---------------------------------------------------------------------------------- */

static uint64_t hash(int32_t left, int32_t right) {
    uint64_t x = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15);
    return x ^ x >> 32;
}

/* The slot that holds the pair, or the free slot where it belongs. */
static rm_bpe_merge *slot_of(const rm_bpe *bpe, int32_t left, int32_t right) {
    uint64_t at = hash(left, right);
    for (;; at++) {
        rm_bpe_merge *m = &bpe->slot[at & (bpe->slots - 1)];
        if (m->merged < 0 || (m->left == left && m->right == right)) return m;
    }
}

remat_status rm_bpe_create(int64_t merges, rm_bpe *out) {
    *out = (rm_bpe){.slots = 2};
    while (out->slots < 2 * (uint64_t)merges) out->slots *= 2;
    out->slot = rm_malloc(out->slots * sizeof *out->slot);
    REQUIRE(out->slot, MEMORY, "no memory for %lld merges", (long long)merges);
    for (uint64_t i = 0; i < out->slots; i++) out->slot[i].merged = -1;
    for (int b = 0; b < 256; b++) out->of_byte[b] = -1;
    return REMAT_OK;
}

void rm_bpe_add(rm_bpe *bpe, rm_bpe_merge merge) { *slot_of(bpe, merge.left, merge.right) = merge; }

void rm_bpe_free(rm_bpe *bpe) { rm_free(bpe->slot); }

/* ---- A word ------------------------------------------------------------------------------------------------------- */

typedef struct rm_bpe_symbol {
    int32_t id;             /* -1: merged into the previous symbol */
    int64_t previous, next; /* -1: none */
} symbol;

/* A pair that could be merged when it was pushed. Either symbol may have been merged since. */
typedef struct rm_bpe_candidate {
    int64_t at; /* of the left symbol */
    int32_t rank, merged;
} candidate;

remat_status rm_tokens_add(rm_tokens *tokens, int32_t id) {
    bool room = rm_grow(&tokens->id, &tokens->capacity, tokens->count + 1, sizeof *tokens->id);
    REQUIRE(room, MEMORY, "no memory for %lld tokens", (long long)tokens->count + 1);
    tokens->id[tokens->count++] = id;
    return REMAT_OK;
}

void rm_bpe_room_free(rm_bpe_room *room) {
    rm_free(room->symbol);
    rm_free(room->heap);
}

static bool comes_before(candidate a, candidate b) { return a.rank < b.rank || (a.rank == b.rank && a.at < b.at); }

/* The heap cannot overflow: a word of n bytes has n-1 pairs, and each of at most n-1 merges adds two. */
static void push(rm_bpe_room *room, candidate c) {
    int64_t i = room->in_heap++;
    for (; i && comes_before(c, room->heap[(i - 1) / 2]); i = (i - 1) / 2) room->heap[i] = room->heap[(i - 1) / 2];
    room->heap[i] = c;
}

static candidate pop(rm_bpe_room *room) {
    candidate *heap = room->heap, first = heap[0], last = heap[--room->in_heap];
    int64_t i = 0, n = room->in_heap;
    for (int64_t child = 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && comes_before(heap[child + 1], heap[child])) child++;
        if (!comes_before(heap[child], last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}

/* Pushes the pair that starts at `at` if it can be merged. */
static void consider(const rm_bpe *bpe, rm_bpe_room *room, int64_t at) {
    const symbol *left = &room->symbol[at];
    if (left->next < 0) return;
    const rm_bpe_merge *m = slot_of(bpe, left->id, room->symbol[left->next].id);
    if (m->merged >= 0) push(room, (candidate){at, m->rank, m->merged});
}

static bool is_still_so(const rm_bpe *bpe, const rm_bpe_room *room, candidate c) {
    const symbol *left = &room->symbol[c.at];
    if (left->id < 0 || left->next < 0) return false;
    return slot_of(bpe, left->id, room->symbol[left->next].id)->merged == c.merged;
}

static void merge(const rm_bpe *bpe, rm_bpe_room *room, candidate c) {
    symbol *left = &room->symbol[c.at], *right = &room->symbol[left->next];
    left->id = c.merged;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0) room->symbol[left->next].previous = c.at;
    if (left->previous >= 0) consider(bpe, room, left->previous);
    consider(bpe, room, c.at);
}

static remat_status split(const rm_bpe *bpe, const uint8_t *word, int64_t n, rm_bpe_room *room) {
    bool there = rm_grow(&room->symbol, &room->symbols, n, sizeof *room->symbol) &&
                 rm_grow(&room->heap, &room->candidates, 3 * n, sizeof *room->heap);
    REQUIRE(there, MEMORY, "no memory for a word of %lld bytes", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        int32_t id = bpe->of_byte[word[i]];
        REQUIRE(id >= 0, INVALID,
                "the text has the byte 0x%02X, but the tokenizer's vocabulary has no token for it: train one with "
                "initial_alphabet=ByteLevel.alphabet()",
                word[i]);
        room->symbol[i] = (symbol){id, i - 1, i + 1 < n ? i + 1 : -1};
    }
    return REMAT_OK;
}

remat_status rm_bpe_encode(const rm_bpe *bpe, const uint8_t *word, size_t n, rm_bpe_room *room, rm_tokens *tokens) {
    TRY(split(bpe, word, (int64_t)n, room));
    room->in_heap = 0;
    for (int64_t i = 0; i < (int64_t)n; i++) consider(bpe, room, i);
    while (room->in_heap) {
        candidate c = pop(room);
        if (is_still_so(bpe, room, c)) merge(bpe, room, c);
    }
    for (int64_t i = 0; i >= 0; i = room->symbol[i].next) TRY(rm_tokens_add(tokens, room->symbol[i].id));
    return REMAT_OK;
}
