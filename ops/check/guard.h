/* guard.h: guarded memory that detects stray reads and writes. Every buffer has exactly the requested length, starts on
 * a 64-byte boundary and has redzones on both sides. Unwritten memory and redzones hold NaN (as floats and as doubles),
 * so a stray read shows in the results; rm_guard_complaint reports stray writes. `variant` moves the buffers and
 * changes the poison, to find results that depend on either. */
#ifndef RM_GUARD_H
#define RM_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rm_guard_buffer rm_guard_buffer;
typedef struct {
    rm_guard_buffer *buffer;
    int64_t count, capacity;
    int variant;
    bool starved; /* an allocation failed: nothing may be run on this set */
} rm_guard_set;

/* Allocates a buffer; 0 bytes is allowed (redzones only). NULL if memory is short (`starved`). `what`: a static string
 * that names the buffer in complaints. */
void *rm_guard_alloc(rm_guard_set *set, size_t bytes, const char *what);
/* From now on the buffer that starts at `data` must keep its bytes, until it is sealed again or unsealed. */
void rm_guard_seal(rm_guard_set *set, const void *data);
void rm_guard_unseal(rm_guard_set *set, const void *data);
/* The name of the first buffer that was overrun (*overrun: true) or changed while sealed (false); NULL if there is
 * none. */
const char *rm_guard_complaint(const rm_guard_set *set, bool *overrun);
void rm_guard_free(rm_guard_set *set);

#endif
