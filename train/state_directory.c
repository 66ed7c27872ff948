/* state_directory.c: see state_directory.h. */
#include "train/state_directory.h"

#include "memory/host.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "step-00000100" -> 100; -1 for any other name. */
static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9') return -1;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return *end || errno ? -1 : step;
}

void rm_state_piece_name(int64_t rank, int64_t size, char out[RM_STATE_PIECE_NAME]) {
    snprintf(out, RM_STATE_PIECE_NAME, "optimizer-%lld-of-%lld.safetensors", (long long)rank, (long long)size);
}

int64_t rm_state_ranks_of(const char *name) {
    long long rank = -1, size = 0;
    char again[RM_STATE_PIECE_NAME];
    if (sscanf(name, "optimizer-%10lld-of-%10lld.", &rank, &size) != 2 || rank < 0 || rank >= size) return 0;
    rm_state_piece_name(rank, size, again);
    return strcmp(name, again) ? 0 : size;
}

static bool has(const char *state, const char *file) {
    char path[RM_PATH_BYTES];
    return !rm_path_join(path, sizeof path, state, file) && rm_path_exists(path);
}

/* Whether each of as many ranks as the first name says has its pieces there. */
static bool has_all_pieces(const char *state) {
    int64_t size = 0, count = 0;
    struct dirent *entry;
    DIR *stream = opendir(state);
    while (stream && (entry = readdir(stream))) {
        int64_t ranks = rm_state_ranks_of(entry->d_name);
        if (!size) size = ranks;
        count += ranks && ranks == size;
    }
    if (stream) closedir(stream);
    return size && count == size;
}

bool rm_state_is_whole(const char *state) {
    return has(state, RM_STATE_JSON) && has(state, RM_STATE_MODEL) &&
           (has(state, RM_STATE_OPTIMIZER) || has_all_pieces(state));
}

remat_status rm_state_path(const char *directory, const char *prefix, int64_t step, char out[RM_PATH_BYTES]) {
    char name[64];
    snprintf(name, sizeof name, "%sstep-%08lld", prefix, (long long)step);
    return rm_path_join(out, RM_PATH_BYTES, directory, name);
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static remat_status append(int64_t **steps, int64_t *count, int64_t step) {
    int64_t *moved = rm_realloc(*steps, (size_t)(*count + 1) * sizeof **steps);
    REQUIRE(moved, MEMORY, "no memory to list training states");
    *steps = moved;
    moved[(*count)++] = step;
    return REMAT_OK;
}

remat_status rm_state_list(const char *directory, int64_t **steps, int64_t *count) {
    remat_status status = REMAT_OK;
    struct dirent *entry;
    *steps = NULL;
    *count = 0;
    DIR *stream = opendir(directory);
    if (!stream && errno == ENOENT) return REMAT_OK;
    if (!stream) FAIL(IO, "cannot look into %s: %s", directory, strerror(errno));
    while (!status && (entry = readdir(stream))) {
        char path[RM_PATH_BYTES];
        int64_t step = step_of(entry->d_name);
        if (step >= 0 && !rm_path_join(path, sizeof path, directory, entry->d_name) && rm_state_is_whole(path))
            status = append(steps, count, step);
    }
    closedir(stream);
    if (*count) qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    return status;
}

static void remove_file(const char *state, const char *file) {
    char path[RM_PATH_BYTES];
    if (!rm_path_join(path, sizeof path, state, file)) unlink(path);
}

/* state.json goes first: a state that is half removed is not whole, and never resumed. */
void rm_state_remove(const char *state) {
    struct dirent *entry;
    remove_file(state, RM_STATE_JSON);
    remove_file(state, RM_STATE_MODEL);
    remove_file(state, RM_STATE_OPTIMIZER);
    DIR *stream = opendir(state);
    while (stream && (entry = readdir(stream)))
        if (rm_state_ranks_of(entry->d_name)) remove_file(state, entry->d_name);
    if (stream) closedir(stream);
    rmdir(state);
}

remat_status rm_state_remove_unfinished(const char *directory) {
    struct dirent *entry;
    DIR *stream = opendir(directory);
    if (!stream) FAIL(IO, "cannot look into %s: %s", directory, strerror(errno));
    while ((entry = readdir(stream))) {
        char path[RM_PATH_BYTES];
        bool ours = !strncmp(entry->d_name, RM_STATE_UNFINISHED, strlen(RM_STATE_UNFINISHED)) &&
                    step_of(entry->d_name + strlen(RM_STATE_UNFINISHED)) >= 0;
        if (ours && !rm_path_join(path, sizeof path, directory, entry->d_name)) rm_state_remove(path);
    }
    closedir(stream);
    return REMAT_OK;
}
