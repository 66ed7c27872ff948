/* uniform.h: the best nested segments of a chain whose stages are alike, as the tiles of a recurrent net are; the last may
 * differ. The binomial schedule (tests/memory/binomial.h), in bytes instead of slots: a segment at the end of all nesting is kept
 * whole, each stage in whichever option the bytes allow, and how long it may be depends on how many states are held
 * outside it. Costs no more than a table of as many rows as states fit; the plan is found without looking at every split.
 *
 * Differs from nest.h, which takes any chain, in finding segments of any length in a chain of any length. */
#ifndef RM_UNIFORM_H
#define RM_UNIFORM_H

#include "memory/footprint.h"
#include "memory/groups.h"
#include "memory/strategy.h"

typedef struct rm_uniform rm_uniform;

/* *out stays NULL if the stages are not alike. MEMORY. The footprint must outlive it. */
remat_status rm_uniform_make(const rm_footprint *footprint, rm_uniform **out);
void rm_uniform_free(rm_uniform *uniform);

/* Budgets worth trying, from the least to where everything is kept. The more stages fit, the closer they are: a plan of few
 * long segments is weighed in no time. At most RM_UNIFORM_LIMITS of them; answers how many. */
#define RM_UNIFORM_LIMITS 512
int rm_uniform_limits(const rm_uniform *uniform, uint64_t *limit);

/* What the plan for a limit takes. *fits: false: there is none, and nothing else is filled. MEMORY. */
remat_status rm_uniform_weigh(rm_uniform *uniform, uint64_t limit, bool *fits, uint64_t *peak_bytes, uint64_t *time_ns,
                              rm_drops *drops);

/* Appends that plan's runs. segments: as in nest.h. */
remat_status rm_uniform_write(rm_uniform *uniform, uint64_t limit, rm_plan *plan, int64_t *segments);

#endif
