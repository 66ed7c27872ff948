/* binomial.c: see binomial.h. */
#include "tests/memory/binomial.h"

#include "memory/host.h"

static int64_t clip(__int128 number) { return number < INT64_MAX ? (int64_t)number : INT64_MAX; }

int64_t rm_binomial_reach(int64_t slots, int64_t sweeps) {
    if (sweeps < 0) return 0;
    int64_t few = slots < sweeps ? slots : sweeps, many = slots < sweeps ? sweeps : slots;
    __int128 product = 1;
    for (int64_t i = 1; i <= few; i++) {
        product = product * ((__int128)many + i) / i; /* equals binomial(many+i, i), so the division is exact */
        if (product >= INT64_MAX) return INT64_MAX;
    }
    return (int64_t)product;
}

/* The smallest r with beta(m,r) >= t. With one slot it is t-1, so it always exists. */
static int64_t sweeps_for(int64_t stages, int64_t slots) {
    int64_t low = -1, high = stages - 1; /* low is too few, high is enough */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        *(rm_binomial_reach(slots, middle) >= stages ? &high : &low) = middle;
    }
    return high;
}

int64_t rm_binomial_runs(int64_t stages, int64_t slots) {
    if (stages < 1) return 0;
    if (slots == 1) return clip((__int128)stages * ((__int128)stages + 1) / 2);
    if (slots >= stages) return clip(2 * (__int128)stages - 1);
    int64_t r = sweeps_for(stages, slots);
    return clip(((__int128)r + 1) * stages - rm_binomial_reach(slots + 1, r - 1));
}

/* Of beta(m,r) = beta(m-1,r) + beta(m,r-1) stages, the first term counts the right part and the second the left part.
 * With fewer stages, neither part may get fewer than one sweep less would allow. */
int64_t rm_binomial_split(int64_t stages, int64_t slots) {
    int64_t r = sweeps_for(stages, slots);
    int64_t least = rm_binomial_reach(slots, r - 2), rest = stages - rm_binomial_reach(slots - 1, r);
    int64_t y = least > rest ? least : rest;
    return y > 1 ? y : 1;
}

remat_status rm_binomial_begin(rm_binomial *schedule, int64_t stages, int64_t slots) {
    *schedule = (rm_binomial){0};
    REQUIRE(stages >= 1 && slots >= 1, INVALID, "%lld stages in %lld slots: both must be at least 1", (long long)stages,
            (long long)slots);
    if (slots > stages) slots = stages;
    schedule->capacity = slots + 1;
    schedule->part = rm_malloc((size_t)schedule->capacity * sizeof *schedule->part);
    REQUIRE(schedule->part, MEMORY, "out of host memory for a schedule of %lld slots", (long long)slots);
    schedule->part[schedule->parts++] = (rm_binomial_part){0, stages, slots};
    return REMAT_OK;
}

static void then(rm_binomial *schedule, rm_binomial_action action) { schedule->next[schedule->n_next++] = action; }

/* The first action of a part. Stores the others for later: the remaining actions in reverse, and the two parts it
 * splits into. */
static rm_binomial_action open_part(rm_binomial *schedule, rm_binomial_part part) {
    int64_t begin = part.begin;
    if (part.stages == 1) {
        then(schedule, (rm_binomial_action){RM_BINOMIAL_RELEASE, begin, begin});
        return (rm_binomial_action){RM_BINOMIAL_TAPE, begin, begin + 1};
    }
    int64_t y = rm_binomial_split(part.stages, part.slots), cut = begin + y;
    schedule->part[schedule->parts++] = (rm_binomial_part){begin, y, part.slots};
    if (part.slots == 1) { /* no slot to hold the state: its stage, the last one, is taped at once */
        then(schedule, (rm_binomial_action){RM_BINOMIAL_TAPE, cut, cut + 1});
    } else {
        schedule->part[schedule->parts++] = (rm_binomial_part){cut, part.stages - y, part.slots - 1};
        then(schedule, (rm_binomial_action){RM_BINOMIAL_HOLD, cut, cut});
    }
    return (rm_binomial_action){RM_BINOMIAL_SWEEP, begin, cut};
}

rm_binomial_action rm_binomial_next(rm_binomial *schedule) {
    if (schedule->n_next > 0) return schedule->next[--schedule->n_next];
    if (schedule->parts == 0) return (rm_binomial_action){RM_BINOMIAL_END, 0, 0};
    return open_part(schedule, schedule->part[--schedule->parts]);
}

void rm_binomial_free(rm_binomial *schedule) {
    rm_free(schedule->part);
    *schedule = (rm_binomial){0};
}
