/* common.h: the examples' way out when something fails. The library itself never prints and never exits; programs do,
 * and in these programs this is the only place. */
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
