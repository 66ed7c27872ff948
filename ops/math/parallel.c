/* parallel.c: the account of what threads bring (parallel.h). A region of n threads is taken to do the work of 0.7 n; what one of them
 * waits for others is lost. While there is less than nothing in the account, no region is opened, and a sixteenth of the time that one
 * thread computes alone is paid in. So a team that only costs, whatever the reason, is tried again and again, and costs a sixteenth
 * of the time; and where it gains again, it stays.
 *
 * The account holds no more than MOST: gains of an hour must not hide that the machine is busy now. That is some time slices, lest
 * single interruptions, which a team soon makes up for, end it. Nor does it hold less than LEAST: what was lost in one long product
 * must not be paid for minutes. */
#include "ops/math/parallel.h"

enum { FIRST_NS = 32000000, MOST_NS = 64000000, LEAST_NS = -100000000, PAID_IN = 16 };
/* The threads of a region that is not even may have several times as much to do as thread 0. */
enum { UNEVEN = 3, UNEVEN_NS = 100000 };

static _Thread_local int64_t balance_ns = FIRST_NS;
static _Thread_local int pretended;

void rm_parallel_pretend(int worth) { pretended = worth, balance_ns = FIRST_NS; }

rm_region rm_region_begin(int threads, bool even) {
    rm_region region = {.threads = threads, .even = even};
    if (threads < 2) return region;
    if (pretended ? pretended < 0 : balance_ns < 0) region.threads = 1;
    region.begin_ns = rm_now_ns();
    region.balance_ns = pretended > 0 ? INT64_MAX / 2 : balance_ns;
    return region;
}

static void pay_in(int64_t ns) {
    balance_ns += ns;
    if (balance_ns > MOST_NS) balance_ns = MOST_NS;
    if (balance_ns < LEAST_NS) balance_ns = LEAST_NS;
}

void rm_region_end(const rm_region *region, uint64_t lost_ns) {
    if (!region->begin_ns) return;
    uint64_t now = rm_now_ns(), alone_since = region->threads < 2 ? region->begin_ns : region->alone_ns;
    if (region->threads > 1) {
        uint64_t own_ns = (alone_since ? alone_since : region->own_ns) - region->begin_ns, waited_ns = 0;
        if (!alone_since) waited_ns = now - region->own_ns;
        if (!region->even && waited_ns < UNEVEN * own_ns + UNEVEN_NS) waited_ns = 0;
        pay_in(rm_region_gain(region->threads, own_ns + waited_ns, lost_ns + waited_ns));
    }
    if (alone_since) pay_in((int64_t)(now - alone_since) / PAID_IN);
}
