/* dump.h: --dump-grads: all gradients of a session as one .safetensors file. */
#ifndef RM_DUMP_H
#define RM_DUMP_H

#include "engine/status.h"

/* A first step can take long: that its gradients can be written is tried before. INVALID when something is
 * there that is no .safetensors file. NULL allowed. */
remat_status rm_dump_try(const char *path);

/* Written beside the file and renamed, so that an earlier dump is replaced whole or not at all. What is there and is no plain
 * file (a pipe, a device) is written to directly. */
remat_status rm_dump_gradients(remat_session *session, const char *path);

#endif
