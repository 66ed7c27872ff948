/* abi.c: what passes between this library and structs of another size (abi.h). */
#include "engine/abi.h"

#include <string.h>

#include "engine/remat_op.h"

/* ---- Fixed for good: passed by value, in arrays, in other structs, or filled by the library. ------------------------ */

#define IS_FIXED(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " never changes its size")
IS_FIXED(remat_value, 4);
IS_FIXED(remat_init, 16);
IS_FIXED(remat_value_info, 152);
IS_FIXED(remat_external, 24);
IS_FIXED(remat_desc, 72);
IS_FIXED(remat_tensor, 80);
IS_FIXED(remat_key, 24);
IS_FIXED(remat_cost, 24);
IS_FIXED(remat_sample, 16 + REMAT_MAX_INPUTS * sizeof(remat_desc) + sizeof(void *));
IS_FIXED(remat_op_device, 8 * sizeof(void *));
IS_FIXED(remat_plan_summary, 512);
IS_FIXED(remat_products, 128);
IS_FIXED(remat_recordings, 128);
IS_FIXED(remat_pareto_point, 128);
IS_FIXED(remat_live_point, 128);
IS_FIXED(remat_bucket, 128);
IS_FIXED(remat_array, 192);
IS_FIXED(remat_step_result, 128);
IS_FIXED(remat_build_info, 128);
IS_FIXED(remat_op_report, 64);
_Static_assert(REMAT_MAX_RANK == 8 && REMAT_MAX_INPUTS == 12 && REMAT_MAX_STATES == 4 && REMAT_DESC_TEXT == 192,
               "lengths of programs' arrays");
_Static_assert(REMAT_LIVE_KINDS <= REMAT_MAX_LIVE_KINDS && REMAT_DEVICE_KINDS <= REMAT_MAX_DEVICE_KINDS,
               "there is room for more kinds in structs that are fixed");

/* ---- May grow, at the end. Padding there would be bytes that older programs count and never set. -------------------- */

#define BEGINS_AND_ENDS(type, member)                                                                                  \
    _Static_assert(offsetof(type, struct_bytes) == 0 && sizeof(((type *)0)->struct_bytes) == sizeof(size_t),           \
                   "its length comes first");                                                                          \
    _Static_assert(offsetof(type, member) + sizeof(((type *)0)->member) == sizeof(type),                               \
                   "name the new last member here, and leave no padding after it")
BEGINS_AND_ENDS(remat_cell, output);
BEGINS_AND_ENDS(remat_config, observer);
BEGINS_AND_ENDS(remat_ranks, poll);
BEGINS_AND_ENDS(remat_job_config, observer);
BEGINS_AND_ENDS(remat_observer, event);
BEGINS_AND_ENDS(remat_timeline_config, path);
BEGINS_AND_ENDS(remat_sampler_config, seed);
BEGINS_AND_ENDS(remat_op, constant);

enum { LONGEST = 1 << 16 }; /* longer than any struct will be: what claims more was not initialised */

remat_status rm_struct_bytes(const void *from, size_t *bytes, const char *type) {
    memcpy(bytes, from, sizeof *bytes);
    REQUIRE(*bytes >= sizeof *bytes && *bytes <= LONGEST, INVALID,
            "struct_bytes of a %s is %zu; set its struct_bytes to sizeof(%s)", type, *bytes, type);
    return REMAT_OK;
}

remat_status rm_take(void *to, size_t to_bytes, const void *from, const char *type) {
    size_t from_bytes;
    TRY(rm_struct_bytes(from, &from_bytes, type));
    const size_t both = from_bytes < to_bytes ? from_bytes : to_bytes;
    for (size_t i = to_bytes; i < from_bytes; i++)
        REQUIRE(!((const unsigned char *)from)[i], INVALID,
                "byte %zu of a %s is set, which in Remat " REMAT_VERSION
                " has %zu: the program was compiled for a later Remat; install that, or leave it zero",
                i, type, to_bytes);
    memcpy(to, from, both);
    memset((char *)to + both, 0, to_bytes - both);
    memcpy(to, &to_bytes, sizeof to_bytes);
    return REMAT_OK;
}
