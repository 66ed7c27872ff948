/* shim.cc: runs emulated kernels (shim.h). The threads of a block that wait for each other are fibers, resumed in turn.
 * Each runs until it waits or returns; when none can run, those that wait for the same thing continue. A block of a
 * cluster runs until none of its threads can run, then the next block. A block without a cluster is a cluster of
 * one. */
#include "tests/cuda/shim.h"

#include <stdio.h>
#include <stdlib.h>

#include "ops/cuda/cluster.cuh"
#include "tests/cuda/emulation.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

rm_index threadIdx, blockIdx, blockDim, gridDim;

enum { MAX_THREADS = 1024, WARP = 32, STACK_BYTES = 64 * 1024, WIDEST = 8, MAX_BOXES = 64, SEAL = 0x5A6, MOST_FETCHES = 64 };
enum { MAX_SHARED = 227 * 1024, MAX_EXPECTED = (1 << 20) - 1 }; /* bytes: of a block; of a phase */

/* Where a fiber continues. A test switches hundreds of thousands of times: on x86-64 with a few instructions, elsewhere
 * through the C library, with a system call and, under AddressSanitizer, a large memset. */
#ifdef __x86_64__
typedef void *place; /* its stack pointer; the callee-saved registers are on the stack */

extern "C" void rm_emulated_switch(place *from, place *to);
asm(".text\n"
    ".globl rm_emulated_switch\n"
    "rm_emulated_switch:\n"
    "    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq (%rsi), %rsp\n"
    "    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp\n"
    "    ret\n");

/* The first switch pops six registers and returns to `start`, which sees a stack as after a call. */
static void place_make(place *p, char *stack, size_t bytes, void (*start)(void)) {
    void **top = (void **)(((uintptr_t)stack + bytes) & ~(uintptr_t)15) - 8;
    memset(top, 0, 8 * sizeof *top);
    top[6] = (void *)start;
    *p = top;
}
static void place_switch(place *from, place *to) { rm_emulated_switch(from, to); }
#else
typedef ucontext_t place;

static void place_make(place *p, char *stack, size_t bytes, void (*start)(void)) {
    if (getcontext(p)) abort();
    p->uc_stack.ss_sp = stack, p->uc_stack.ss_size = bytes, p->uc_link = NULL;
    makecontext(p, start, 0);
}
static void place_switch(place *from, place *to) { swapcontext(from, to); }
#endif

typedef enum { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, WAITS_FOR_CLUSTER, WAITS_FOR_MAIL, RETURNED } state;

typedef struct {
    place at; /* where it continues */
    struct block *block;
    state is;
    const char *file; /* where it waits */
    int line;
    const rm_mailbox *box; /* for what */
    unsigned exchanges;
    struct {
        float *to;
        const void *from;
        unsigned batch;
    } fetch[MOST_FETCHES]; /* pending, the oldest first */
    int n_fetches;
    unsigned batches; /* finished batches */
    char *stack;
    void *fake_stack; /* for AddressSanitizer */
} fiber;

typedef struct block {
    unsigned index, running, returned; /* blockIdx.x; threads */
    char *memory;
    rm_mailbox *box[MAX_BOXES]; /* open mailboxes */
    int boxes;
    fiber thread[MAX_THREADS];
    unsigned char slot[2][MAX_THREADS][WIDEST]; /* exchanged between lanes; two, used in turn, so that all can read one */
} block;

/* A sent value that has not arrived, with the receiving block's slot and mailbox. */
typedef struct {
    block *to;
    float *slot, value;
    rm_mailbox *box;
    unsigned from, thread; /* the sending block and thread */
} mail;

static struct {
    const char *kernel;
    rm_emulated_grid grid;
    void (*body)(void *);
    void *argument;
    rm_emulated_order order;
    uint32_t drawn; /* reset by rm_emulate_in */
    bool late;      /* sent values wait until no thread can run */
    int64_t launches;
    place scheduler;
    void *fake_stack;
    const void *scheduler_stack;
    size_t scheduler_bytes;
    fiber *current;
    unsigned blocks; /* blocks that run together */
    block cluster[RM_CLUSTER_MOST];
    mail *sent;
    int64_t n_sent, room;
} emulated;

