/* slices.c: a sum in a fixed order, part by part. A part is a row of `each` elements for every rank:
 *
 *     from   | for rank 0 | for rank 1 | ... |     exchange     to   | from rank 0 | from rank 1 | ... |   added up: sum
 *
 * An all_reduce then gathers the sums back to the places of the rows. */
#include "dist/group/slices.h"

#include <string.h>

#include "dist/group/reduce.h"
#include "memory/bytes.h"
#include "memory/host.h"

#define ROWS_BYTES (2u << 20) /* approximate size of all rows of a part */
/* Largest row. All ranks send at once, so on a slow link a rank's ready message waits in the queue after its data: with
 * rows of 1 MiB about a third of the link's time was lost (docs/notes/ranks.md). */
#define ROW_BYTES (256u << 10)
#define LINE 64 /* elements; rows are whole cache lines */

typedef struct {
    char *from, *to, *sum;
    const void **row; /* rows of `to` */
    int64_t each;
    uint64_t width;
} part;

bool rm_is_sliced(const rm_collective *what) {
    return what->reduction == RM_TREE || what->wire == RM_WIRE_F16 || what->wire == RM_WIRE_BF16;
}

/* `count`: length of the longest row needed. */
static remat_status lay_out(const rm_slices *s, const rm_collective *what, int64_t count, part *p) {
    p->width = rm_wire_bytes(what->wire);
    int64_t most = rm_fewer((int64_t)ROWS_BYTES / s->size, ROW_BYTES) / (int64_t)p->width;
    p->each = (rm_fewer(most > LINE ? most : LINE, count) + LINE - 1) / LINE * LINE;
    uint64_t row = (uint64_t)p->each * p->width, rows = row * (uint64_t)s->size;
    TRY(rm_scratch_take(s->scratch, 2 * rows + row + (uint64_t)s->size * sizeof *p->row));
    p->from = s->scratch->block;
    p->to = p->from + rows;
    p->sum = p->to + rows;
    p->row = (const void **)(void *)(p->sum + row);
    for (int32_t r = 0; r < s->size; r++) p->row[r] = p->to + row * (uint64_t)r;
    return REMAT_OK;
}

/* The rows are complete; writes this rank's sum to `sum`. */
static remat_status exchange_and_add(const rm_slices *s, const rm_collective *what, const part *p, int64_t n) {
    TRY(s->exchange(s->context, p->from, p->to, (uint64_t)p->each * p->width));
    void *sum = p->sum;
    if (n > 0) rm_reduce(what->wire, what->reduction, p->row, s->size, &sum, 1, n);
    return REMAT_OK;
}

/* Rows of the last part may be short or empty. The memory after their end keeps old contents, which are not read. */
static remat_status all_reduce(const rm_slices *s, const rm_collective *what) {
    part p;
    TRY(lay_out(s, what, (what->count + s->size - 1) / s->size, &p));
    const int64_t rows = p.each * s->size;
    memset(p.from, 0, (uint64_t)rows * p.width);
    for (int64_t at = 0; at < what->count; at += rows) {
        const int64_t n = rm_fewer(rows, what->count - at), own = rm_fewer(p.each, n - p.each * s->rank);
        const uint64_t offset = (uint64_t)at * p.width, bytes = (uint64_t)n * p.width;
        memcpy(p.from, (const char *)what->in + offset, bytes);
        TRY(exchange_and_add(s, what, &p, own));
        TRY(s->gather(s->context, p.sum, p.to, (uint64_t)p.each * p.width));
        memcpy((char *)what->out + offset, p.to, bytes);
    }
    return REMAT_OK;
}

/* `out` may be this rank's own row of `in`; the row is copied to `from` before it is overwritten. */
static remat_status reduce_scatter(const rm_slices *s, const rm_collective *what) {
    part p;
    TRY(lay_out(s, what, what->count, &p));
    memset(p.from, 0, (uint64_t)p.each * (uint64_t)s->size * p.width);
    for (int64_t at = 0; at < what->count; at += p.each) {
        const int64_t n = rm_fewer(p.each, what->count - at);
        const uint64_t bytes = (uint64_t)n * p.width;
        for (int64_t r = 0; r < s->size; r++)
            memcpy(p.from + (uint64_t)(r * p.each) * p.width,
                   (const char *)what->in + (uint64_t)(r * what->count + at) * p.width, bytes);
        TRY(exchange_and_add(s, what, &p, n));
        memcpy((char *)what->out + (uint64_t)at * p.width, p.sum, bytes);
    }
    return REMAT_OK;
}

remat_status rm_slices_reduce(const rm_slices *slices, const rm_collective *what) {
    return what->kind == RM_ALL_REDUCE ? all_reduce(slices, what) : reduce_scatter(slices, what);
}
