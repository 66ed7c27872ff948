/* openmp.h: how long waiting OpenMP threads spin before they sleep. */
#ifndef RM_TRAIN_OPENMP_H
#define RM_TRAIN_OPENMP_H

/* By default, GNU OpenMP lets a waiting thread spin for about ten milliseconds before it sleeps. On cores shared with other programs,
 * that wastes whole time slices, and a step takes several times as long. Unless OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, or there
 * is one thread, this sets a spin of about a millisecond. OpenMP reads its settings before main starts, so the program executes
 * itself again. Returns if there is nothing to do or exec fails, which does no harm. */
void rm_openmp_wait_briefly(char **argv);

#endif
