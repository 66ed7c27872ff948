/* contention.h: tells whether other programs used the processors during a measurement: the work of all processors (/proc/stat) minus
 * the work of this process. measure.c detects single disturbed runs; this covers a whole measurement. */
#ifndef RM_CONTENTION_H
#define RM_CONTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* In nanoseconds since an arbitrary moment. */
typedef struct {
    uint64_t now, machine, own; /* wall clock; processor time of all programs; processor time of this process */
} rm_contention;

rm_contention rm_contention_begin(void);
/* Were there too few processors since `begin` for `threads` threads and all other programs? False if the system does not tell. */
bool rm_contention_end(const rm_contention *begin, int threads);

/* The decision, from the others' work in `time_ns`. It tolerates a quarter of a processor, and the resolution of the clocks. */
bool rm_is_contended(uint64_t others_ns, uint64_t time_ns, int threads, int processors);

/* For tests: 1 reports contention, -1 reports none, 0 measures. */
void rm_contention_pretend(int contended);

#endif
