/* ranks.h: connects this process with the other ranks of a job: turns flags and a launcher's variables into a group
 * (dist/). Everything that ranks exchange besides gradients goes through this file: whether all are ready, whether
 * their flags agree, whether to stop.
 *
 *     rm_ranks_open(options, NULL, &ranks);                     // who am I, of how many; meet the others
 *     status = rm_ranks_agree(&ranks, what_each_does_alone());  // one fails: all stop, one says why
 *     rm_ranks_connect(&ranks, options, facts);                 // compare; from here there is a table for sessions
 *     config.ranks = rm_ranks_table(&ranks);
 *     ...                                                       // sessions are freed before rm_ranks_close
 *     rm_ranks_close(&ranks);
 *
 * Without a launcher, or as the only rank, a process is alone (size 1): nothing is opened, no thread is started,
 * and every function here returns at once. A rank that fails during collective work calls rm_ranks_failed, which
 * tells the others. */
#ifndef RM_TRAIN_RANKS_H
#define RM_TRAIN_RANKS_H

#include "dist/ddp/ddp.h"
#include "dist/group/pipe.h"
#include "dist/store/rendezvous.h"
#include "train/flags/options.h"
#include "train/ranks/lateness.h"

#define RM_PEER_STATUS 3 /* exit status when another rank failed */

typedef struct rm_ranks_watch rm_ranks_watch;

/* Must not move while it is open. */
typedef struct {
    int32_t rank, size; /* 0 of 1: alone */
    /* With --pipeline, `parts` ranks share one network, and are one of `replicas` */
    int32_t replica, replicas, part, parts;
    int32_t sharing,
        sharing_quota; /* ranks that share this one's processors or its container's quota, including itself */
    char host[RM_HOST_BYTES];
    char join_name[40], silence_name[40]; /* the flags of the two timeouts, for the group's messages */
    bool quiet;                           /* another rank of this host reports what ranks wait for */
    rm_kv *meeting;                       /* the store through which ranks met; NULL: MPI connected them */
    rm_kv *store;                         /* the same, or the group's store; borrowed */
    rm_group *group;                      /* of all ranks; NULL: alone */
    rm_group *same;             /* of ranks with the same layers: all ranks, without a pipeline; NULL: one replica */
    rm_pipe *pipe;              /* of ranks that share a network; NULL: none */
    remat_pipeline pipeline;    /* for sessions, with `cut` once it is known */
    char *cut;                  /* owns it */
    rm_group *gpus;             /* a second group, for gradients on GPUs; NULL: none */
    rm_ddp *ddp, *all;          /* over `same` and `group`, from rm_ranks_connect on; NULL: alone */
    remat_ranks replicas_table; /* rm_ranks_replicas */
    rm_ranks_watch *watch;
    rm_lateness lateness;
    int32_t *heed;       /* what rm_ranks_heed adds up */
    uint64_t blocked_ns; /* in collectives, until the last rm_ranks_heed */
    bool over;           /* all ranks know that the job has failed, and the reason */
    bool alike;          /* ... and have failed with the same status */
    /* While ranks get ready in a job that goes on: those that cannot take part, or differ from rank 0, end, and the others get
     * PEER, so that they join again without them. */
    bool selective;
} rm_ranks;

/* Joins the other ranks, if there are any. Sets options->world_size to the number of ranks. If neither --threads
 * nor OMP_NUM_THREADS is given, sets options->session.threads to this rank's share of the processors. Close even
 * after an error. `observer` may be NULL. */
remat_status rm_ranks_open(rm_options *options, const remat_observer *observer, rm_ranks *out);
void rm_ranks_close(rm_ranks *ranks);
/* Before rm_ranks_close in a process that loads another program next: rank 0 does not wait until the others have closed
 * its store, as a stopped rank does not. On engines that look there for the cause of a failure it waits all the same. */
void rm_ranks_hurry(rm_ranks *ranks);

/* Collective: OK if `mine` is OK on all ranks. Otherwise all ranks get the status of the first rank that failed. If
 * several ranks have the same message, or one has printed its own, only the first of them keeps it. On a rank that did not fail,
 * remat_last_error is "". */
