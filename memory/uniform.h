/* uniform.h: the best nested segments of a chain of equal stages, such as the tiles of a recurrent net; the last stage
 * may differ. It is the binomial schedule (tests/memory/binomial.h) with bytes instead of slots: a segment at the
 * innermost level is kept whole, each stage in the option that the bytes allow, and its length depends on the number of
 * states held outside it. It needs only a table with one row for each state that fits, and finds the plan without
 * trying every split.
 *
 * Unlike nest.h, which takes any chain, it finds segments of any length in a chain of any length. */
#ifndef RM_UNIFORM_H
#define RM_UNIFORM_H

#include "memory/footprint.h"
#include "memory/groups.h"
#include "memory/strategy.h"

typedef struct rm_uniform rm_uniform;

/* *out stays NULL if the stages are not equal. The footprint must outlive *out. MEMORY. */
remat_status rm_uniform_make(const rm_footprint *footprint, rm_uniform **out);
void rm_uniform_free(rm_uniform *uniform);

/* Budgets worth trying, from the minimum to the size at which everything is kept. The more stages fit, the closer the
 * budgets are, since a plan of few long segments is estimated quickly. Returns their number, at most
 * RM_UNIFORM_LIMITS. */
#define RM_UNIFORM_LIMITS 512
int rm_uniform_limits(const rm_uniform *uniform, uint64_t *limit);

/* Estimates the plan for a limit. *fits == false: there is no plan, and nothing else is filled. MEMORY. */
remat_status rm_uniform_weigh(rm_uniform *uniform, uint64_t limit, bool *fits, uint64_t *peak_bytes, uint64_t *time_ns,
                              rm_drops *drops);

/* Appends the runs of that plan. segments: as in nest.h. */
remat_status rm_uniform_write(rm_uniform *uniform, uint64_t limit, rm_plan *plan, int64_t *segments);

#endif
