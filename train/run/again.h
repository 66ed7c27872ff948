/* again.h: a rank of an elastic job (docs/distributed.md) joins the job's next world by loading the program again, which frees
 * whatever the last world left. */
#ifndef RM_AGAIN_H
#define RM_AGAIN_H

#include <stdbool.h>

/* Counts a world that this process leaves. False: it has left too many in a row without a step of its own (`made_steps`), and
 * the next failure would be the same one. */
bool rm_again_counts(bool made_steps);

/* Replaces this process by the same program with the same words. Any thread may call it. Returns if that is not possible. */
void rm_again_load(void);

#endif
