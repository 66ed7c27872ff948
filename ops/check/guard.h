/* guard.h: memory that tells on its users. Every buffer is exactly as long as asked, on a 64-byte boundary, with
 * redzones on both sides; what is not yet written holds NaN (as floats and as doubles), and so do the redzones, so a
 * stray read shows in the numbers and a stray write in rm_guard_complaint. `variant` moves buffers about and changes the
 * poison, for finding results that depend on either. */
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
    bool starved; /* there was no memory for one of them: nothing may be run on this set */
} rm_guard_set;

/* A buffer of so many bytes (0 is allowed: all redzone); NULL: `starved`. `what` names it in complaints: a static string. */
void *rm_guard_alloc(rm_guard_set *set, size_t bytes, const char *what);
/* From now on the buffer that starts at `data` must keep its bytes (until sealed again, or unsealed). */
void rm_guard_seal(rm_guard_set *set, const void *data);
void rm_guard_unseal(rm_guard_set *set, const void *data);
/* The name of the first buffer that was overrun or changed while sealed, or NULL; *overrun says which. */
const char *rm_guard_complaint(const rm_guard_set *set, bool *overrun);
void rm_guard_free(rm_guard_set *set);

#endif
