/* dump.c: see dump.h. */
#include "train/report/dump.h"

#include "train/state/weights.h"

remat_status rm_dump_try(const char *path) {
    rm_file_writer writer;
    if (!path || (rm_path_exists(path) && !rm_path_is_file(path))) return REMAT_OK;
    TRY(rm_safetensors_spare(path, "dump-grads"));
    remat_status status = rm_file_replace(path, &writer);
    if (status) return rm_fail(status, "%s: give a writable file with --dump-grads", remat_last_error());
    rm_file_abandon(&writer);
    return REMAT_OK;
}

remat_status rm_dump_gradients(remat_session *session, const char *path) {
    rm_file_writer writer;
    TRY(rm_file_replace(path, &writer));
    return rm_weights_write(session, REMAT_GRADIENT, &writer);
}
