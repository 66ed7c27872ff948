/* other_names.c: see other_names.h. */
#include "train/flags/other_names.h"

#include <string.h>

static const struct {
    const char *theirs, *ours;
    bool launch;
} names[] = {
#define NAME(THEIRS, OURS) {THEIRS, OURS, false},
#define LAUNCH(THEIRS, OURS) {THEIRS, OURS, true},
#define OF_LAUNCH(OURS)
#include "train/flags/other_names.def"
#undef NAME
#undef LAUNCH
#undef OF_LAUNCH
};

static const char *const of_launch[] = {
#define NAME(THEIRS, OURS)
#define LAUNCH(THEIRS, OURS)
#define OF_LAUNCH(OURS) OURS,
#include "train/flags/other_names.def"
};

bool rm_same_name(const char *name, const char *given, size_t length) {
    if (strlen(name) != length) return false;
    for (size_t i = 0; i < length; i++)
        if ((given[i] == '_' ? '-' : given[i]) != name[i]) return false;
    return true;
}

const char *rm_other_name(const char *name, size_t length, bool launch) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].launch == launch && rm_same_name(names[i].theirs, name, length)) return names[i].ours;
    return NULL;
}

bool rm_is_of_launch(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof of_launch / sizeof *of_launch; i++)
        if (rm_same_name(of_launch[i], name, length)) return true;
    return false;
}
