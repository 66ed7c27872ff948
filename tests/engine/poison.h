/* poison.h: fills every buffer of a session with NaNs at the start of its life, so that an unwritten byte cannot pass
 * for a number. It replaces `claim` in the device's table, which the executor calls for each piece, saved block and
 * scratch buffer just before the run that writes it. Main entry: poison. Only for the device "cpu", whose memory the
 * host can write. */
#ifndef RM_TEST_POISON_H
#define RM_TEST_POISON_H

#include <string.h>

#include "engine/session/session.h"

static inline void *poisoned_claim(rm_block *block, uint64_t offset, uint64_t bytes) {
    return memset(rm_device_cpu.claim(block, offset, bytes), 0xFF, bytes);
}

/* Takes effect from now on. Resident buffers have been claimed already, and keep their contents. */
static inline void poison(remat_session *s) {
    static _Thread_local rm_device_api poisoned; /* shared by all sessions of a thread; a thread may be a rank */
    poisoned = rm_device_cpu;
    poisoned.claim = poisoned_claim;
    s->runner.api = &poisoned;
}

#endif
