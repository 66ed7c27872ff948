/* class_names.h: names of classes, in class order. Image folders have names; arrays have none. */
#ifndef RM_CLASS_NAMES_H
#define RM_CLASS_NAMES_H

#include "engine/status.h"

typedef struct {
    char **name;
    int64_t count; /* 0: classes have no names */
    int64_t capacity;
} rm_class_names;

remat_status rm_class_names_add(rm_class_names *names, const char *name);
void rm_class_names_free(rm_class_names *names);

/* INVALID when both have names and they differ; the message names the first such class. `data` has ours, `source` theirs. */
remat_status rm_class_names_agree(const rm_class_names *ours, const char *data, const rm_class_names *theirs,
                                  const char *source);

#endif
