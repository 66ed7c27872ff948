/* scratch.c: see scratch.h. */
#include "dist/group/scratch.h"

#include "memory/host.h"

remat_status rm_scratch_take(rm_scratch *scratch, uint64_t bytes) {
    if (bytes <= scratch->bytes) return REMAT_OK;
    rm_scratch_free(scratch);
    scratch->block = rm_block_alloc(bytes, 64);
    REQUIRE(scratch->block, MEMORY, "out of memory for a copy of %llu bytes", (unsigned long long)bytes);
    scratch->bytes = bytes;
    return REMAT_OK;
}

void rm_scratch_free(rm_scratch *scratch) {
    rm_block_free(scratch->block, scratch->bytes);
    *scratch = (rm_scratch){0};
}
