/* launchers.c: see launchers.h. */
#include "dist/launch/launchers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/store/hostlist.h"

const char *rm_launcher_text(rm_launcher launcher) {
    static const char *const names[] = {"nobody", "the flags", "torchrun's variables", "Slurm", "Open MPI",
                                        "PMIx",   "PMI"};
    return names[launcher];
}

/* ---- Variables --------------------------------------------------------------------------------------------------- */

const char *rm_variable(const rm_variables *v, const char *name) {
    const char *value = v->get(v->context, name);
    return value && value[0] ? value : NULL;
}

remat_status rm_variable_number(const rm_variables *v, const char *name, int64_t *out) {
    const char *value = rm_variable(v, name);
    char *end;
    *out = -1;
    if (!value) return REMAT_OK;
    errno = 0;
    long long n = strtoll(value, &end, 10);
    REQUIRE(!errno && end != value && !*end && n >= 0 && n <= INT32_MAX, INVALID,
            "the environment has %s='%.60s', which is not a whole number from 0", name, value);
    *out = n;
    return REMAT_OK;
}

/* ---- One function per launcher ----------------------------------------------------------------------------------- */

static const rm_answer nothing_said = {.size = -1, .rank = -1, .local_rank = -1, .local_size = -1, .nodes = -1};

static remat_status ask_torchrun(const rm_variables *v, rm_answer *out) {
    out->launcher = RM_BY_TORCHRUN;
    TRY(rm_variable_number(v, "WORLD_SIZE", &out->size));
    TRY(rm_variable_number(v, "RANK", &out->rank));
    TRY(rm_variable_number(v, "LOCAL_RANK", &out->local_rank));
    TRY(rm_variable_number(v, "LOCAL_WORLD_SIZE", &out->local_size));
    TRY(rm_variable_number(v, "GROUP_WORLD_SIZE", &out->nodes));
    if (out->rank < 0) out->launcher = RM_BY_NOBODY; /* rendezvous.c checks a WORLD_SIZE without a rank */
    return REMAT_OK;
}

/* The number of tasks on this node, if Slurm gives it; otherwise unknown. */
static remat_status slurm_local_size(const rm_variables *v, rm_answer *out) {
    int64_t node;
    const char *tasks = rm_variable(v, "SLURM_STEP_TASKS_PER_NODE");
    TRY(rm_variable_number(v, "SLURM_NODEID", &node));
    return tasks && node >= 0 ? rm_tasks_on_node(tasks, node, &out->local_size) : REMAT_OK;
}

/* Slurm's variables also exist in a batch script and in an salloc shell, where they describe the allocation and not
 * this process. Only a step, which srun starts, has a node list of its own. */
static remat_status ask_slurm(const rm_variables *v, rm_answer *out) {
    int64_t tasks;
    out->launcher = RM_BY_SLURM;
    TRY(rm_variable_number(v, "SLURM_NTASKS", &out->size));
    TRY(rm_variable_number(v, "SLURM_PROCID", &out->rank));
    TRY(rm_variable_number(v, "SLURM_LOCALID", &out->local_rank));
    TRY(rm_variable_number(v, "SLURM_STEP_NUM_TASKS", &tasks)); /* srun -n inside a larger allocation */
    if (tasks > 0) out->size = tasks;
    TRY(rm_variable_number(v, "SLURM_STEP_NUM_NODES", &out->nodes));
    if (out->nodes < 0) TRY(rm_variable_number(v, "SLURM_NNODES", &out->nodes));
    if (!rm_variable(v, "SLURM_STEP_NODELIST") || out->rank < 0) out->launcher = RM_BY_NOBODY;
    return out->launcher ? slurm_local_size(v, out) : REMAT_OK;
}

static remat_status ask_open_mpi(const rm_variables *v, rm_answer *out) {
    out->launcher = RM_BY_OPEN_MPI;
    TRY(rm_variable_number(v, "OMPI_COMM_WORLD_SIZE", &out->size));
    TRY(rm_variable_number(v, "OMPI_COMM_WORLD_RANK", &out->rank));
    TRY(rm_variable_number(v, "OMPI_COMM_WORLD_LOCAL_RANK", &out->local_rank));
    TRY(rm_variable_number(v, "OMPI_COMM_WORLD_LOCAL_SIZE", &out->local_size));
    if (out->rank < 0 && out->size < 0) out->launcher = RM_BY_NOBODY;
    if (out->launcher && out->local_size == out->size) out->nodes = 1;
    return REMAT_OK;
}

static bool is_same(const rm_answer *a, const rm_answer *b) {
    return a->rank == b->rank && (a->size == b->size || a->size < 0 || b->size < 0);
}

/* srun's MPI plugins repeat a part of Slurm's variables. */
static remat_status is_said_by_slurm(const rm_variables *v, const rm_answer *a, bool *out) {
    rm_answer slurm = nothing_said;
    TRY(ask_slurm(v, &slurm));
    *out = slurm.launcher && is_same(a, &slurm);
    return REMAT_OK;
}

/* The variables of the mpiexec of MPICH and Intel MPI. */
static remat_status ask_pmi(const rm_variables *v, rm_answer *out) {
    bool again;
    TRY(rm_variable_number(v, "PMI_SIZE", &out->size));
    TRY(rm_variable_number(v, "PMI_RANK", &out->rank));
    TRY(rm_variable_number(v, "MPI_LOCALRANKID", &out->local_rank));
    TRY(rm_variable_number(v, "MPI_LOCALNRANKS", &out->local_size));
    TRY(is_said_by_slurm(v, out, &again));
    if (!again && (out->rank >= 0 || out->size >= 0)) out->launcher = RM_BY_PMI;
    return REMAT_OK;
}

