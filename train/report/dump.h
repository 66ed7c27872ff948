/* dump.h: --dump-grads: all gradients of a session as one .safetensors file. */
#ifndef RM_DUMP_H
#define RM_DUMP_H

#include "engine/status.h"

/* Checks before the first step, which may take long, that `path` can be written. INVALID when it is another kind of file than
 * .safetensors. NULL allowed. */
remat_status rm_dump_try(const char *path);

/* Writes a temporary file and renames it, so that an earlier dump is replaced atomically. Writes directly to pipes and devices. */
remat_status rm_dump_gradients(remat_session *session, const char *path);

#endif
