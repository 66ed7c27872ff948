/* agree.h: comparing fingerprints over a transport that can find a maximum and gather: one small exchange, and a second only
 * when there is something to say. */
#ifndef RM_AGREE_H
#define RM_AGREE_H

#include "dist/group/fingerprint.h"

/* `maximum` replaces both numbers by the largest of any rank's; `gather` gives all ranks' fingerprints in order. */
typedef struct {
    remat_status (*maximum)(void *context, const rm_fingerprint *now, uint64_t number[2]);
    remat_status (*gather)(void *context, const rm_fingerprint *mine, rm_fingerprint *all);
    void *context;
} rm_exchange;

/* OK when all ranks have said `mine`; else PEER on all of them, with the same sentence. */
remat_status rm_agree(const rm_group_config *config, const rm_exchange *exchange, const rm_fingerprint *mine);

#endif
