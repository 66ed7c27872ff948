/* spill_plans.c: the family of plans that use the second tier (family.h). Still empty: nothing is spilled. */
#include "memory/family.h"

remat_status rm_family_spill(const rm_problem *problem, const rm_wish *wish, rm_family *family) {
    (void)problem, (void)wish;
    *family = (rm_family){0};
    return REMAT_OK;
}
