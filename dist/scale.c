/* scale.c: a rank's contribution to a mean. */
#include "dist/scale.h"

#include <string.h>

#include "dist/reduce.h"
#include "memory/host.h"

remat_status rm_scratch_take(rm_scratch *scratch, uint64_t bytes) {
    if (bytes <= scratch->bytes) return REMAT_OK;
    rm_scratch_free(scratch);
    scratch->block = rm_block_alloc(bytes, 64);
    REQUIRE(scratch->block, MEMORY, "no memory for a copy of %llu bytes", (unsigned long long)bytes);
    scratch->bytes = bytes;
    return REMAT_OK;
}

void rm_scratch_free(rm_scratch *scratch) {
    rm_block_free(scratch->block, scratch->bytes);
    *scratch = (rm_scratch){0};
}

void rm_contribute(const rm_collective *what, int32_t size, void *to) {
    const uint64_t bytes = rm_collective_in_bytes(what, size);
    if (what->reduction == RM_MEAN)
        rm_scale(what->wire, 1.0f / (float)size, what->in, to, (int64_t)(bytes / rm_wire_bytes(what->wire)));
    else if (to != what->in && bytes)
        memcpy(to, what->in, bytes);
}
