/* other_names.h: names of our flags in other programs (other_names.def), for "did you mean". */
#ifndef RM_OTHER_NAMES_H
#define RM_OTHER_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* Our flag for another program's flag `name`, without dashes in front: "batch", "device=cuda"; NULL: unknown. launch: flags of `remat
 * launch`, else of the other commands. Underscores count as dashes. */
const char *rm_other_name(const char *name, size_t length, bool launch);

/* Whether `name` is a flag of `remat launch` alone, which some give to `remat train`. */
bool rm_is_of_launch(const char *name, size_t length);

/* Whether `given` is the name; underscores count as dashes. */
bool rm_same_name(const char *name, const char *given, size_t length);

#endif
