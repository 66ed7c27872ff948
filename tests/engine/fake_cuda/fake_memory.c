/* fake_memory.c: the fake's memory (fake.h). GPU memory is accessible only while a stream works. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

enum { MOST = 64, FILLED = 1 << 16 };

typedef struct {
    char *start;
    size_t bytes, mapped;
    bool on_gpu;
} allocation;

static allocation taken[MOST];
static int open_for; /* working threads: GPU memory is accessible while there are any */

static allocation *find(const void *start, uint64_t bytes, bool on_gpu) {
    for (int i = 0; i < MOST; i++) {
        allocation *a = &taken[i];
        bool in = (const char *)start >= a->start && (const char *)start + bytes <= a->start + a->bytes;
        if (a->start && a->on_gpu == on_gpu && in) return a;
    }
    return NULL;
}

bool fake_lies_in(const void *start, uint64_t bytes, bool on_gpu) {
    FAKE_INSIDE;
    return find(start, bytes, on_gpu);
}

void *fake_take(size_t bytes, bool on_gpu) {
    FAKE_INSIDE;
    allocation *a = NULL;
    for (int i = 0; i < MOST && !a; i++)
        if (!taken[i].start) a = &taken[i];
    size_t mapped = (bytes + 4095) / 4096 * 4096;
    if (!a || !bytes) return NULL;
    void *start = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NULL;
    memset(start, 0xA5, bytes < FILLED ? bytes : FILLED);
    if (on_gpu && !open_for) mprotect(start, mapped, PROT_NONE);
    *a = (allocation){start, bytes, mapped, on_gpu};
    return start;
}

void fake_give_back(void *start, bool on_gpu) {
    FAKE_INSIDE;
    allocation *a = find(start, 1, on_gpu);
    if (!a || a->start != start) {
        fake_violate("memory at %p is freed that was not allocated, or twice", start);
        return;
    }
    if (fake_in_flight(start, a->bytes)) fake_violate("memory at %p is freed while a stream may use it", start);
    munmap(start, a->mapped);
    a->start = NULL;
}

void fake_unlock(bool unlock) {
    FAKE_INSIDE;
    open_for += unlock ? 1 : -1;
    if (open_for != (unlock ? 1 : 0)) return;
    for (int i = 0; i < MOST; i++)
        if (taken[i].start && taken[i].on_gpu)
            mprotect(taken[i].start, taken[i].mapped, unlock ? PROT_READ | PROT_WRITE : PROT_NONE);
}

int64_t fake_memory_live(void) {
    FAKE_INSIDE;
    int64_t n = 0;
    for (int i = 0; i < MOST; i++) n += taken[i].start != NULL;
    return n;
}

void fake_memory_reset(void) {
    for (int i = 0; i < MOST; i++) {
        if (taken[i].start) munmap(taken[i].start, taken[i].mapped);
        taken[i].start = NULL;
    }
}
