/* jobs.h: what tests of jobs that `remat launch` starts share: which processes a job has, when it has saved a state, and
 * whether two training states have the same bits. */
#ifndef RM_TESTS_JOBS_H
#define RM_TESTS_JOBS_H

#include "tests/train/train_test.h"
#include "train/state/state.h"

#include <dirent.h>

/* ---- Processes of a job ---- */

static inline pid_t parent_of(const char *pid) {
    char path[300], line[512];
    int parent = -1;
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *file = fopen(path, "r");
    char *name_end = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    if (name_end && sscanf(name_end + 1, " %*c %d", &parent) != 1) parent = -1;
    if (file) fclose(file);
    return parent;
}

static inline int children_of(pid_t parent, pid_t *child, int most) {
    DIR *stream = opendir("/proc");
    struct dirent *entry;
    int n = 0;
    ck_assert_ptr_nonnull(stream);
    while ((entry = readdir(stream)) && n < most)
        if (*entry->d_name >= '1' && *entry->d_name <= '9' && parent_of(entry->d_name) == parent)
            child[n++] = (pid_t)atoi(entry->d_name);
    closedir(stream);
    return n;
}

/* The launcher has a supervisor, which has the ranks. */
static inline int ranks_of(pid_t launcher, pid_t *rank, int most) {
    pid_t supervisor;
    return children_of(launcher, &supervisor, 1) == 1 ? children_of(supervisor, rank, most) : 0;
}

static char last_progress[RM_PATH_BYTES]; /* "": none yet */

/* Whether the job has saved a new state in this directory of the scratch. */
static inline bool has_progressed(const char *directory) {
    char state[RM_PATH_BYTES];
    bool found;
    bool failed = rm_state_find(in_scratch(directory), state, &found); /* the directory was being changed */
    if (failed || !found || !strcmp(state, last_progress)) return false;
    strcpy(last_progress, state);
    return true;
}

static inline void wait_for_progress(const char *directory) {
    for (int waited = 0; waited < 100000; waited++) {
        if (has_progressed(directory)) return;
        wait_ms(1);
    }
    ck_abort_msg("there is no state after '%s' in %s", last_progress, directory);
}

static inline void same_files(const char *a, const char *b) {
    static const char *const files[] = {"model.safetensors", "*.safetensors"};
    for (int i = 0; i < 2; i++) {
        char command[3 * RM_PATH_BYTES];
        snprintf(command, sizeof command, "cd %s && ls %s >/dev/null && for f in %s; do cmp $f %s/$f || exit 1; done",
                 a, files[i], files[i], b);
        ck_assert_msg(system(command) == 0, "%s of %s and %s differ", files[i], a, b);
    }
}

#endif
