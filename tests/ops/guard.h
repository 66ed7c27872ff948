/* guard.h: test memory that tells on its users. Every buffer is exactly as long as asked, on a 64-byte boundary, with
 * redzones on both sides; what is not yet written holds NaN (as floats and as doubles), and so do the redzones, so a
 * stray read shows in the numbers and a stray write in guard_complaint. `variant` moves buffers about and changes the
 * poison, for finding results that depend on either. */
#ifndef RM_TEST_GUARD_H
#define RM_TEST_GUARD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct guard_buffer guard_buffer;
typedef struct {
    guard_buffer *buffer;
    int count, capacity, variant;
} guard_set;

/* A buffer of so many bytes (0 is allowed: all redzone). `what` names it in complaints: a static string. */
void *guard_alloc(guard_set *set, size_t bytes, const char *what);
/* From now on the buffer that starts at `data` must keep its bytes (until sealed again, or unsealed). */
void guard_seal(guard_set *set, const void *data);
void guard_unseal(guard_set *set, const void *data);
/* The name of the first buffer that was overrun or changed while sealed, or NULL; *overrun says which. */
const char *guard_complaint(const guard_set *set, bool *overrun);
void guard_free(guard_set *set);

#endif
