/* skip.h: lets a test that needs a GPU report in one line that there is none, and end as skipped. */
#ifndef RM_TEST_SKIP_H
#define RM_TEST_SKIP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/device.h"

enum { SKIPPED = 77 }; /* known to ctest and run.sh */

/* The value of `flag` ("--device="), or `otherwise`. */
static inline const char *value_of(int argc, char **argv, const char *flag, const char *otherwise) {
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], flag, strlen(flag))) return argv[i] + strlen(flag);
    return otherwise;
}

static inline bool has_flag(int argc, char **argv, const char *flag) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], flag)) return true;
    return false;
}

/* OK, or the reason why it cannot be opened. */
static inline remat_status try_device(const char *name) {
    const rm_device_api *api = rm_device_find(name);
    rm_device *device = NULL;
    REQUIRE(api, MISSING, "this build has no device \"%s\"", name);
    TRY(api->open(1, &device));
    api->close(device);
    return REMAT_OK;
}

/* If the device is missing, the test is skipped; any other failure fails it. */
static inline void need_device(remat_status status) {
    if (!status) return;
    printf("%s%s\n", status == REMAT_MISSING ? "skipped: " : "", remat_last_error());
    exit(status == REMAT_MISSING ? SKIPPED : EXIT_FAILURE);
}

#endif
