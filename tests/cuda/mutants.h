/* mutants.h: launches of broken kernels (mutants.cu); `out` is one float. Two of them are correct: `waits`, and
 * `counts_its_grid`, which adds 6 in each of its 6 threads. */
#ifndef RM_TEST_CUDA_MUTANTS_H
#define RM_TEST_CUDA_MUTANTS_H

#ifdef __cplusplus
extern "C" {
#endif

void rm_mutant_waits(float *out), rm_mutant_races(float *out), rm_mutant_races_blocks(float *out);
void rm_mutant_races_ahead(float *out);
void rm_mutant_returns_early(float *out), rm_mutant_waits_elsewhere(float *out), rm_mutant_leaves_its_warp(float *out);
void rm_mutant_waits_alone(float *out), rm_mutant_counts_its_grid(float *out);

/* Clusters of blocks. For some steps each block sends a number of each thread to all blocks. *out is one of the last
 * numbers. */
enum { RM_MUTANT_CLUSTERS = 2, RM_MUTANT_BLOCKS = 3, RM_MUTANT_THREADS = 64, RM_MUTANT_STEPS = 5 };
typedef enum {
    RM_SOUND,
    RM_EXPECTS_LATE,  /* what others may already have sent: correct */
    RM_ONE_BOX,       /* instead of two: blocks overwrite unread values */
    RM_READS_EARLY,   /* waits for the blocks instead of the mailbox */
    RM_READS_NOTHING, /* reads values that were never written */
    RM_NOT_SENT,      /* one number is missing */
    RM_SENT_TWICE,    /* one number in the last step */
    RM_NOT_OPENED,    /* before its use: a sync is missing */
    RM_OPENED_TWICE,  /* by two threads */
    RM_NOT_EXPECTED,
    RM_EXPECTED_TWICE,
    RM_EXPECTS_LESS,
    RM_EXPECTS_NOTHING,
    RM_EXPECTS_MUCH,  /* more than a GPU can count */
    RM_PHASE_TWO,     /* waits for phase 2 instead of 0 */
    RM_NO_SUCH_RANK,
    RM_SLOT_OUTSIDE,  /* of the block's memory; so is the next one */
    RM_BOX_OUTSIDE,
    RM_BOX_BETWEEN,   /* not aligned to 8 bytes */
    RM_RETURNS,       /* before the others have sent everything */
    RM_SYNCS_IN_PART, /* one thread has returned */
    RM_LAUNCHED_APART,
    RM_LAUNCHED_ALONE,
    RM_TOO_LARGE,     /* a cluster */
    RM_NO_CLUSTER,
} rm_mutant_mistake;
void rm_mutant_hands_on(float *out, rm_mutant_mistake mistake);

#ifdef __cplusplus
}
#endif

#endif
