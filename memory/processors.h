/* processors.h: how many processors this process can keep busy: those of its affinity mask, and no more than its container may use. A
 * container's limit is a quota of processor time, in a control group (cgroup, version 1 or 2) of this process or in any group above
 * that one. Threads beyond a quota are stopped for the rest of each period, and the threads that wait for them with them. */
#ifndef RM_PROCESSORS_H
#define RM_PROCESSORS_H

typedef struct {
    int allowed;     /* in the affinity mask */
    double quota;    /* the least quota of all groups, in processors; 0: there is none */
    char limit[256]; /* the file that sets it; "": there is none */
    int usable;      /* the smaller of the two, quotas rounded down; at least 1 */
} rm_processors;

/* Read once, when first asked for. */
const rm_processors *rm_processors_get(void);

/* For tests: what the files under `root` say ("": this machine's); and what rm_processors_get returns from now on (NULL: what it
 * read). */
rm_processors rm_processors_read(const char *root);
void rm_processors_pretend(const rm_processors *processors);

#endif
