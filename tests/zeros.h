/* zeros.h: writes zeros to every input of a session, for tests in which the data do not matter. */
#ifndef ZEROS_H
#define ZEROS_H

#include <stdlib.h>

#include "engine/remat.h"

static inline remat_status write_zeros(remat_session *s) {
    remat_status status = REMAT_OK;
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT) && !status; i++) {
        remat_array info;
        status = remat_array_info(s, REMAT_INPUT, i, &info);
        void *zeros = status ? NULL : calloc(1, info.bytes);
        if (!status) status = remat_write(s, REMAT_INPUT, i, zeros, info.bytes);
        free(zeros);
    }
    return status;
}

#endif
