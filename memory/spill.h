/* spill.h: the second tier on a CPU: a file in a directory that the user chooses, and a thread that moves bytes between
 * the file and memory during the computation. transfers.h decides when objects are moved and where they lie in the
 * file.
 *
 * The file has no name, so nothing is left behind even if the process is killed. Where the file system allows it, the
 * page cache is bypassed (O_DIRECT), so that spilled data do not stay in memory; elsewhere the cache is told to drop
 * what was written and read.
 *
 * Memory: RM_SPILL_HOST_BYTES in addition to the data, allocated when the file is opened; none later. Threads: one
 * thread issues transfers and waits for them. */
#ifndef RM_SPILL_H
#define RM_SPILL_H

#include "memory/transfers.h"

typedef struct rm_spill rm_spill;

/* A bounce buffer, which aligns data for the disk; the queue; the used part of the thread's stack. */
#define RM_SPILL_HOST_BYTES ((uint64_t)(1 << 20) + (64 << 10))

/* IO: `directory` does not exist, or no file can be created in it. MEMORY. */
remat_status rm_spill_open(const char *directory, rm_spill **out);
void rm_spill_close(rm_spill *spill); /* finishes pending transfers; NULL is allowed */

/* Allocates space on the disk now, so that the step cannot run out of it. IO says how much is missing. */
remat_status rm_spill_reserve(rm_spill *spill, uint64_t bytes);

/* Measures the tier's rates by moving up to 64 MiB out and in, in turns, for at most about 0.3 s; once per process and
 * disk. The tier's cost is the CPU time of the thread. IO. */
remat_status rm_spill_measure(rm_spill *spill, rm_tier *rates);

/* Queues one part of a transfer (transfers.h). The transfer is done some time after its last part was queued, and after
 * all earlier transfers; until then the memory must not change. Returns at once unless thousands of parts are
 * queued. */
void rm_spill_save(rm_spill *spill, const rm_part *part);
void rm_spill_load(rm_spill *spill, const rm_part *part);

/* Returns when the first `count` transfers since opening are done. IO: a read or a write failed. In that case all
 * queued transfers have ended, all saved data are lost, and the spill can be used again from the start. */
remat_status rm_spill_wait(rm_spill *spill, uint64_t count);
uint64_t rm_spill_given(const rm_spill *spill); /* number of transfers issued since opening */

/* Calls `moved` after every transfer from now on; before the first one. */
void rm_spill_watch(rm_spill *spill, rm_moved *moved, void *context);

/* Since opening or the last rm_spill_forget_use: bytes moved, time the thread was busy, time the caller waited for it.
 * Also the CPU time of the thread since opening. */
typedef struct {
    uint64_t save_bytes, load_bytes, busy_ns, wait_ns, thread_ns;
} rm_spill_use;
rm_spill_use rm_spill_used(const rm_spill *spill);
void rm_spill_forget_use(rm_spill *spill);     /* rm_spill_measure calls it at its end */
bool rm_spill_direct(const rm_spill *spill);   /* whether the page cache is bypassed */
uint64_t rm_spill_disk(const rm_spill *spill); /* identifies the disk: files on the same disk share it; 0: unknown */

/* For tests: the n-th read or write from now (1 is the next) of any spill file fails with the errno `error`, or, if
 * `error` is 0, moves fewer bytes than requested. n = 0: none. */
void rm_spill_fail_at(int64_t n, int error);

#endif
