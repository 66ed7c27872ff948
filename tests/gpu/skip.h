/* skip.h: a test that needs a GPU says that there is none, in one sentence, and ends as skipped. */
#ifndef RM_TEST_SKIP_H
#define RM_TEST_SKIP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/status.h"

enum { SKIPPED = 77 }; /* ctest and run.sh know it */

/* The value of --device=NAME, or cuda. */
static inline const char *device_asked_for(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--device=", 9)) return argv[i] + 9;
    return "cuda";
}

static inline bool has_flag(int argc, char **argv, const char *flag) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], flag)) return true;
    return false;
}

/* Where the device is merely not there, the test is skipped; any other failure fails it. */
static inline void need_device(remat_status status) {
    if (!status) return;
    printf("%s%s\n", status == REMAT_MISSING ? "skipped: " : "", remat_last_error());
    exit(status == REMAT_MISSING ? SKIPPED : EXIT_FAILURE);
}

#endif