void rm_emulate_in(rm_emulated_order order) { emulated.order = order, emulated.drawn = 1, emulated.late = false; }
int64_t rm_emulated_launches(void) { return emulated.launches; }

/* Which of n runs as the k-th. */
static int64_t in_turn(int64_t k, int64_t n) {
    if (emulated.order == RM_REVERSED) return n - 1 - k;
    if (emulated.order == RM_EVEN_LAST) return k < n / 2 ? 2 * k + 1 : 2 * (k - n / 2);
    return k;
}

/* A random number below n. */
static unsigned draw(unsigned n) {
    emulated.drawn = emulated.drawn * 1664525u + 1013904223u;
    return (unsigned)((uint64_t)emulated.drawn * n >> 32);
}

[[noreturn]] static void die(unsigned thread, const char *what) {
    fprintf(stderr, "emulated kernel %s, block %u of %u, thread %u of %u: %s\n", emulated.kernel, blockIdx.x, gridDim.x,
            thread, blockDim.x, what);
    abort();
}

/* ---- Fibers ----------------------------------------------------------------------------------------------------- */

static void leave(void **fake_stack, const void *stack, size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#else
    (void)fake_stack, (void)stack, (void)bytes;
#endif
}

static void arrive(void *fake_stack, const void **stack, size_t *bytes) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake_stack, stack, bytes);
#else
    (void)fake_stack, (void)stack, (void)bytes;
#endif
}

/* Clears AddressSanitizer's marks on its stack, which is used again. */
__attribute__((no_sanitize("address"))) static void fiber_main(void) {
    arrive(NULL, &emulated.scheduler_stack, &emulated.scheduler_bytes);
    emulated.body(emulated.argument);
    fiber *f = emulated.current;
    f->is = RETURNED;
    f->block->running--, f->block->returned++;
    leave(NULL, emulated.scheduler_stack, emulated.scheduler_bytes); /* NULL: the fiber does not return */
    place_switch(&f->at, &emulated.scheduler);
}

static void wait_for(state what, const char *file, int line) {
    if (!emulated.grid.together)
        die(threadIdx.x, "waits for other threads, but was launched with RM_LAUNCH; use RM_LAUNCH_TOGETHER");
    fiber *f = emulated.current;
    f->is = what, f->file = file, f->line = line, f->block->running--;
    leave(&f->fake_stack, emulated.scheduler_stack, emulated.scheduler_bytes);
    place_switch(&f->at, &emulated.scheduler);
    arrive(f->fake_stack, &emulated.scheduler_stack, &emulated.scheduler_bytes);
}

void rm_emulated_syncthreads(const char *file, int line) { wait_for(WAITS_FOR_BLOCK, file, line); }

void rm_emulated_exchange(unsigned mask, void *value, size_t bytes, int lane, const char *file, int line) {
    unsigned thread = threadIdx.x;
    if (mask != 0xffffffffu) die(thread, "exchanges with a part of its warp; the emulation knows full masks only");
    if (blockDim.x % WARP) die(thread, "exchanges in a block that is not made of whole warps");
    if (bytes > WIDEST || lane < 0 || lane >= WARP) die(thread, "exchanges something too wide, or with no lane");
    if (!emulated.grid.together) wait_for(WAITS_FOR_WARP, file, line); /* reports the missing RM_LAUNCH_TOGETHER */
    unsigned char(*slot)[WIDEST] = emulated.current->block->slot[emulated.current->exchanges++ % 2];
    memcpy(slot[thread], value, bytes);
    wait_for(WAITS_FOR_WARP, file, line);
    memcpy(value, slot[thread / WARP * WARP + (unsigned)lane], bytes);
}

/* ---- Memory of a cluster ---------------------------------------------------------------------------------------- */

