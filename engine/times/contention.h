/* contention.h: did other programs take the processors while something was measured? From what the system says all processors
 * did (/proc/stat), less what this process did. measure.c knows of single runs that were disturbed; here it is all of them. */
#ifndef RM_CONTENTION_H
#define RM_CONTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* All in nanoseconds since some moment. */
typedef struct {
    uint64_t now, machine, own; /* the clock; processors' work for anybody; processors' work for this process */
} rm_contention;

rm_contention rm_contention_begin(void);
/* Since `begin`, were there too few processors for `threads` threads and for everybody else? Where the system does not say: no. */
bool rm_contention_end(const rm_contention *begin, int threads);

/* The judgement: others did so much work in `time_ns`. A quarter of a processor is let pass, as is what clocks do not tell. */
bool rm_is_contended(uint64_t others_ns, uint64_t time_ns, int threads, int processors);

/* For tests, whose machine may be either: 1: they were taken, -1: they were not, 0: as it is. */
void rm_contention_pretend(int contended);

#endif
