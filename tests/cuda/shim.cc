/* shim.cc: runs emulated kernels (shim.h). The threads of a block that wait for each other are fibers, resumed
 * in turn: each runs until it waits or returns; when none can run, those that all wait for the same thing go on. */
#include "tests/cuda/shim.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/emulation.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

rm_index threadIdx, blockIdx, blockDim, gridDim;

enum { MAX_THREADS = 1024, WARP = 32, STACK_BYTES = 128 * 1024, WIDEST = 8 };

/* Where a fiber goes on. Kernels switch hundreds of thousands of times a test: on x86-64 that takes a few instructions; the C
 * library's way, with a system call, or under AddressSanitizer a large memset, serves elsewhere. */
#ifdef __x86_64__
typedef void *place; /* its stack pointer; what a function must keep is on the stack */

extern "C" void rm_emulated_switch(place *from, place *to);
asm(".text\n"
    ".globl rm_emulated_switch\n"
    "rm_emulated_switch:\n"
    "    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq (%rsi), %rsp\n"
    "    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp\n"
    "    ret\n");

/* The first switch finds six registers, then where to return to: `start`, which sees a stack as after a call. */
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

typedef enum { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, RETURNED } state;

typedef struct {
    place at; /* where it goes on */
    state is;
    const char *file; /* where it waits */
    int line;
    unsigned exchanges;
    char *stack;
    void *fake_stack; /* AddressSanitizer's */
} fiber;

static struct {
    const char *kernel;
    bool together;
    void (*body)(void *);
    void *argument;
    rm_emulated_order order;
    int64_t launches;
    place scheduler;
    void *fake_stack;
    const void *scheduler_stack;
    size_t scheduler_bytes;
    fiber *current, thread[MAX_THREADS];
    unsigned char slot[2][MAX_THREADS][WIDEST]; /* what lanes exchange; the two are used in turn, so that none is
                                                   overwritten before all have read it */
} emulated;

void rm_emulate_in(rm_emulated_order order) { emulated.order = order; }
int64_t rm_emulated_launches(void) { return emulated.launches; }

/* The k-th of n to be run. */
static int64_t in_turn(int64_t k, int64_t n) {
    if (emulated.order == RM_REVERSED) return n - 1 - k;
    if (emulated.order == RM_EVEN_LAST) return k < n / 2 ? 2 * k + 1 : 2 * (k - n / 2);
    return k;
}

[[noreturn]] static void die(unsigned thread, const char *what) {
    fprintf(stderr, "emulated kernel %s, block %u of %u, thread %u of %u: %s\n", emulated.kernel, blockIdx.x, gridDim.x,
            thread, blockDim.x, what);
    abort();
}

/* ---- Fibers --------------------------------------------------------------------------------------------------------- */

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

/* Leaves nothing on its stack that AddressSanitizer still guards when the stack is used again. */
__attribute__((no_sanitize("address"))) static void fiber_main(void) {
    arrive(NULL, &emulated.scheduler_stack, &emulated.scheduler_bytes);
    emulated.body(emulated.argument);
    fiber *f = emulated.current;
    f->is = RETURNED;
    leave(NULL, emulated.scheduler_stack, emulated.scheduler_bytes); /* NULL: it does not come back */
    place_switch(&f->at, &emulated.scheduler);
}

static void wait_for(state what, const char *file, int line) {
    if (!emulated.together)
        die(threadIdx.x, "waits for other threads, but was launched with RM_LAUNCH; use RM_LAUNCH_TOGETHER");
    fiber *f = emulated.current;
    f->is = what, f->file = file, f->line = line;
    leave(&f->fake_stack, emulated.scheduler_stack, emulated.scheduler_bytes);
    place_switch(&f->at, &emulated.scheduler);
    arrive(f->fake_stack, &emulated.scheduler_stack, &emulated.scheduler_bytes);
}

void rm_emulated_syncthreads(const char *file, int line) { wait_for(WAITS_FOR_BLOCK, file, line); }

void rm_emulated_exchange(unsigned mask, void *value, size_t bytes, int apart, const char *file, int line) {
    unsigned thread = threadIdx.x;
    if (mask != 0xffffffffu) die(thread, "exchanges with a part of its warp; the emulation knows full masks only");
    if (blockDim.x % WARP) die(thread, "exchanges in a block that is not made of whole warps");
    if (bytes > WIDEST || apart < 0 || apart >= WARP) die(thread, "exchanges something too wide, or with no lane");
    if (!emulated.together) wait_for(WAITS_FOR_WARP, file, line); /* says so */
    unsigned char(*slot)[WIDEST] = emulated.slot[emulated.current->exchanges++ % 2];
    memcpy(slot[thread], value, bytes);
    wait_for(WAITS_FOR_WARP, file, line);
    memcpy(value, slot[thread ^ (unsigned)apart], bytes);
}

