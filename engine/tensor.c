/* tensor.c: arithmetic on shapes. */
#include "engine/tensor.h"

#include <stdio.h>

#include "engine/status.h"

remat_desc rm_desc_make(remat_dtype dtype, int rank, const int64_t *dim) {
    remat_desc desc = {.dtype = dtype, .rank = rank};
    for (int i = 0; i < REMAT_MAX_RANK; i++) desc.dim[i] = i < rank ? dim[i] : 1;
    return desc;
}

int64_t rm_desc_count(const remat_desc *desc) {
    int64_t count = 1;
    for (int i = 0; i < desc->rank; i++) count *= desc->dim[i];
    return count;
}

uint64_t rm_desc_bytes(const remat_desc *desc) { return (uint64_t)rm_desc_count(desc) * rm_dtype_bytes(desc->dtype); }

bool rm_desc_equal(const remat_desc *a, const remat_desc *b) {
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

int64_t rm_desc_last(const remat_desc *desc) { return desc->rank > 0 ? desc->dim[desc->rank - 1] : 1; }
int64_t rm_desc_rows(const remat_desc *desc) { return rm_desc_count(desc) / rm_desc_last(desc); }

const char *rm_desc_text(const remat_desc *desc, char *buffer) {
    static const char *const name[] = {"f32", "f64", "i32"};
    const char *dtype = (unsigned)desc->dtype < sizeof name / sizeof *name ? name[desc->dtype] : "no dtype";
    int n = snprintf(buffer, REMAT_DESC_TEXT, "%s (", dtype);
    for (int i = 0; i < desc->rank && i < REMAT_MAX_RANK; i++)
        n += snprintf(buffer + n, REMAT_DESC_TEXT - (size_t)n, i ? ",%lld" : "%lld", (long long)desc->dim[i]);
    snprintf(buffer + n, REMAT_DESC_TEXT - (size_t)n, ")");
    return buffer;
}

int64_t remat_desc_count(const remat_desc *desc) { return desc ? rm_desc_count(desc) : 0; }
uint64_t remat_desc_bytes(const remat_desc *desc) { return desc ? rm_desc_bytes(desc) : 0; }
const char *remat_desc_text(const remat_desc *desc, char *buffer) {
    return desc && buffer ? rm_desc_text(desc, buffer) : NULL;
}

remat_status rm_desc_check(const remat_desc *desc, const char *what) {
    REQUIRE(desc->rank >= 0 && desc->rank <= REMAT_MAX_RANK, INVALID, "%s has rank %d: use a rank from 0 to %d", what,
            desc->rank, REMAT_MAX_RANK);
    REQUIRE((unsigned)desc->dtype <= REMAT_I32, INVALID, "%s has unknown dtype %d", what, (int)desc->dtype);
    int64_t bytes = (int64_t)rm_dtype_bytes(desc->dtype);
    for (int i = 0; i < desc->rank; i++) {
        REQUIRE(desc->dim[i] >= 1, INVALID, "%s has dimension %d of size %lld: every size must be at least 1", what, i,
                (long long)desc->dim[i]);
        REQUIRE(!__builtin_mul_overflow(bytes, desc->dim[i], &bytes) && bytes < INT64_MAX / 4, INVALID,
                "%s is too large: its byte count must be below 2^61", what);
    }
    return REMAT_OK;
}
