/* pack_critical.h: places many items by an exact search over the few that matter. Used only by pack_smallest.c. */
#ifndef RM_PACK_CRITICAL_H
#define RM_PACK_CRITICAL_H

#include "memory/pack.h"

/* Places into `capacity` bytes. IMPOSSIBLE is a proof: some of the items alone do not fit. Otherwise as rm_pack_fit. */
rm_pack_outcome rm_pack_critical(const rm_pack_item *item, int64_t n, uint64_t capacity, rm_pack_limit *limit,
                                 uint64_t *offset);

#endif
