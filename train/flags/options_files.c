/* options_files.c: refuses runs that would overwrite a file that another flag names, or that is in a training state: --metrics=FILE with
 * --data=FILE. The table (options_table.c) marks the flags that name files. Writers check for other existing files themselves
 * (metrics.c, dump.c). Main entry: rm_option_check_files; see options_table.h. */
#include "train/flags/options_table.h"

#include "train/file.h"
#include "train/state/state_directory.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* With --metrics-per-rank each rank writes its own file. */
static const char *path_of(const rm_options *o, const rm_option *line, char text[RM_PATH_BYTES]) {
    const char *value = *(char *const *)rm_option_member(o, line);
    bool own = o->metrics_per_rank && !strcmp(line->name, "metrics");
    snprintf(text, RM_PATH_BYTES, own ? "%s.rank%lld" : "%s", value ? value : "",
             (long long)(o->rank > 0 ? o->rank : 0));
    return text;
}

/* Links count as the same file. A device such as /dev/null may be written several times. */
static bool same_file(const char *a, const char *b) {
    struct stat at_a, at_b;
    bool there = !stat(a, &at_a), both = there && !stat(b, &at_b);
    if (both) return at_a.st_dev == at_b.st_dev && at_a.st_ino == at_b.st_ino && !S_ISCHR(at_a.st_mode);
    return !there && *a && !strcmp(a, b);
}

static bool concerns(const rm_option *line, rm_command command, rm_option_file least) {
    return line->file >= least && line->commands & (int)command;
}

static remat_status check_state(const char *name, const char *path) {
    char directory[RM_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    bool file = strcmp(path, "-") != 0; /* not standard output */
    REQUIRE(!file || !rm_state_is_there(directory), INVALID,
            "--%s=%.400s is in a training state, which would be damaged: name another", name, path);
    return REMAT_OK;
}

/* `state`: the training state that `others` are from; NULL: they are `o` itself. */
static remat_status check_file(const rm_options *o, const rm_option *written, const rm_options *others, rm_command read,
                               const char *state) {
    char path[RM_PATH_BYTES], other[RM_PATH_BYTES];
    if (!*path_of(o, written, path)) return REMAT_OK;
    for (int i = 0; i < rm_n_options; i++) {
        const rm_option *line = &rm_option_table[i];
        bool same =
            line != written && concerns(line, read, RM_FILE_READ) && same_file(path, path_of(others, line, other));
        REQUIRE(!same, INVALID, "--%s=%.400s would overwrite --%s=%.400s%s%.400s, which is the same file: name another",
                written->name, path, line->name, other, state ? " of " : "", state ? state : "");
    }
    return check_state(written->name, path);
}

static remat_status check_all(const rm_options *o, rm_command command, const rm_options *others, rm_command read,
                              const char *state) {
    for (int i = 0; i < rm_n_options; i++)
        if (concerns(&rm_option_table[i], command, RM_FILE_WRITTEN))
            TRY(check_file(o, &rm_option_table[i], others, read, state));
    return REMAT_OK;
}

remat_status rm_option_check_files(const rm_options *o, rm_command command) {
    return check_all(o, command, o, command, NULL);
}

remat_status rm_options_check_saved_files(const rm_options *o, rm_command command, const rm_options *saved,
                                          const char *state) {
    return check_all(o, command, saved, RM_TRAIN, state);
}
