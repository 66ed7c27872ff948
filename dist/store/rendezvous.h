/* rendezvous.h: the rank of this process, the number of ranks, and where they meet. The result is a pure function of
 * the command line and of the launchers' environment variables, so that every case can be tested. Main entry:
 * rm_rendezvous_resolve.
 *
 * Sources in this order, each complete in itself:
 *
 *   flags       --world-size --rank [--local-rank]
 *   torchrun    WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE [GROUP_WORLD_SIZE]  (also `remat launch`, or set by hand)
 *   Open MPI    OMPI_COMM_WORLD_SIZE, _RANK, _LOCAL_RANK, _LOCAL_SIZE
 *   PMI         PMI_SIZE PMI_RANK MPI_LOCALRANKID MPI_LOCALNRANKS: the mpiexec of MPICH and Intel MPI
 *   Slurm       SLURM_NTASKS SLURM_PROCID SLURM_LOCALID, in a step that srun started
 *   PMIx        PMIX_RANK; --world-size must give the size
 *
 * Variables of other launchers (MVAPICH2, HPE Cray's PALS, Flux, jsrun), and minor ones of the above when the major
 * ones are missing, are only read to refuse: if one of them indicates several ranks, this is not a run of a single
 * rank.
 *
 * If several sources exist, each must give the same answer or be a launcher that starts other launchers: srun before
 * torchrun or mpirun. Anything else is refused, and the message names both.
 *
 * torchrun has a store of its own at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE); ranks then meet at another port, which
 * is derived from the job's name. `remat launch` listens at MASTER_PORT itself, and rank 0 takes over that socket
 * (REMAT_LISTEN_FD).
 *
 * Flags in addition to a launcher set or override single numbers. Incomplete or contradictory information is an error
 * with a remedy. It never leads to one rank instead of many, or to localhost instead of an unknown host. */
#ifndef RM_RENDEZVOUS_H
#define RM_RENDEZVOUS_H

#include "dist/store/hostlist.h"
#include "dist/store/store.h"

#define RM_MOST_RANKS 32767

/* -1 or NULL: not given. */
typedef struct {
    const char *init_method; /* env://, tcp://HOST:PORT, file:///PATH; NULL: env:// */
    int64_t world_size, rank, local_rank;
} rm_rendezvous_flags;

typedef enum {
    RM_BY_NOBODY,
    RM_BY_FLAGS,
    RM_BY_TORCHRUN,
    RM_BY_SLURM,
    RM_BY_OPEN_MPI,
    RM_BY_PMIX,
    RM_BY_PMI
} rm_launcher;
/* nowhere: a single rank, or MPI connects the ranks */
typedef enum { RM_MEET_NOWHERE, RM_MEET_TCP, RM_MEET_FILE } rm_meeting;

typedef struct {
    rm_launcher launcher; /* the source of the rank */
    int32_t rank, size;
    int32_t local_rank, local_size; /* on this host; -1: unknown */
    rm_meeting meeting;
    char host[RM_HOST_BYTES];
    int32_t port;
    int32_t listen_fd; /* rank 0: a socket of the launcher that already listens there; 0: none */
    int32_t attempt;   /* number of restarts by the launcher so far */
    char path[1024];
    char secret[256]; /* distinguishes this job from others; REMAT_JOB_SECRET or the launcher's name for the job */
} rm_rendezvous;

/* `get(context, name)` is getenv, or a test's table; NULL if unset. An empty value counts as unset. */
typedef const char *rm_environment(void *context, const char *name);
remat_status rm_rendezvous_resolve(const rm_rendezvous_flags *flags, rm_environment *get, void *context,
                                   rm_rendezvous *out);

/* Whether a launcher has started this process with the same command line as rank 0, and this is not rank 0: then rank 0
 * reports what is wrong with it. `same_host`: only if this host has a lower rank (for errors about files, which may
 * differ on other hosts). Changes remat_last_error(). */
bool rm_rendezvous_repeats(rm_environment *get, void *context, bool same_host);

/* Whether a launcher has started this process as one of several ranks, wherever they may meet. `who` becomes "rank 1 of
 * 4 (Slurm)", or "" if not. INVALID if the environment contradicts itself, or indicates several ranks in variables that
 * are not supported. */
remat_status rm_rendezvous_is_rank(rm_environment *get, void *context, char *who, size_t bytes);

rm_environment rm_environment_of_process;           /* getenv; ignores the context */
const char *rm_launcher_text(rm_launcher launcher); /* "Slurm" */
bool rm_host_is_itself(const char *host);           /* "localhost", "0.0.0.0": means the local host on every host */

/* Opens the store that `where` describes; *out is NULL if ranks meet nowhere. `say`: as in rm_kv_config. */
remat_status rm_rendezvous_store(const rm_rendezvous *where, int64_t timeout_ms,
                                 void (*say)(void *context, const char *sentence), void *context, rm_kv **out);

#endif