static remat_status ask_pmix(const rm_variables *v, rm_answer *out) {
    bool again;
    TRY(rm_variable_number(v, "PMIX_RANK", &out->rank));
    TRY(is_said_by_slurm(v, out, &again));
    again = again || rm_variable(v, "OMPI_COMM_WORLD_RANK"); /* which is based on PMIx */
    if (!again && out->rank >= 0) out->launcher = RM_BY_PMIX;
    return REMAT_OK;
}

/* ---- Several launchers at once ----------------------------------------------------------------------------------- */

const char *rm_answer_text(const rm_answer *a, char *out, size_t bytes) {
    char of[32] = "";
    if (a->size >= 0) snprintf(of, sizeof of, " of %" PRId64, a->size);
    snprintf(out, bytes, "rank %" PRId64 "%s (%s)", a->rank, of, rm_launcher_text(a->launcher));
    return out;
}

/* Whether each task of the outer launcher has started equally many ranks of `inner`, in order. */
static bool is_nested(const rm_answer *inner, const rm_answer *outer) {
    if (inner->size <= outer->size || outer->size < 1 || inner->size % outer->size) return false;
    return inner->rank / (inner->size / outer->size) == outer->rank;
}

/* Whether `chosen` is consistent with another launcher's answer. torchrun and `remat launch` are often started by
 * others, once per host or once for each of many jobs; mpirun starts its daemons by srun. Variables set by hand, or
 * left over from an earlier launcher, must give the same answer or divide each task into ranks. */
static bool goes_with(const rm_variables *v, const rm_answer *chosen, const rm_answer *other) {
    if (is_same(chosen, other)) return true;
    if (chosen->launcher == RM_BY_TORCHRUN) return rm_variable(v, "TORCHELASTIC_RUN_ID") || is_nested(chosen, other);
    return other->launcher == RM_BY_SLURM && chosen->size >= other->size;
}

static remat_status check_together(const rm_variables *v, const rm_answer *chosen, const rm_answer *other) {
    char mine[80], theirs[80];
    REQUIRE(goes_with(v, chosen, other), INVALID,
            "the environment contradicts itself: this is %s, and %s. Unset the variables of the launcher that did not "
            "start this process, or give both {world_size} and {rank}",
            rm_answer_text(chosen, mine, sizeof mine), rm_answer_text(other, theirs, sizeof theirs));
    return REMAT_OK;
}

/* The launcher nearest to this process comes first. */
remat_status rm_launchers_ask(const rm_variables *v, rm_answer *out) {
    remat_status (*const ask[])(const rm_variables *, rm_answer *) = {ask_torchrun, ask_open_mpi, ask_pmi, ask_slurm,
                                                                      ask_pmix};
    *out = nothing_said;
    for (size_t i = 0; i < sizeof ask / sizeof *ask; i++) {
        rm_answer one = nothing_said;
        TRY(ask[i](v, &one));
        if (!one.launcher) continue;
        if (out->launcher) TRY(check_together(v, out, &one));
        if (!out->launcher) *out = one;
    }
    return REMAT_OK;
}

/* Variables of other launchers that indicate several ranks: a size above 1, or a rank other than the first. None of
 * these launchers gives rank 0's address. MPI's launchers also set PMI's variables if MPI itself could find its
 * ranks. */
remat_status rm_launchers_check_alone(const rm_variables *v) {
    static const struct {
        const char *name;
        int64_t alone; /* the largest value that a single rank may have */
    } hints[] = {{"LOCAL_WORLD_SIZE", 1},
                 {"LOCAL_RANK", 0},
                 {"MPI_LOCALNRANKS", 1}, /* MPICH, Intel MPI */
                 {"MPI_LOCALRANKID", 0},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", 1},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", 0},
                 {"MV2_COMM_WORLD_SIZE", 1}, /* MVAPICH2 */
                 {"MV2_COMM_WORLD_RANK", 0},
                 {"MV2_COMM_WORLD_LOCAL_SIZE", 1},
                 {"PALS_NRANKS", 1}, /* HPE Cray */
                 {"PALS_RANKID", 0},
                 {"PALS_LOCAL_SIZE", 1},
                 {"PALS_LOCAL_RANKID", 0},
                 {"FLUX_JOB_SIZE", 1}, /* Flux */
                 {"FLUX_TASK_RANK", 0},
                 {"JSM_NAMESPACE_SIZE", 1}, /* jsrun */
                 {"JSM_NAMESPACE_RANK", 0}};
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        int64_t said;
        TRY(rm_variable_number(v, hints[i].name, &said));
        REQUIRE(
            said <= hints[i].alone, INVALID,
            "the environment has %s=%" PRId64
            ", so this is one of several ranks, but nothing that Remat understands says which one of how many: start "
            "ranks with remat launch, torchrun, srun or mpirun, or give each {world_size}, {rank} and {init_method}. "
            "(For one rank on purpose: {world_size}=1 {rank}=0)",
            hints[i].name, said);
    }
    return REMAT_OK;
}

/* With torchrun's variables but without a job name, each rank may have been started by hand. mpirun accepts several
 * command lines at once. So does srun, with --multi-prog, but its variables do not show it. */
bool rm_launcher_repeats(const rm_variables *v, rm_launcher launcher) {
    const char *lines = rm_variable(v, "OMPI_NUM_APP_CTX");
    if (launcher == RM_BY_TORCHRUN) return rm_variable(v, "TORCHELASTIC_RUN_ID") != NULL;
    if (launcher == RM_BY_OPEN_MPI) return lines && !strcmp(lines, "1");
    return launcher == RM_BY_SLURM;
}
