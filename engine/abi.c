/* abi.c: what passes between this library and structs of another size (abi.h). */
#include "engine/abi.h"

#include <stdlib.h>
#include <string.h>

#include "engine/remat_op.h"

/* ---- What may not change, ever: these are passed by value, or lie in arrays and in other structs of programs. ---------- */

_Static_assert(sizeof(remat_value) == 4 && sizeof(remat_init) == 16, "passed by value");
_Static_assert(sizeof(remat_external) == 16, "lies in arrays");
_Static_assert(sizeof(remat_desc) == 72 && sizeof(remat_tensor) == 80 && sizeof(remat_key) == 24, "lie in arrays");
_Static_assert(sizeof(remat_sample) == 16 + REMAT_MAX_INPUTS * sizeof(remat_desc) + sizeof(void *), "lies in arrays");
_Static_assert(sizeof(remat_op_device) == 8 * sizeof(void *) && REMAT_DEVICE_KINDS == 2, "lies amid remat_op");
_Static_assert(REMAT_MAX_RANK == 8 && REMAT_MAX_INPUTS == 16 && REMAT_MAX_STATES == 8 && REMAT_LIVE_KINDS == 4 &&
                   REMAT_DESC_TEXT == 192,
               "lengths of programs' arrays");

/* ---- What may grow, at its end. Padding there would be bytes that older programs count and never set. ------------------ */

#define ENDS_WITH(member, type)                                                                                        \
    _Static_assert(offsetof(type, member) + sizeof(((type *)0)->member) == sizeof(type),                               \
                   "name the new last member here, and leave no padding behind it")
ENDS_WITH(output, remat_cell);
ENDS_WITH(loss_mean, remat_config);
ENDS_WITH(poll, remat_ranks);
ENDS_WITH(join_timeout_ms, remat_job_config);
ENDS_WITH(seed, remat_sampler_config);
ENDS_WITH(denominator, remat_op);

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

remat_status rm_take(void *to, size_t to_bytes, const void *from, size_t from_bytes, const char *type) {
    REQUIRE(from_bytes, INVALID, "a %s says that it has 0 bytes; set its struct_bytes to sizeof(%s)", type, type);
    for (size_t i = to_bytes; i < from_bytes; i++)
        REQUIRE(!((const unsigned char *)from)[i], INVALID,
                "byte %zu of a %s is set, which in Remat " REMAT_VERSION
                " has %zu: the program was compiled for a later Remat; install that, or leave it zero",
                i, type, to_bytes);
    size_t both = smaller(to_bytes, from_bytes);
    memcpy(to, from, both);
    memset((char *)to + both, 0, to_bytes - both);
    return REMAT_OK;
}

void rm_give(void *to, size_t to_bytes, const void *from, size_t from_bytes) {
    size_t both = smaller(to_bytes, from_bytes);
    if (!to) return;
    memcpy(to, from, both);
    memset((char *)to + both, 0, to_bytes - both);
}

remat_status rm_give_list(void **list, int64_t count, size_t bytes, size_t their_bytes) {
    if (bytes == their_bytes) return REMAT_OK;
    char *theirs = calloc((size_t)count + 1, their_bytes);
    REQUIRE(theirs, MEMORY, "out of memory for a list of %lld", (long long)count);
    for (int64_t i = 0; i < count; i++)
        rm_give(theirs + (size_t)i * their_bytes, their_bytes, (char *)*list + (size_t)i * bytes, bytes);
    free(*list);
    *list = theirs;
    return REMAT_OK;
}