static block *here(void) {
    if (!emulated.grid.size) die(threadIdx.x, "uses a cluster, but was not launched with RM_LAUNCH_CLUSTERS");
    return emulated.current->block;
}

float *rm_cluster_memory(void) { return (float *)here()->memory; }
unsigned rm_cluster_rank(void) { return (unsigned)(here() - emulated.cluster); }
unsigned rm_cluster_size(void) { return here(), emulated.blocks; }

void rm_emulated_cluster_sync(const char *file, int line) {
    here();
    wait_for(WAITS_FOR_CLUSTER, file, line);
}

/* The address in b's memory that corresponds to `shared` in this block's memory. */
static void *there(const block *b, const void *shared, size_t bytes) {
    uintptr_t at = (uintptr_t)shared - (uintptr_t)here()->memory;
    if (at > emulated.grid.shared || bytes > emulated.grid.shared - at || at % bytes)
        die(threadIdx.x, "has a mailbox or a slot that does not lie in its block's memory, or not aligned");
    return b->memory + at;
}

static void check_open(const rm_mailbox *box) {
    if (box->seal != SEAL) die(threadIdx.x, "uses a mailbox that is not open, or was written over");
}

void rm_mailbox_open(rm_mailbox *box) {
    block *b = here();
    there(b, box, sizeof *box);
    for (int i = 0; i < b->boxes; i++)
        if (b->box[i] == box) die(threadIdx.x, "opens a mailbox that is open");
    if (b->boxes == MAX_BOXES) die(threadIdx.x, "opens more mailboxes than the emulation has room for");
    b->box[b->boxes++] = box;
    *box = {0, 0, 0, SEAL};
}

/* The phase ends when all expected bytes have arrived. */
static void count(block *b, rm_mailbox *box, int bytes) {
    box->missing += bytes;
    if (!box->expected || box->missing) return;
    box->phase ^= 1, box->expected = 0;
    for (int t = 0; t < emulated.grid.threads; t++) {
        fiber *f = &b->thread[t];
        if (f->is == WAITS_FOR_MAIL && f->box == box) f->is = RUNS, b->running++;
    }
}

void rm_mailbox_expect(rm_mailbox *box, unsigned bytes) {
    check_open((rm_mailbox *)there(here(), box, sizeof *box));
    if (box->expected) die(threadIdx.x, "expects twice in one phase");
    if (!bytes || bytes > MAX_EXPECTED)
        die(threadIdx.x, "expects nothing, or more than the 1048575 bytes that a GPU can count");
    box->expected = bytes;
    count(here(), box, (int)bytes);
}

static void bring(const mail *m) {
    blockIdx.x = m->from, threadIdx.x = m->thread;
    if (m->to->returned)
        die(m->thread, "sends to a block that is returning: rm_mailbox_wait, rm_cluster_sync come first");
    check_open(m->box);
    *m->slot = m->value;
    count(m->to, m->box, -(int)sizeof m->value);
}

/* A GPU may deliver it now, or after everything else. */
void rm_mailbox_send(rm_peer rank, float *slot, rm_mailbox *box, float value) {
    here();
    if (rank >= emulated.blocks) die(threadIdx.x, "sends to a rank that its cluster does not have");
    block *to = &emulated.cluster[rank];
    mail m = {to,         (float *)there(to, slot, sizeof *slot),
              value,      (rm_mailbox *)there(to, box, sizeof *box),
              blockIdx.x, threadIdx.x};
    if (emulated.order == RM_IN_ORDER || (emulated.order == RM_WARPS_APART && !emulated.late)) {
        bring(&m);
        return;
    }
    if (emulated.n_sent == emulated.room) {
        emulated.room = emulated.room ? 2 * emulated.room : 1024;
        emulated.sent = (mail *)realloc(emulated.sent, (size_t)emulated.room * sizeof m);
        if (!emulated.sent) abort();
    }
    emulated.sent[emulated.n_sent++] = m;
}

