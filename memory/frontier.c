/* frontier.c: see frontier.h. */
#include "memory/frontier.h"

#include <string.h>

#include "memory/bytes.h"

int rm_frontier_split(const rm_point_cost *right, int n_right, const rm_point_cost *left, int n_left,
                      rm_split_cost sweep, int move, rm_point *out) {
    uint64_t held = sweep.beside_bytes;
    uint64_t limit = rm_larger(sweep.sweep_bytes, rm_larger(held + right[0].peak_bytes, left[0].peak_bytes));
    int n = 0;
    for (int r = 0, l = 0;;) {
        while (r + 1 < n_right && held + right[r + 1].peak_bytes <= limit) r++;
        while (l + 1 < n_left && left[l + 1].peak_bytes <= limit) l++;
        out[n++] = (rm_point){
            .peak_bytes = limit,
            .time_ns = rm_saturate(rm_saturate(right[r].time_ns, left[l].time_ns), sweep.time_ns),
            .move = (int16_t)move,
            .right = (uint16_t)r,
            .left = (uint16_t)l,
        };
        uint64_t next_right = r + 1 < n_right ? held + right[r + 1].peak_bytes : UINT64_MAX;
        uint64_t next_left = l + 1 < n_left ? left[l + 1].peak_bytes : UINT64_MAX;
        limit = next_right < next_left ? next_right : next_left;
        if (limit == UINT64_MAX) return n;
    }
}

int rm_frontier_first(rm_kept kept, uint64_t dstate_bytes, const rm_point_cost *right, int n_right, int move,
                      rm_point *out) {
    uint64_t least = rm_larger(kept.forward_bytes + dstate_bytes, kept.backward_bytes);
    int n = 0;
    for (int r = 0; r < n_right; r++) {
        uint64_t peak = rm_larger(least, kept.held_bytes + right[r].peak_bytes);
        if (n > 0 && out[n - 1].peak_bytes == peak) n--;
        out[n++] = (rm_point){peak, rm_saturate(right[r].time_ns, kept.time_ns), (int16_t)move, (uint16_t)r, 0};
    }
    return n;
}

static bool before(const rm_point *a, const rm_point *b) {
    return a->peak_bytes != b->peak_bytes ? a->peak_bytes < b->peak_bytes : a->time_ns <= b->time_ns;
}

int rm_frontier_merge(const rm_point *a, int n_a, const rm_point *b, int n_b, rm_point *out) {
    int n = 0;
    for (int i = 0, j = 0; i < n_a || j < n_b;) {
        const rm_point *next = j == n_b || (i < n_a && before(&a[i], &b[j])) ? &a[i++] : &b[j++];
        if (n == 0 || next->time_ns < out[n - 1].time_ns) out[n++] = *next;
    }
    return n;
}

/* Monotone and roughly logarithmic: the bits of a floating-point number. */
static double place_of(uint64_t number) {
    double value = (double)number + 1;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (double)bits;
}

int rm_frontier_thin(rm_point *point, int n, int most) {
    if (n <= most) return n;
    double bytes = place_of(point[0].peak_bytes), time = place_of(point[0].time_ns);
    double bytes_scale = (most - 2) / 2.0 / (place_of(point[n - 1].peak_bytes) - bytes);
    double time_scale = (most - 2) / 2.0 / (time - place_of(point[n - 1].time_ns));
    int kept = 1, bucket = -1;
    for (int i = 1; i + 1 < n; i++) {
        int here = (int)((place_of(point[i].peak_bytes) - bytes) * bytes_scale +
                         (time - place_of(point[i].time_ns)) * time_scale);
        if (here == bucket) kept--;
        bucket = here;
        point[kept++] = point[i];
    }
    if (kept == most) kept--; /* the last bucket's upper edge */
    point[kept++] = point[n - 1];
    return kept;
}
