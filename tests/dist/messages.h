/* messages.h: messages between two ranks, for the tests of all engines. The buffers are the engine's own: nccl's are on a
 * GPU. */
#ifndef RM_TEST_MESSAGES_H
#define RM_TEST_MESSAGES_H

#include "tests/dist/ranks.h"

enum { LONG_MESSAGE = 3 * 1024 * 1024 + 7 }; /* bytes: several times what an engine buffers */

static inline void fill_message(unsigned char *data, uint64_t bytes, uint64_t seed) {
    for (uint64_t i = 0; i < bytes; i++) data[i] = (unsigned char)next_random(&seed);
}

/* Each rank sends to the next, and receives from the one before. Rank 0 sends first, the others receive first. */
static inline void go_round(rm_group *group) {
    static const uint64_t sizes[] = {1, 0, 64, 4096, LONG_MESSAGE, 3};
    int rank = rm_group_rank(group), size = rm_group_size(group);
    unsigned char *mine = rm_group_alloc(group, LONG_MESSAGE), *theirs = rm_group_alloc(group, LONG_MESSAGE);
    unsigned char *wanted = malloc(LONG_MESSAGE);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    need(mine && theirs && wanted, "%s", remat_last_error());
    for (uint64_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        fill_message(mine, sizes[k], 100 * k + (uint64_t)rank);
        fill_message(wanted, sizes[k], 100 * k + (uint64_t)before);
        if (rank == 0) need_ok(rm_group_send(group, next, mine, sizes[k]));
        need_ok(rm_group_receive(group, before, theirs, sizes[k]));
        if (rank != 0) need_ok(rm_group_send(group, next, mine, sizes[k]));
        need(!memcmp(theirs, wanted, sizes[k]), "message %d", (int)k);
    }
    free(wanted);
    rm_group_free(group, mine);
    rm_group_free(group, theirs);
    need_ok(rm_group_run(group, &(rm_collective){.kind = RM_BARRIER}));
}

/* The last rank sends nothing; the first waits for it. */
static inline void wait_in_vain(rm_group *group, const char *sender, const char *receiver) {
    int last = rm_group_size(group) - 1;
    char *byte = rm_group_alloc(group, 1), words[64];
    need(byte, "%s", remat_last_error());
    snprintf(words, sizeof words, "did not send to rank %s", receiver);
    if (rm_group_rank(group) == 0) {
        need_peer(rm_group_receive(group, last, byte, 1), words);
        need(strstr(remat_last_error(), sender), "%s", remat_last_error());
    }
    remat_status status = REMAT_OK;
    for (int i = 0; i < 4000 && rm_group_rank(group) == last && !status; i++, nap_ms(50)) status = rm_group_poll(group);
    if (rm_group_rank(group) == last) need_peer(status, words);
    rm_group_free(group, byte);
}

#endif