static bool bring_all(void) {
    int64_t n = emulated.n_sent;
    for (int64_t k = 0; k < n; k++) bring(&emulated.sent[in_turn(k, n)]);
    emulated.n_sent = 0;
    return n > 0;
}

void rm_emulated_mailbox_wait(rm_mailbox *box, unsigned phase, const char *file, int line) {
    check_open((rm_mailbox *)there(here(), box, sizeof *box));
    if (phase > 1) die(threadIdx.x, "waits for a phase that is neither 0 nor 1");
    while (box->phase == phase) {
        emulated.current->box = box;
        wait_for(WAITS_FOR_MAIL, file, line);
    }
}

/* ---- Fetches ---------------------------------------------------------------------------------------------------- */

/* They arrive as late as allowed; until then the memory has no valid content. */
void rm_fetch(void *shared, const void *global) {
    here();
    fiber *f = emulated.current;
    if (f->n_fetches == MOST_FETCHES) die(threadIdx.x, "fetches more than the emulation has room for");
    f->fetch[f->n_fetches].to = (float *)there(f->block, shared, sizeof(float));
    f->fetch[f->n_fetches].from = global;
    f->fetch[f->n_fetches++].batch = f->batches;
    *(float *)shared = NAN;
}

void rm_fetch_end(void) {
    here();
    emulated.current->batches++;
}

void rm_emulated_fetch_wait(int batches) {
    here();
    fiber *f = emulated.current;
    int n = 0;
    while (n < f->n_fetches && f->fetch[n].batch + (unsigned)batches < f->batches) n++;
    for (int i = 0; i < n; i++) memcpy(f->fetch[i].to, f->fetch[i].from, sizeof(float));
    f->n_fetches -= n;
    memmove(f->fetch, f->fetch + n, (size_t)f->n_fetches * sizeof *f->fetch);
}

/* ---- Blocks that run together ----------------------------------------------------------------------------------- */

static void begin(block *b, fiber *f) {
    if (!f->stack) f->stack = (char *)malloc(STACK_BYTES);
    if (!f->stack) abort();
    place_make(&f->at, f->stack, STACK_BYTES, fiber_main);
    f->block = b, f->is = RUNS, f->exchanges = 0, f->fake_stack = NULL, f->n_fetches = 0, f->batches = 0;
}

static void resume(block *b, unsigned thread) {
    fiber *f = &b->thread[thread];
    emulated.current = f;
    blockIdx.x = b->index, threadIdx.x = thread;
    leave(&emulated.fake_stack, f->stack, STACK_BYTES);
    place_switch(&emulated.scheduler, &f->at);
    arrive(emulated.fake_stack, NULL, NULL);
}

/* Do all threads [from, to) of b wait for `what`, at the same place as f? */
static bool all_wait(const block *b, unsigned from, unsigned to, state what, const fiber *f) {
    for (unsigned t = from; t < to; t++) {
        const fiber *g = &b->thread[t];
        if (g->is != what || g->line != f->line || (g->file != f->file && strcmp(g->file, f->file))) return false;
    }
    return true;
}

static void go_on(block *b, unsigned from, unsigned to) {
    for (unsigned t = from; t < to; t++) b->thread[t].is = RUNS;
    b->running += to - from;
}

static void release(block *b, unsigned from, unsigned to, state what) {
    if (all_wait(b, from, to, what, &b->thread[from])) go_on(b, from, to);
}

static bool release_cluster(unsigned threads) {
    for (unsigned b = 0; b < emulated.blocks; b++)
        if (!all_wait(&emulated.cluster[b], 0, threads, WAITS_FOR_CLUSTER, emulated.cluster->thread)) return false;
    for (unsigned b = 0; b < emulated.blocks; b++) go_on(&emulated.cluster[b], 0, threads);
    return true;
}

static void check_end(const block *b, unsigned threads) {
    for (int i = 0; i < b->boxes && b->returned == threads; i++)
        if (b->box[i]->missing != (int32_t)b->box[i]->expected)
            die(0, "has returned, and a mailbox holds a part of a phase: more was sent than expected, or less");
}

