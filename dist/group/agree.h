/* agree.h: compares fingerprints over a transport that offers a maximum and a gather. One small exchange is enough; a
 * second one follows only if ranks disagree. */
#ifndef RM_AGREE_H
#define RM_AGREE_H

#include "dist/group/fingerprint.h"

/* `maximum` replaces both numbers by the maximum over all ranks. `gather` collects the fingerprints of all ranks in
 * order. */
typedef struct {
    remat_status (*maximum)(void *context, const rm_fingerprint *now, uint64_t number[2]);
    remat_status (*gather)(void *context, const rm_fingerprint *mine, rm_fingerprint *all);
    void *context;
} rm_exchange;

/* OK if all ranks pass the same `mine`; otherwise PEER on all of them, with the same message. */
remat_status rm_agree(const rm_group_config *config, const rm_exchange *exchange, const rm_fingerprint *mine);

#endif
