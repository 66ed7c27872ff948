/* contention.c: see contention.h. */
#include "engine/times/contention.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "memory/clock.h"

static int pretended;

void rm_contention_pretend(int contended) { pretended = contended; }

/* user, nice, system, (idle, iowait,) irq, softirq and steal, in ticks. 0: unknown. */
static uint64_t machine_ns(void) {
    uint64_t t[8] = {0}, tick = UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK);
    FILE *file = fopen("/proc/stat", "re");
    if (!file) return 0;
    int n =
        fscanf(file, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
               &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]);
    fclose(file);
    return n < 4 ? 0 : tick * (t[0] + t[1] + t[2] + t[5] + t[6] + t[7]);
}

rm_contention rm_contention_begin(void) {
    return (rm_contention){.now = rm_now_ns(), .machine = machine_ns(), .own = rm_clock_ns(CLOCK_PROCESS_CPUTIME_ID)};
}

/* The error of ticks of 10 ms: one at each end, for each processor. */
bool rm_is_contended(uint64_t others_ns, uint64_t time_ns, int threads, int processors) {
    double others = (double)others_ns - 20e6 * processors, time = (double)time_ns;
    return others > 0.25 * time && others + threads * time > (processors + 0.25) * time;
}

bool rm_contention_end(const rm_contention *begin, int threads) {
    rm_contention end = rm_contention_begin();
    if (pretended) return pretended > 0;
    uint64_t own = end.own - begin->own, all = end.machine - begin->machine;
    if (!begin->machine || end.machine < begin->machine || all <= own) return false;
    return rm_is_contended(all - own, end.now - begin->now, threads, (int)sysconf(_SC_NPROCESSORS_ONLN));
}
