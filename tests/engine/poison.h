/* poison.h: a session whose every buffer is full of NaNs when it begins to live, so that a byte which nobody wrote cannot look
 * like a number. It goes through the device's table, `claim`: the executor calls it for each piece, saved block and scratch
 * just before the run that makes it. Main entry: poison. For the device "cpu", whose memory the host writes. */
#ifndef RM_TEST_POISON_H
#define RM_TEST_POISON_H

#include <string.h>

#include "engine/session/session.h"

static inline void *poisoned_claim(rm_block *block, uint64_t offset, uint64_t bytes) {
    return memset(rm_device_cpu.claim(block, offset, bytes), 0xFF, bytes);
}

/* From now on. What is resident has been claimed, and stays as it is. */
static inline void poison(remat_session *s) {
    static _Thread_local rm_device_api poisoned; /* the same for all sessions of a thread, which a rank may be */
    poisoned = rm_device_cpu;
    poisoned.claim = poisoned_claim;
    s->runner.api = &poisoned;
}

#endif
