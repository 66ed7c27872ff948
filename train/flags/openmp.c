/* openmp.c: see openmp.h. */
#include "train/flags/openmp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPINS "20000"

static int is_set(const char *name) {
    const char *value = getenv(name);
    return value && *value;
}

void rm_openmp_wait_briefly(char **argv) {
    const char *threads = getenv("OMP_NUM_THREADS");
    if (is_set("OMP_WAIT_POLICY") || is_set("GOMP_SPINCOUNT") || (threads && !strcmp(threads, "1"))) return;
    if (!setenv("GOMP_SPINCOUNT", SPINS, 1)) execv("/proc/self/exe", argv);
}
