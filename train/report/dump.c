/* dump.c: see dump.h. */
#include "train/report/dump.h"

#include "train/state/weights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static remat_status beside_path(const char *path, char beside[RM_PATH_BYTES]) {
    int length = snprintf(beside, RM_PATH_BYTES, "%s.unfinished", path);
    REQUIRE(length < RM_PATH_BYTES, INVALID, "the path %.60s... is too long: give a shorter one", path);
    return REMAT_OK;
}

remat_status rm_dump_try(const char *path) {
    rm_file_writer writer;
    char beside[RM_PATH_BYTES];
    if (!path || (rm_path_exists(path) && !rm_path_is_file(path))) return REMAT_OK;
    TRY(rm_safetensors_spare(path, "dump-grads"));
    TRY(beside_path(path, beside));
    remat_status status = rm_file_create(beside, &writer);
    if (status) return rm_fail(status, "%s: give a writable file with --dump-grads", remat_last_error());
    rm_file_abandon(&writer);
    rm_file_remove(beside);
    return REMAT_OK;
}

remat_status rm_dump_gradients(remat_session *session, const char *path) {
    rm_file_writer writer;
    char beside[RM_PATH_BYTES];
    if (rm_path_exists(path) && !rm_path_is_file(path)) {
        TRY(rm_file_open_stream(path, &writer));
        return rm_weights_write(session, REMAT_GRADIENT, &writer);
    }
    TRY(beside_path(path, beside));
    TRY(rm_weights_save(session, REMAT_GRADIENT, beside, &writer));
    REQUIRE(!rename(beside, path), IO, "cannot rename %s to %s: %s", beside, path, strerror(errno));
    return REMAT_OK;
}
