/* common.h: error handling of the examples. The library itself never prints and never exits; its programs do, and the
 * examples do it only here. */
#ifndef COMMON_H
#define COMMON_H

#include <stdio.h>
#include <stdlib.h>

#include <remat.h>

static inline void check(remat_status status) {
    if (status == REMAT_OK) return;
    fprintf(stderr, "%s: %s\n", remat_status_text(status), remat_last_error());
    exit(1);
}

#endif
