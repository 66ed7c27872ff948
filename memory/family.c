/* family.c: functions common to all families. */
#include "memory/family.h"

#include <string.h>

#include "memory/host.h"

void rm_family_free(rm_family *family) {
    if (family->free_own) family->free_own(family);
    rm_free(family->member);
    memset(family, 0, sizeof *family);
}
