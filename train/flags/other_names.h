/* other_names.h: flags by the names that they have in other programs (other_names.def), for "did you mean". */
#ifndef RM_OTHER_NAMES_H
#define RM_OTHER_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* What to say for the flag `name`, without its dashes: "batch", "device=cuda"; NULL: it is in no such program. launch: for `remat launch`,
 * else for the other commands. Underscores count as dashes. */
const char *rm_other_name(const char *name, size_t length, bool launch);

/* Is `given` the name, with underscores for dashes or without? */
bool rm_same_name(const char *name, const char *given, size_t length);

#endif
