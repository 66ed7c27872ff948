/* class_names.h: what classes are called, in the order of their numbers. Folders of pictures have names; arrays have none. */
#ifndef RM_CLASS_NAMES_H
#define RM_CLASS_NAMES_H

#include "engine/status.h"

typedef struct {
    char **name;
    int64_t count; /* 0: they have none */
    int64_t capacity;
} rm_class_names;

remat_status rm_class_names_add(rm_class_names *names, const char *name);
void rm_class_names_free(rm_class_names *names);

/* INVALID where both have names, and differ: names the first class that does. `data` has the first, `source` the second. */
remat_status rm_class_names_agree(const rm_class_names *ours, const char *data, const rm_class_names *theirs,
                                  const char *source);

#endif