static void run_block(block *b, unsigned threads) {
    const unsigned warp = WARP;
    while (b->running) {
        for (unsigned k = 0; k < threads; k++) {
            unsigned t = (unsigned)in_turn(k, threads);
            if (b->thread[t].is == RUNS) resume(b, t);
        }
        for (unsigned t = 0; t < threads; t += warp)
            release(b, t, threads - t < warp ? threads : t + warp, WAITS_FOR_WARP);
        if (!b->running) release(b, 0, threads, WAITS_FOR_BLOCK);
    }
    check_end(b, threads);
}

/* Runs threads [from, to), a warp, as far as they get without others. */
static void run_warp(block *b, unsigned from, unsigned to) {
    for (bool ran = true; ran; release(b, from, to, WAITS_FOR_WARP)) {
        ran = false;
        for (unsigned t = from; t < to; t++)
            if (b->thread[t].is == RUNS) resume(b, t), ran = true;
    }
}

/* The next runnable one, starting at a random one. */
static bool run_some_warp(unsigned threads) {
    const unsigned warp = WARP, each = (threads + warp - 1) / warp, n = emulated.blocks * each, at = draw(n);
    if (!draw(50)) emulated.late = !emulated.late;
    for (unsigned k = 0; k < n; k++) {
        block *b = &emulated.cluster[(at + k) % n / each];
        unsigned from = (at + k) % n % each * warp, to = threads - from < warp ? threads : from + warp, t = from;
        while (t < to && b->thread[t].is != RUNS) t++;
        if (t == to) continue;
        run_warp(b, from, to);
        if (!b->running) release(b, 0, threads, WAITS_FOR_BLOCK);
        check_end(b, threads);
        return true;
    }
    return false;
}

/* No thread can run. Reports a thread that waits for a mailbox, or else a thread that others wait for. */
[[noreturn]] static void give_up(unsigned threads) {
    static const struct {
        state is;
        const char *what;
    } wait[] = {{WAITS_FOR_MAIL, NULL},
                {WAITS_FOR_WARP, "shuffle"},
                {WAITS_FOR_BLOCK, "__syncthreads"},
                {WAITS_FOR_CLUSTER, "rm_cluster_sync"}};
    char text[512];
    for (auto &w : wait)
        for (unsigned at = 0; at < emulated.blocks * threads; at++) {
            const block *b = &emulated.cluster[at / threads];
            const fiber *f = &b->thread[at % threads];
            if (f->is != w.is) continue;
            blockIdx.x = b->index;
            if (!w.what) {
                snprintf(text, sizeof text, "waits at %s:%d for a mailbox, which %s (%d bytes are missing)", f->file,
                         f->line, f->box->expected ? "is never filled" : "expects nothing", f->box->missing);
                die(at % threads, text);
            }
            bool cluster = w.is == WAITS_FOR_CLUSTER;
            unsigned warp = WARP, of = w.is == WAITS_FOR_WARP ? warp : threads; /* as many wait for each other */
            unsigned from = cluster ? 0 : at / threads * threads + at % threads / of * of;
            unsigned to = cluster ? emulated.blocks * threads : from + of;
            for (unsigned other = from; other < to && other / threads < emulated.blocks; other++) {
                const block *c = &emulated.cluster[other / threads];
                if (all_wait(c, other % threads, other % threads + 1, w.is, f)) continue;
                snprintf(text, sizeof text, "%s, while others wait at the %s of %s:%d, which not all threads reach",
                         c->thread[other % threads].is == RETURNED ? "has returned" : "waits elsewhere", w.what,
                         f->file, f->line);
                blockIdx.x = c->index;
                die(other % threads, text);
            }
        }
    abort();
}

static bool run_some(unsigned threads) {
    bool any = false;
    if (emulated.order == RM_WARPS_APART) return run_some_warp(threads);
    for (unsigned k = 0; k < emulated.blocks; k++) {
        block *b = &emulated.cluster[in_turn(k, emulated.blocks)];
        if (b->running) run_block(b, threads), any = true;
    }
    return any;
}

