/* rendezvous.h: which rank am I, of how many, and where do we meet? Answered from the command line and from what launchers
 * leave in the environment; a pure function of both, so that every case can be tested. Main entry: rm_rendezvous_resolve.
 *
 * In this order, each complete in itself:
 *
 *   flags       --world-size --rank [--local-rank]
 *   torchrun    WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE [GROUP_WORLD_SIZE]  (also `remat launch`, or set by hand)
 *   Open MPI    OMPI_COMM_WORLD_SIZE, _RANK, _LOCAL_RANK, _LOCAL_SIZE
 *   PMI         PMI_SIZE PMI_RANK MPI_LOCALRANKID MPI_LOCALNRANKS: the mpiexec of MPICH and Intel MPI
 *   Slurm       SLURM_NTASKS SLURM_PROCID SLURM_LOCALID, in a step that srun started
 *   PMIx        PMIX_RANK, whose size must be told by --world-size
 *
 * Variables of other launchers (MVAPICH2, HPE Cray's PALS, Flux, jsrun), and the lesser ones of those above where the greater are
 * missing, are looked at only to refuse: where one says that there are several ranks, this is not a run of one.
 *
 * Where several are there, each must give the same answer, or be one that starts such launchers: srun before torchrun or
 * mpirun. Anything else is refused with the names of both.
 *
 * torchrun keeps a store of its own at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE): then ranks meet at another port, which
 * follows from the job's name. `remat launch` listens at MASTER_PORT itself, and rank 0 takes that socket over
 * (REMAT_LISTEN_FD).
 *
 * Flags beside a launcher fill in or override single numbers. Half an answer, or two that contradict each other, is an
 * error with its remedy: never one rank instead of many, never localhost instead of a host that is not known. */
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
typedef enum { RM_MEET_NOWHERE, RM_MEET_TCP, RM_MEET_FILE } rm_meeting; /* nowhere: one rank, or MPI must do it */

typedef struct {
    rm_launcher launcher; /* who said which rank this is */
    int32_t rank, size;
    int32_t local_rank, local_size; /* of this host; -1: not known */
    rm_meeting meeting;
    char host[RM_HOST_BYTES];
    int32_t port;
    int32_t listen_fd; /* rank 0: a socket of the launcher's that listens there already; 0: none */
    int32_t attempt;   /* how often the launcher has started this job again */
    char path[1024];
    char secret[256]; /* tells this job from others; from REMAT_JOB_SECRET, or the launcher's name for the job */
} rm_rendezvous;

/* `get(context, name)` is getenv, or a test's table; NULL when unset. An empty value counts as unset. */
typedef const char *rm_environment(void *context, const char *name);
remat_status rm_rendezvous_resolve(const rm_rendezvous_flags *flags, rm_environment *get, void *context,
                                   rm_rendezvous *out);

/* Has a launcher started this process with the command line that it gave rank 0 too, which this is not? Then rank 0 says what
 * is wrong with that. `same_host`: only if a rank of this host is before this one, as for files, which may differ elsewhere.
 * Changes remat_last_error(). */
bool rm_rendezvous_repeats(rm_environment *get, void *context, bool same_host);

/* Has a launcher started this process as one of several ranks, wherever those may meet? `who` gets "rank 1 of 4 (Slurm)", ""
 * if not. INVALID where the environment contradicts itself, or says so in variables that are not understood. */
remat_status rm_rendezvous_is_rank(rm_environment *get, void *context, char *who, size_t bytes);

rm_environment rm_environment_of_process;           /* getenv; context is not used */
const char *rm_launcher_text(rm_launcher launcher); /* "Slurm" */
bool rm_host_is_itself(const char *host);           /* "localhost", "0.0.0.0": on every host that host itself */

/* Opens the store that `where` describes; *out is NULL where ranks meet nowhere. `say`: as in rm_kv_config. */
remat_status rm_rendezvous_store(const rm_rendezvous *where, int64_t timeout_ms,
                                 void (*say)(void *context, const char *sentence), void *context, rm_kv **out);

#endif
