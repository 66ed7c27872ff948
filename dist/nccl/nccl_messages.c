/* nccl_messages.c: see nccl_messages.h. */
#include "dist/nccl/nccl_messages.h"

#include "memory/clock.h"

static remat_status make_event(const rm_nccl_library *lib, cudaEvent_t *out) {
    return rm_cuda_check(lib, lib->cudaEventCreateWithFlags(out, cudaEventDisableTiming), "making an event");
}

remat_status rm_nccl_messages_make(const rm_nccl *nccl, rm_nccl_messages *m) {
    for (int i = 0; i < RM_NCCL_MESSAGES; i++) {
        TRY(make_event(nccl->lib, &m->reached[i]));
        TRY(make_event(nccl->lib, &m->done[i]));
    }
    return REMAT_OK;
}

void rm_nccl_messages_free(const rm_nccl *nccl, rm_nccl_messages *m) {
    for (int i = 0; i < RM_NCCL_MESSAGES; i++) {
        if (m->reached[i]) (void)nccl->lib->cudaEventDestroy(m->reached[i]);
        if (m->done[i]) (void)nccl->lib->cudaEventDestroy(m->done[i]);
    }
    *m = (rm_nccl_messages){.given = 0};
}

static int slot_of(uint64_t number) { return (int)(number % RM_NCCL_MESSAGES); }

static remat_status record(const rm_nccl_library *lib, cudaEvent_t event, cudaStream_t stream) {
    return rm_cuda_check(lib, lib->cudaEventRecord(event, stream), "recording an event");
}

remat_status rm_nccl_messages_begin(const rm_nccl *nccl, rm_nccl_messages *m, rm_nccl_message *message,
                                    cudaStream_t stream) {
    message->number = m->given + 1;
    return record(nccl->lib, m->reached[slot_of(message->number)], stream);
}

remat_status rm_nccl_messages_end(const rm_nccl *nccl, rm_nccl_messages *m, const rm_nccl_message *message,
                                  cudaStream_t stream) {
    const int slot = slot_of(message->number);
    TRY(record(nccl->lib, m->done[slot], stream));
    m->item[slot] = *message;
    m->given = message->number;
    return REMAT_OK;
}

/* An event of a stream that has failed counts as reached: whoever waits for the stream reports the failure. */
static bool is_reached(const rm_nccl_library *lib, cudaEvent_t event) {
    if (lib->cudaEventQuery(event) != cudaErrorNotReady) return true;
    (void)lib->cudaGetLastError();
    return false;
}

static void forget_exchanged(const rm_nccl *nccl, rm_nccl_messages *m) {
    while (m->exchanged < m->given && is_reached(nccl->lib, m->done[slot_of(m->exchanged + 1)])) {
        m->exchanged++;
        m->since_ns = 0;
    }
}

bool rm_nccl_messages_full(const rm_nccl *nccl, rm_nccl_messages *m) {
    forget_exchanged(nccl, m);
    return m->given - m->exchanged == RM_NCCL_MESSAGES;
}

const rm_nccl_message *rm_nccl_messages_oldest(const rm_nccl_messages *m) {
    return m->exchanged < m->given ? &m->item[slot_of(m->exchanged + 1)] : NULL;
}

const rm_nccl_message *rm_nccl_messages_first(const rm_nccl *nccl, rm_nccl_messages *m, uint64_t *waited_ns) {
    forget_exchanged(nccl, m);
    const rm_nccl_message *first = rm_nccl_messages_oldest(m);
    *waited_ns = 0;
    if (!first || !is_reached(nccl->lib, m->reached[slot_of(first->number)])) return NULL;
    if (!m->since_ns) m->since_ns = rm_now_ns();
    *waited_ns = rm_now_ns() - m->since_ns;
    return first;
}
