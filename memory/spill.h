/* spill.h: the second tier of a CPU: one file in a directory of the user's choice, and one thread that moves bytes between
 * it and memory while the computation goes on. What is moved when, and where it lies in the file, is decided elsewhere
 * (transfers.h).
 *
 * The file has no name: nothing is left behind, whatever happens to the process. Where the file system allows it the page
 * cache is bypassed (O_DIRECT), so that what is spilled does not come back as memory in use; elsewhere the cache is told
 * to let go of what was written and read.
 *
 * Memory: RM_SPILL_HOST_BYTES beside the data, taken when the file is opened; nothing afterwards. Threads: one thread gives
 * transfers and waits for them. */
#ifndef RM_SPILL_H
#define RM_SPILL_H

#include "memory/transfers.h"

typedef struct rm_spill rm_spill;

/* A bounce buffer, in which what lies anywhere in memory is aligned for the disk; the queue; the thread's stack as far as
 * it is touched. */
#define RM_SPILL_HOST_BYTES ((uint64_t)(1 << 20) + (64 << 10))

/* IO: `directory` is not there, or no file may be made in it. MEMORY. */
remat_status rm_spill_open(const char *directory, rm_spill **out);
void rm_spill_close(rm_spill *spill); /* finishes what is under way; NULL allowed */

/* Room in the file, taken from the disk now, so that the step cannot run out of it. IO says how much is missing. */
remat_status rm_spill_reserve(rm_spill *spill, uint64_t bytes);

/* What the tier can do, measured in at most about 0.3 s by moving up to 64 MiB out and in, in turns; once a process and
 * disk. Its cost is the processor's time of the thread. IO. */
remat_status rm_spill_measure(rm_spill *spill, rm_tier *rates);

/* Gives one part of a transfer (transfers.h). The transfer is done some time after its last part was given, and after all
 * transfers before it; memory must stay as it is until then. Returns at once unless thousands of parts are waiting. */
void rm_spill_save(rm_spill *spill, const rm_part *part);
void rm_spill_load(rm_spill *spill, const rm_part *part);

/* Returns when the first `count` transfers since opening are done. IO: reading or writing failed. Then everything that
 * was given has come to an end, what was saved so far is worthless, and the spill can be used afresh. */
remat_status rm_spill_wait(rm_spill *spill, uint64_t count);
uint64_t rm_spill_given(const rm_spill *spill); /* transfers, since opening */

/* Since opening, or since it was forgotten: bytes moved, how long the thread was busy, how long it was waited for. And the
 * processor's time of the thread, since opening. */
typedef struct {
    uint64_t save_bytes, load_bytes, busy_ns, wait_ns, thread_ns;
} rm_spill_use;
rm_spill_use rm_spill_used(const rm_spill *spill);
void rm_spill_forget_use(rm_spill *spill);     /* as rm_spill_measure does at its end */
bool rm_spill_direct(const rm_spill *spill);   /* the page cache is bypassed */
uint64_t rm_spill_disk(const rm_spill *spill); /* a number that files on the same disk share; 0: unknown */

/* For tests: the n-th read or write of the file from now (1 is the next), in any spill, fails with the errno `error`, or
 * with error 0 moves less than it was asked to. 0: none. */
void rm_spill_fail_at(int64_t n, int error);

#endif
