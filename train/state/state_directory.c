/* state_directory.c: see state_directory.h. */
#include "train/state/state_directory.h"

#include "dist/launch/world.h"
#include "memory/host.h"
#include "train/state/state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* "step-00000100" -> 100; -1 for any other name. */
static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9') return -1;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return *end || errno ? -1 : step;
}

void rm_state_shard_name(int64_t rank, int64_t size, char out[RM_STATE_SHARD_NAME]) {
    snprintf(out, RM_STATE_SHARD_NAME, "optimizer-%lld-of-%lld.safetensors", (long long)rank, (long long)size);
}

int64_t rm_state_ranks_of(const char *name) {
    long long rank = -1, size = 0;
    char again[RM_STATE_SHARD_NAME];
    if (sscanf(name, "optimizer-%10lld-of-%10lld.", &rank, &size) != 2 || rank < 0 || rank >= size) return 0;
    rm_state_shard_name(rank, size, again);
    return strcmp(name, again) ? 0 : size;
}

static bool has(const char *state, const char *file) {
    char path[RM_PATH_BYTES];
    return !rm_path_join(path, sizeof path, state, file) && rm_path_exists(path);
}

static bool has_shards_of(const char *state, int64_t size) {
    char name[RM_STATE_SHARD_NAME];
    for (int64_t r = 0; r < size; r++) {
        rm_state_shard_name(r, size, name);
        if (!has(state, name)) return false;
    }
    return size > 0;
}

/* Accepts any number of ranks: there may be shards of other numbers of ranks, which state.json does not list. */
static bool has_all_shards(const char *state) {
    bool all = false;
    struct dirent *entry;
    DIR *stream = opendir(state);
    while (stream && !all && (entry = readdir(stream)))
        if (!strncmp(entry->d_name, "optimizer-0-of-", 15))
            all = has_shards_of(state, rm_state_ranks_of(entry->d_name));
    if (stream) closedir(stream);
    return all;
}

static bool is_link(const char *path) {
    struct stat about;
    return lstat(path, &about) == 0 && S_ISLNK(about.st_mode);
}

bool rm_state_is_whole(const char *state) {
    return !is_link(state) && has(state, RM_STATE_JSON) && has(state, RM_STATE_MODEL) &&
           (has(state, RM_STATE_OPTIMIZER) || has_all_shards(state));
}

bool rm_state_is_there(const char *state) {
    const char *slash = strrchr(state, '/');
    return has(state, RM_STATE_JSON) || (step_of(slash ? slash + 1 : state) >= 0 && rm_path_exists(state));
}

static bool any(const char *state) { return rm_path_exists(state); }

remat_status rm_state_path(const char *directory, const char *prefix, int64_t step, char out[RM_PATH_BYTES]) {
    char name[64];
    snprintf(name, sizeof name, "%sstep-%08lld", prefix, (long long)step);
    return rm_path_join(out, RM_PATH_BYTES, directory, name);
}

/* Whether it is a link to "step-00000100", as rm_state_link_best makes them. */
static bool is_own_link(const char *path) {
    char target[64];
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    return n > 0 && n < (ssize_t)sizeof target - 1 && step_of(target) >= 0;
}

static remat_status spare_others(const char *link) {
    struct stat about;
    REQUIRE(
        lstat(link, &about) || is_own_link(link), INVALID,
        "%s is not a link to a training state in the same directory, and --keep-best replaces nothing else: move it "
        "away, or choose another place for --save",
        link);
    return REMAT_OK;
}

/* `cp -rL` turns the link into a copy, which may be the only one of its state. */
remat_status rm_state_make_way(const char *directory, char aside[RM_PATH_BYTES]) {
    char link[RM_PATH_BYTES];
    struct stat about;
    *aside = 0;
    TRY(rm_path_join(link, sizeof link, directory, RM_STATE_BEST));
    if (!rm_state_is_whole(link)) return spare_others(link);
    for (int i = 1; i < 1000; i++) {
        REQUIRE(snprintf(aside, RM_PATH_BYTES, "%s-copy-%d", link, i) < RM_PATH_BYTES, INVALID,
                "the path %.60s... is too long", link);
        if (!lstat(aside, &about)) continue;
        return rename(link, aside) ? rm_file_failed("rename", link) : REMAT_OK;
    }
    FAIL(IO, "%s is a folder, and a thousand renamed copies of it exist already: remove them", link);
}

/* Creates the link under a temporary name and renames it, so readers always find a valid link. Does nothing on file systems without
 * links (vfat, SMB). */
