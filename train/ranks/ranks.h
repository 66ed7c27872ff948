/* ranks.h: this process among the ranks of a job: from flags and a launcher's variables to a group (dist/), and back. What
 * the ranks say to each other beside gradients is said here: are we all ready, do we mean the same, shall we stop.
 *
 *     rm_ranks_open(options, &ranks);                           // who am I, of how many; meet the others
 *     status = rm_ranks_agree(&ranks, what_each_does_alone());  // one fails: all stop, one says why
 *     rm_ranks_connect(&ranks, options, facts);                 // compare; from here there is a table for sessions
 *     config.ranks = rm_ranks_table(&ranks);
 *     ...                                                       // sessions are freed before rm_ranks_close
 *     rm_ranks_close(&ranks);
 *
 * A process that nobody launched, or that is the only one, is alone (size 1): nothing is opened, no thread started, and
 * every function here returns at once. A failure in the middle of work that all do together is passed through
 * rm_ranks_failed, which tells the others. */
#ifndef RM_TRAIN_RANKS_H
#define RM_TRAIN_RANKS_H

#include "dist/ddp/ddp.h"
#include "dist/store/rendezvous.h"
#include "train/flags/options.h"

#define RM_PEER_STATUS 3 /* the program's, when another rank failed */

typedef struct rm_ranks_watch rm_ranks_watch;

/* Must not move while it is open. */
typedef struct {
    int32_t rank, size; /* 0 of 1: alone */
    int32_t sharing,
        sharing_quota; /* ranks that share this one's processors, or its container's quota; itself included */
    char host[RM_HOST_BYTES];
    char join_name[40], silence_name[40]; /* the flags of the two time-outs, in the group's sentences */
    bool quiet;                           /* what ranks wait for, another of this host says */
    rm_kv *meeting;                       /* where they met; NULL: MPI brought them together */
    rm_kv *store;                         /* the same, or else the group's; borrowed */
    rm_group *group;                      /* NULL: alone */
    rm_group *gpus;                       /* beside it: what travels between GPUs; NULL: there are none */
    rm_ddp *ddp;                          /* from rm_ranks_connect on */
    rm_ranks_watch *watch;
    bool over;  /* all ranks know that the job has failed, and why */
    bool alike; /* ... and have failed alike */
} rm_ranks;

/* Meets the other ranks, if there are any. Leaves their number in options->world_size, and in options->session.threads this rank's
 * share of the processors, where neither --threads nor OMP_NUM_THREADS says anything. Close in any case. */
remat_status rm_ranks_open(rm_options *options, rm_ranks *out);
void rm_ranks_close(rm_ranks *ranks);

/* Collective: OK if `mine` is, on all ranks. Otherwise the status of the first rank that failed, on all; of those that have
 * the same sentence only the first keeps it, and a rank that did not fail has none: remat_last_error is "". */
remat_status rm_ranks_agree(rm_ranks *ranks, remat_status mine);

/* A failure that by its nature all ranks have alike: rank 0 alone keeps the sentence. Returns `status`. */
remat_status rm_ranks_fail_alike(rm_ranks *ranks, remat_status status);

/* Collective: INVALID (alike) where not all ranks have the same text, one thing a line; names two ranks and the first
 * difference. `what` is the subject of that sentence. Once connected. */
remat_status rm_ranks_compare(rm_ranks *ranks, const char *what, const char *text);

/* Collective: connects sessions, and compares the flags that must be the same, and `facts`. */
remat_status rm_ranks_connect(rm_ranks *ranks, const rm_options *options, const char *facts);
const remat_ranks *rm_ranks_table(const rm_ranks *ranks); /* NULL: alone */

/* Collective: rank 0's text on all; the caller frees it with rm_free. Alone: NULL. */
remat_status rm_ranks_share(rm_ranks *ranks, const char *text, char **out);

/* Collective, as soon as they have met: rank 0's bytes on all. */
remat_status rm_ranks_tell(rm_ranks *ranks, void *data, int64_t bytes);

/* Collective: rank 0's parameters into every session. */
remat_status rm_ranks_broadcast(rm_ranks *ranks, remat_session *session);
/* Collective: rank 0's buffers, which are running statistics, to all: an evaluation is of one network. */
remat_status rm_ranks_share_buffers(rm_ranks *ranks, remat_session *session);

/* Collective: has any rank caught a signal? *stop: the one that asks this rank to stop, or 0, becomes that of all: SIGTERM before
 * SIGHUP before SIGINT. *save: is this rank asked to save becomes is any. */
remat_status rm_ranks_heed(rm_ranks *ranks, int *stop, bool *save);

/* Tells the other ranks of a failure that they do not know of, and puts "rank 3 of 8 on HOST" before its sentence. What this
 * rank has heard of another's failure is printed at once; `command` begins the line. Returns `status`. */
remat_status rm_ranks_failed(rm_ranks *ranks, const char *command, remat_status status);

/* Waits a moment: a launcher names the rank that is gone first, and that should be the one where it began. */
void rm_ranks_let_others_go_first(void);

/* The table of as many ranks as options->world_size says, for sessions that only plan. NULL where that is one, or not said. */
const remat_ranks *rm_ranks_imagined(const rm_options *options, remat_ranks *table);

#endif