/* This many blocks, starting with `first`. */
static void run_together(unsigned first, unsigned blocks, unsigned threads, size_t bytes) {
    unsigned returned = 0;
    emulated.blocks = blocks;
    for (unsigned i = 0; i < blocks; i++) {
        block *b = &emulated.cluster[i];
        b->index = first + i, b->running = threads, b->returned = 0, b->boxes = 0;
        b->memory = bytes ? (char *)malloc(bytes) : NULL; /* allocated separately, for AddressSanitizer */
        if (bytes && !b->memory) abort();
        if (bytes) memset(b->memory, 0xff, bytes); /* NaN */
        for (unsigned t = 0; t < threads; t++) begin(b, &b->thread[t]);
    }
    while (run_some(threads) || release_cluster(threads) || bring_all()) continue;
    for (unsigned i = 0; i < blocks; i++) returned += emulated.cluster[i].returned;
    if (returned < blocks * threads) give_up(threads);
    for (unsigned i = 0; i < blocks; i++) free(emulated.cluster[i].memory);
}

/* ---- Launches --------------------------------------------------------------------------------------------------- */

enum { MOST_ARGUMENTS = 512 }; /* bytes */
typedef struct {
    const char *kernel;
    rm_emulated_grid grid;
    void (*body)(void *);
    alignas(16) char context[MOST_ARGUMENTS];
} launch;

int rm_emulated_kernel_error, rm_emulated_clusters;

static rm_emulated_giver *giver; /* NULL: launches run at once */
void rm_emulate_by(rm_emulated_giver *to) { giver = to; }

static void run_alone(unsigned block, int threads) {
    blockIdx.x = block;
    for (int t = 0; t < threads; t++) {
        threadIdx.x = (unsigned)in_turn(t, threads);
        emulated.body(emulated.argument);
    }
}

static void run(void *context) {
    launch *l = (launch *)context;
    const rm_emulated_grid *g = &l->grid;
    int64_t size = g->size ? g->size : 1, n = g->blocks / size;
    emulated.kernel = l->kernel, emulated.grid = *g, emulated.body = l->body, emulated.argument = l->context;
    gridDim.x = (unsigned)g->blocks, blockDim.x = (unsigned)g->threads;
    for (int64_t k = 0; k < n; k++) {
        unsigned first = (unsigned)(in_turn(k, n) * size);
        if (g->together)
            run_together(first, (unsigned)size, (unsigned)g->threads, g->shared);
        else
            run_alone(first, g->threads);
    }
}

[[noreturn]] static void refuse(const launch *l, const char *why) {
    fprintf(stderr, "emulated kernel %s, %lld blocks of %d threads: %s\n", l->kernel, (long long)l->grid.blocks,
            l->grid.threads, why);
    abort();
}

/* Another thread may run an earlier kernel at the same time; its gridDim and so on do not change. */
void rm_emulated_launch(const void *queue, const char *kernel, const rm_emulated_grid *grid, void (*body)(void *),
                        const void *context, size_t bytes) {
    launch l = {kernel, *grid, body, {}};
    emulated.launches++;
    if (grid->threads < 1 || grid->threads > MAX_THREADS || grid->blocks < 0 || grid->blocks > INT32_MAX)
        refuse(&l, "no GPU has such a grid: at most 1024 threads a block, and 2147483647 blocks");
    if (grid->size < 0 || grid->size > RM_CLUSTER_MOST || grid->shared > MAX_SHARED || (grid->size && !grid->blocks))
        refuse(&l, "no GPU has such clusters: 1 or more, of at most 16 blocks with 232448 bytes of memory each");
    if (bytes > sizeof l.context) refuse(&l, "its arguments are larger than the emulation has room for");
    memcpy(l.context, context, bytes);
    if (giver)
        giver(((const rm_cuda_queue *)queue)->stream, run, &l, sizeof l);
    else
        run(&l);
}