remat_status rm_ranks_agree(rm_ranks *ranks, remat_status mine);

/* For a failure that is the same on all ranks: only rank 0 keeps the message. Returns `status`. */
remat_status rm_ranks_fail_alike(rm_ranks *ranks, remat_status status);

/* Collective, after connecting: INVALID on all ranks if their texts differ, which have one item per line. The
 * message names two ranks and the first difference; `what` is its subject. */
remat_status rm_ranks_compare(rm_ranks *ranks, const char *what, const char *text);

/* Collective: connects sessions, and compares the flags that must be the same, and `facts`. */
remat_status rm_ranks_connect(rm_ranks *ranks, const rm_options *options, const char *facts);
const remat_ranks *rm_ranks_table(const rm_ranks *ranks); /* NULL: the only replica */
/* The replicas as ranks, whose `sum` is over all ranks of all pipelines. NULL: alone. */
const remat_ranks *rm_ranks_replicas(const rm_ranks *ranks);

/* Collective: sessions get rank 0's cut of the pipeline from here on. */
remat_status rm_ranks_set_cut(rm_ranks *ranks, const char *cut);

/* Sessions that are created from now on have buckets of options->bucket_cap_mb. */
remat_status rm_ranks_set_buckets(rm_ranks *ranks, const rm_options *options);

/* Collective: returns rank 0's text on all ranks; the caller frees it with rm_free. A single rank gets NULL. */
remat_status rm_ranks_share(rm_ranks *ranks, const char *text, char **out);

/* Collective, before or after connecting: copies rank 0's bytes to all ranks. */
remat_status rm_ranks_tell(rm_ranks *ranks, void *data, int64_t bytes);
/* Collective: copies `bytes` bytes of every rank to `all`, in the order of ranks. */
remat_status rm_ranks_gather(rm_ranks *ranks, const void *mine, int64_t bytes, void *all);

/* Collective: copies rank 0's parameters to every session. */
remat_status rm_ranks_broadcast(rm_ranks *ranks, remat_session *session);
/* Collective: the same for its arrays of one kind. */
remat_status rm_ranks_send_arrays(rm_ranks *ranks, remat_session *session, remat_kind kind);
/* Collective: copies rank 0's buffers (running statistics) to every session, so that an evaluation uses the same
 * network on all ranks. */
remat_status rm_ranks_share_buffers(rm_ranks *ranks, remat_session *session);

/* Collective: *bytes becomes the largest of all ranks. */
remat_status rm_ranks_most(rm_ranks *ranks, uint64_t *bytes);

/* Collective: shares signals. *stop is the signal that asks this rank to stop, or 0; it becomes the signal of any
 * rank, SIGTERM before SIGHUP before SIGINT. *save: whether this rank was asked to save; it becomes whether any
 * rank was. *again: whether this rank was called to join other ranks (dist/launch/world.h); likewise. Also shares how
 * long this rank was blocked in collectives since the last call. */
remat_status rm_ranks_heed(rm_ranks *ranks, int *stop, bool *save, bool *again);

/* The rank that the others have waited for longest since the first rm_ranks_heed, and how much longer than it for them,
 * on average. rank -1: this process is alone. */
typedef struct {
    int32_t rank;
    double waited_s;
    char host[RM_HOST_BYTES];
} rm_straggler;
remat_status rm_ranks_straggler(rm_ranks *ranks, rm_straggler *out); /* collective */

/* Tells the other ranks about a failure that they do not know of, and puts "rank 3 of 8 on HOST" before its
 * message. If this rank has heard of another rank's failure, prints that at once, with `command` at the start of
 * the line. Returns `status`. */
remat_status rm_ranks_failed(rm_ranks *ranks, const char *command, remat_status status);

/* Waits a moment, because a launcher names the rank that ends first: that should be the rank that failed first. */
void rm_ranks_let_others_go_first(void);

/* A table for options->world_size ranks, for sessions that only plan. NULL if that is one or not given. */
const remat_ranks *rm_ranks_imagined(const rm_options *options, remat_ranks *table);

#endif
