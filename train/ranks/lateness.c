/* lateness.c: see lateness.h. */
#include "train/ranks/lateness.h"

#include "memory/host.h"

remat_status rm_lateness_open(int32_t size, rm_lateness *out) {
    *out = (rm_lateness){.size = size, .late_s = rm_calloc((size_t)size, sizeof *out->late_s)};
    REQUIRE(out->late_s, MEMORY, "no memory to measure how late each of %d ranks is", size);
    return REMAT_OK;
}

void rm_lateness_close(rm_lateness *lateness) {
    rm_free(lateness->late_s);
    *lateness = (rm_lateness){0};
}

void rm_lateness_add(rm_lateness *lateness, const int32_t *blocked_us) {
    const int32_t n = lateness->size;
    double sum = 0;
    int32_t last = 0;
    for (int32_t r = 0; r < n; r++) {
        sum += blocked_us[r];
        if (blocked_us[r] < blocked_us[last]) last = r;
    }
    if (n > 1) lateness->late_s[last] += 1e-6 * ((sum - blocked_us[last]) / (n - 1) - blocked_us[last]);
}

int32_t rm_lateness_worst(const rm_lateness *lateness, double *late_s) {
    int32_t worst = 0;
    for (int32_t r = 1; r < lateness->size; r++)
        if (lateness->late_s[r] > lateness->late_s[worst]) worst = r;
    *late_s = lateness->late_s[worst];
    return worst;
}
