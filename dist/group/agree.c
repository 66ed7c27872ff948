/* agree.c: all ranks hold the same number if and only if the maximum equals the minimum; the minimum is the complement
 * of the maximum of the complements. */
#include "dist/group/agree.h"

#include <stdio.h>

#include "engine/hash.h"
#include "memory/host.h"

static const rm_fingerprint *at(void *context, int32_t rank) { return (const rm_fingerprint *)context + rank; }

remat_status rm_agree(const rm_group_config *config, const rm_exchange *exchange, const rm_fingerprint *mine) {
    uint64_t hash = rm_hash(mine, sizeof *mine, 0), number[2] = {hash, ~hash};
    TRY(exchange->maximum(exchange->context, mine, number));
    if (number[0] == ~number[1]) return REMAT_OK;
    rm_fingerprint *all = rm_calloc((size_t)config->size, sizeof *all);
    REQUIRE(all, MEMORY, "ranks disagree, and there is not enough memory to find the difference");
    remat_status status = exchange->gather(exchange->context, mine, all);
    if (!status) status = rm_fingerprints_compare(&(rm_fingerprints){.config = config, .at = at, .context = all});
    rm_free(all);
    return status ? status : rm_fail(REMAT_INTERNAL, "the fingerprints differ only in their hash");
}
