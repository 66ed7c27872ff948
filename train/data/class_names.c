/* class_names.c: see class_names.h. */
#include "train/data/class_names.h"

#include "memory/host.h"

#include <string.h>

remat_status rm_class_names_add(rm_class_names *names, const char *name) {
    REQUIRE(rm_grow(&names->name, &names->capacity, names->count + 1, sizeof *names->name), MEMORY,
            "no memory for the names of classes");
    names->name[names->count] = rm_strdup(name);
    REQUIRE(names->name[names->count++], MEMORY, "no memory for the names of classes");
    return REMAT_OK;
}

void rm_class_names_free(rm_class_names *names) {
    for (int64_t i = 0; i < names->count; i++) rm_free(names->name[i]);
    rm_free(names->name);
    *names = (rm_class_names){0};
}

static const char *name_at(const rm_class_names *names, int64_t i) { return i < names->count ? names->name[i] : ""; }

remat_status rm_class_names_agree(const rm_class_names *ours, const char *data, const rm_class_names *theirs,
                                  const char *source) {
    int64_t i = 0;
    if (!ours->count || !theirs->count) return REMAT_OK;
    while (i < ours->count && i < theirs->count && !strcmp(ours->name[i], theirs->name[i])) i++;
    REQUIRE(i == ours->count && i == theirs->count, INVALID,
            "class %lld is '%.80s' in %s but '%.80s' in %s; the sorted folder names number the classes: give data with "
            "the same folders, which may be empty",
            (long long)i, name_at(ours, i), data, name_at(theirs, i), source);
    return REMAT_OK;
}