/* ---- One block -------------------------------------------------------------------------------------------------------- */

static void begin(fiber *f) {
    if (!f->stack) f->stack = (char *)malloc(STACK_BYTES);
    if (!f->stack) abort();
    place_make(&f->at, f->stack, STACK_BYTES, fiber_main);
    f->is = RUNS, f->exchanges = 0, f->fake_stack = NULL;
}

static void resume(unsigned thread) {
    fiber *f = &emulated.thread[thread];
    emulated.current = f;
    threadIdx.x = thread;
    leave(&emulated.fake_stack, f->stack, STACK_BYTES);
    place_switch(&emulated.scheduler, &f->at);
    arrive(emulated.fake_stack, NULL, NULL);
}

/* Threads [from, from + n), none of which can run: whether any waits for `what`. All of them must then, at one place; they
 * go on. */
static bool release(unsigned from, unsigned n, state what) {
    const fiber *waits = NULL;
    for (unsigned t = from; t < from + n; t++)
        if (emulated.thread[t].is == what) waits = &emulated.thread[t];
    if (!waits) return false;
    for (unsigned t = from; t < from + n; t++) {
        fiber *f = &emulated.thread[t];
        const char *call = what == WAITS_FOR_BLOCK ? "__syncthreads" : "shuffle";
        char text[512];
        snprintf(text, sizeof text, "%s, while others wait at the %s of %s:%d, which not all threads reach",
                 f->is == RETURNED ? "has returned" : "waits elsewhere", call, waits->file, waits->line);
        if (f->is != what || f->line != waits->line || strcmp(f->file, waits->file)) die(t, text);
    }
    for (unsigned t = from; t < from + n; t++) emulated.thread[t].is = RUNS;
    return true;
}

static bool any(unsigned threads, state what) {
    for (unsigned t = 0; t < threads; t++)
        if (emulated.thread[t].is == what) return true;
    return false;
}

static void run_together(unsigned threads) {
    const unsigned warp = WARP;
    for (unsigned t = 0; t < threads; t++) begin(&emulated.thread[t]);
    while (any(threads, RUNS)) {
        for (unsigned k = 0; k < threads; k++) {
            unsigned t = (unsigned)in_turn(k, threads);
            if (emulated.thread[t].is == RUNS) resume(t);
        }
        for (unsigned t = 0; t < threads; t += warp)
            release(t, threads - t < warp ? threads - t : warp, WAITS_FOR_WARP);
        if (!any(threads, RUNS)) release(0, threads, WAITS_FOR_BLOCK);
    }
}

/* ---- Launches ----------------------------------------------------------------------------------------------------------- */

enum { MOST_ARGUMENTS = 512 }; /* bytes */
typedef struct {
    const char *kernel;
    int64_t blocks;
    int threads;
    bool together;
    void (*body)(void *);
    alignas(16) char context[MOST_ARGUMENTS];
} launch;

int rm_emulated_kernel_error;

static rm_emulated_giver *giver; /* NULL: launches are run at once */
void rm_emulate_by(rm_emulated_giver *to) { giver = to; }

static void run_blocks(const launch *l) {
    for (int64_t b = 0; b < l->blocks; b++) {
        blockIdx.x = (unsigned)in_turn(b, l->blocks);
        if (l->together) {
            run_together((unsigned)l->threads);
            continue;
        }
        for (int t = 0; t < l->threads; t++) {
            threadIdx.x = (unsigned)in_turn(t, l->threads);
            l->body(emulated.argument);
        }
    }
}

static void run(void *context) {
    launch *l = (launch *)context;
    emulated.kernel = l->kernel, emulated.together = l->together, emulated.body = l->body;
    emulated.argument = l->context;
    gridDim.x = (unsigned)l->blocks, blockDim.x = (unsigned)l->threads;
    run_blocks(l);
}

[[noreturn]] static void refuse(const launch *l, const char *why) {
    fprintf(stderr, "emulated kernel %s, %lld blocks of %d threads: %s\n", l->kernel, (long long)l->blocks, l->threads,
            why);
    abort();
}

/* While another thread may run a kernel that was launched before, whose gridDim and the like stay as they are. */
void rm_emulated_launch(const void *queue, const char *kernel, int64_t blocks, int threads, bool together,
                        void (*body)(void *), const void *context, size_t bytes) {
    launch l = {kernel, blocks, threads, together, body, {}};
    emulated.launches++;
    if (threads < 1 || threads > MAX_THREADS || blocks < 0 || blocks > INT32_MAX)
        refuse(&l, "no GPU has such a grid: at most 1024 threads a block, and 2147483647 blocks");
    if (bytes > sizeof l.context) refuse(&l, "its arguments are larger than the emulation has room for");
    memcpy(l.context, context, bytes);
    if (giver)
        giver(((const rm_cuda_queue *)queue)->stream, run, &l, sizeof l);
    else
        run(&l);
}
