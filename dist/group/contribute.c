/* contribute.c: see contribute.h. */
#include "dist/group/contribute.h"

#include <string.h>

#include "dist/group/reduce.h"

void rm_contribute(const rm_collective *what, int32_t size, void *to) {
    const uint64_t bytes = rm_collective_in_bytes(what, size);
    if (what->reduction == RM_MEAN)
        rm_scale(what->wire, 1.0f / (float)size, what->in, to, (int64_t)(bytes / rm_wire_bytes(what->wire)));
    else if (to != what->in && bytes)
        memcpy(to, what->in, bytes);
}
