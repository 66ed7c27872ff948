/* openmp.h: how long OpenMP's threads wait for each other awake. */
#ifndef RM_TRAIN_OPENMP_H
#define RM_TRAIN_OPENMP_H

/* GNU's OpenMP lets a waiting thread spin for some ten milliseconds before it sleeps, where nobody says otherwise. On cores
 * that other programs want too, that is whole time slices spent on nothing: a step takes several times as long. So unless
 * OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, or there is one thread anyway, it is told to spin for about a millisecond. It
 * reads its settings before main begins, hence the program starts itself once more; returns where there is nothing to do, or
 * it cannot be done, which does no harm. */
void rm_openmp_wait_briefly(char **argv);

#endif
