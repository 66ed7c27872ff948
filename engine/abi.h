/* abi.h: structs of programs that were compiled with another remat.h: shorter if theirs was older, longer if newer.
 * Every struct that a program fills says its length in its first member, `struct_bytes` (docs/promises.md). Also:
 * results by value, for the sources here; the public functions fill structs. */
#ifndef RM_ABI_H
#define RM_ABI_H

#include "engine/status.h"

/* Copies a struct that a program filled; members that theirs lacks become zero. INVALID, naming `type`: struct_bytes is
 * not a length, or a member is set that ours lacks. */
remat_status rm_take(void *to, size_t to_bytes, const void *from, const char *type);

/* The length that a program's struct says it has. INVALID as above. */
remat_status rm_struct_bytes(const void *from, size_t *bytes, const char *type);

remat_plan_summary rm_plan_summary_of(const remat_session *); /* NULL: zeros */
remat_build_info rm_build_info_of_this(void);
remat_bucket rm_bucket_at(const remat_session *, int64_t index); /* index -1 where there is none */

#endif
