/* processors.h: the number of processors that this process can keep busy: those of its affinity mask, but no more than
 * its container may use. A container is limited by a quota of processor time on a control group (cgroup, version 1 or
 * 2) of this process or on an ancestor of that group. Threads that exceed the quota are stopped for the rest of each
 * period, and the threads that wait for them lose that time, too. */
#ifndef RM_PROCESSORS_H
#define RM_PROCESSORS_H

typedef struct {
    int allowed;     /* in the affinity mask */
    double quota;    /* the smallest quota of all groups, in processors; 0: none */
    char limit[256]; /* the file that sets the quota; "": none */
    int usable;      /* the smaller of the two, with the quota rounded down; at least 1 */
} rm_processors;

/* Read once, on the first call. */
const rm_processors *rm_processors_get(void);

/* For tests: reads the files under `root` ("": this machine's); sets what rm_processors_get returns from now on (NULL:
 * what it has read). */
rm_processors rm_processors_read(const char *root);
void rm_processors_pretend(const rm_processors *processors);

#endif
