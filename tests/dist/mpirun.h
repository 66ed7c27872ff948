/* mpirun.h: tests whose ranks are this program again, started by mpirun: PROGRAM mpi WORDS PATH, where PATH is the
 * meeting place. A rank ends with mpi_rank_is_well; the parent counts these with well_under_mpi. */
#ifndef TEST_MPIRUN_H
#define TEST_MPIRUN_H

#include <sys/syscall.h>

#include "tests/dist/ranks.h"

static char own_program[512]; /* the path of this program, found by find_own_program first of all in main */

static inline bool find_own_program(void) {
    return readlink("/proc/self/exe", own_program, sizeof own_program - 1) > 0;
}
static inline bool have_mpirun(void) { return !system("command -v mpirun >/dev/null"); }

/* Called in a rank. */
static inline rm_kv *store_under_mpi(const char *path, int *rank, int *size) {
    const char *rank_text = getenv("OMPI_COMM_WORLD_RANK"), *size_text = getenv("OMPI_COMM_WORLD_SIZE");
    if (!rank_text) rank_text = getenv("PMI_RANK"), size_text = getenv("PMI_SIZE");
    need(rank_text && size_text, "who am I?");
    *rank = atoi(rank_text), *size = atoi(size_text);
    rm_kv *store;
    need_ok(rm_kv_open(&(rm_kv_config){.path = path, .rank = *rank, .size = *size, .timeout_ms = 60000}, &store));
    return store;
}
/* mpirun kills all ranks when one ends without MPI_Finalize: a rank that is well waits until `expected` ranks are, and closes its
 * store. */
static inline int mpi_rank_is_well(rm_kv *store, int rank, int expected) {
    int64_t well = 0;
    fprintf(stderr, "rank %d is well\n", rank);
    need_ok(rm_kv_add(store, "well", 1, &well));
    for (double start = seconds(); well < expected && seconds() < start + 60; nap_ms(10))
        need_ok(rm_kv_add(store, "well", 0, &well));
    rm_kv_close(store);
    nap_ms(200);                /* for mpirun to pass on what the others have printed */
    syscall(SYS_exit_group, 0); /* skips the exit handlers of MPI and sanitizers, which fail after a rank has died */
    return 0;
}

/* The number of ranks that end well. MPI itself leaks, and its launcher kills all ranks when one has died: Open MPI's
 * after a second, MPICH's at once unless told otherwise. The test therefore counts what ranks print, which is returned
 * in `said`. */
static inline int well_under_mpi(int size, const char *words, char *said, size_t bytes) {
    char command[1400], line[512];
    int well = 0;
    snprintf(
        command, sizeof command,
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none " /* Open MPI 4 */
        "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none "      /* 5 */
        "ASAN_OPTIONS=detect_leaks=0 mpirun $(mpirun --version | grep -q HYDRA && echo -disable-auto-cleanup) " /* MPICH */
        "-np %d '%s' mpi %s %s 2>&1",
        size, own_program, words, meeting_place());
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    said[0] = 0;
    while (fgets(line, sizeof line, pipe)) {
        well += strstr(line, "is well") != NULL;
        if (strlen(said) + strlen(line) < bytes) strcat(said, line);
    }
    pclose(pipe);
    return well;
}

#endif