remat_status rm_state_link_best(const char *directory, int64_t step) {
    char state[RM_PATH_BYTES], link[RM_PATH_BYTES], unfinished[RM_PATH_BYTES];
    TRY(rm_state_path(directory, "", step, state));
    TRY(rm_path_join(link, sizeof link, directory, RM_STATE_BEST));
    TRY(rm_path_join(unfinished, sizeof unfinished, directory, RM_STATE_UNFINISHED RM_STATE_BEST));
    if (!rm_path_exists(state)) return REMAT_OK;
    TRY(spare_others(link));
    if (is_own_link(unfinished)) unlink(unfinished);
    if (symlink(strrchr(state, '/') + 1, unfinished))
        return errno == EPERM || errno == ENOSYS || errno == EOPNOTSUPP ? REMAT_OK
                                                                        : rm_file_failed("create the link", link);
    if (rename(unfinished, link)) return rm_file_failed("rename", unfinished);
    return rm_directory_sync(directory);
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static remat_status list(const char *directory, bool wanted(const char *state), int64_t **steps, int64_t *count) {
    remat_status status = REMAT_OK;
    struct dirent *entry;
    int64_t capacity = 0;
    *steps = NULL;
    *count = 0;
    DIR *stream = opendir(directory);
    if (!stream && errno == ENOENT) return REMAT_OK;
    REQUIRE(stream || errno != ENOTDIR, IO, "%s is a file: give the directory in which --save keeps states", directory);
    if (!stream) FAIL(IO, "cannot look into %s: %s", directory, strerror(errno));
    while (!status && (entry = readdir(stream))) {
        char path[RM_PATH_BYTES];
        int64_t step = step_of(entry->d_name);
        if (step < 0 || rm_path_join(path, sizeof path, directory, entry->d_name) || !wanted(path)) continue;
        if (rm_grow(steps, &capacity, *count + 1, sizeof **steps))
            (*steps)[(*count)++] = step;
        else
            status = rm_fail(REMAT_MEMORY, "no memory to list training states");
    }
    closedir(stream);
    if (*count) qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    return status;
}

remat_status rm_state_list(const char *directory, int64_t **steps, int64_t *count) {
    return list(directory, rm_state_is_whole, steps, count);
}

remat_status rm_state_list_all(const char *directory, int64_t **steps, int64_t *count) {
    return list(directory, any, steps, count);
}

remat_status rm_state_directory_lock(const char *directory, int *lock) {
    *lock = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0) FAIL(IO, "cannot save to %s: %s: choose another place for --save", directory, strerror(errno));
    bool taken = flock(*lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; /* elsewhere: no locks, no check */
    bool own = rm_world_exists() && rm_state_restarted(); /* a stopped rank 0 of this job may still hold the lock */
    REQUIRE(!taken || own, IO, "another run is saving to %s: choose another place for --save", directory);
    return REMAT_OK;
}

/* Appends a number if the name is taken by an earlier damaged state. */
remat_status rm_state_put_aside(const char *directory, int64_t step, char aside[RM_PATH_BYTES]) {
    char from[RM_PATH_BYTES], plain[RM_PATH_BYTES];
    TRY(rm_state_path(directory, "", step, from));
    TRY(rm_state_path(directory, RM_STATE_DAMAGED, step, plain));
    for (int i = 1; i < 1000; i++) {
        int length =
            i == 1 ? snprintf(aside, RM_PATH_BYTES, "%s", plain) : snprintf(aside, RM_PATH_BYTES, "%s-%d", plain, i);
        REQUIRE(length < RM_PATH_BYTES, INVALID, "the path %.60s... is too long", plain);
        if (rm_path_exists(aside)) continue;
        if (rename(from, aside)) return rm_file_failed("rename", from);
        return rm_directory_sync(directory);
    }
    FAIL(IO, "%s holds a thousand damaged training states of step %lld: remove them", directory, (long long)step);
}

/* Removes state.json first, so that a partly removed state counts as incomplete. Removes only the link if it is one: otherwise anyone
 * with write access to the directory could make others remove files elsewhere. */
void rm_state_remove(const char *state) {
    struct dirent *entry;
    int fd = open(state, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && is_link(state)) unlink(state);
    if (fd < 0) return;
    unlinkat(fd, RM_STATE_JSON, 0);
    unlinkat(fd, RM_STATE_JSON_BESIDE, 0);
    unlinkat(fd, RM_STATE_MODEL, 0);
    unlinkat(fd, RM_STATE_OPTIMIZER, 0);
    unlinkat(fd, RM_STATE_CARRIED, 0);
    unlinkat(fd, RM_STATE_TOKENIZER, 0);
    unlinkat(fd, RM_STATE_EMA, 0);
    DIR *stream = fdopendir(fd);
    while (stream && (entry = readdir(stream)))
        if (rm_state_ranks_of(entry->d_name)) unlinkat(fd, entry->d_name, 0);
    if (stream)
        closedir(stream);
    else
        close(fd);
    rmdir(state);
}

/* Renames the state to that of an unfinished one first: if this process dies, the next run removes the rest. If the folder has other
 * files, it keeps them and its name. */
remat_status rm_state_discard(const char *directory, int64_t step) {
    char state[RM_PATH_BYTES], unfinished[RM_PATH_BYTES];
    TRY(rm_state_path(directory, "", step, state));
    TRY(rm_state_path(directory, RM_STATE_UNFINISHED, step, unfinished));
    rm_state_remove(unfinished);
    bool renamed = rename(state, unfinished) == 0;
    rm_state_remove(renamed ? unfinished : state);
    if (renamed && rm_path_exists(unfinished) && rename(unfinished, state)) return rm_file_failed("rename", unfinished);
    return REMAT_OK;
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
