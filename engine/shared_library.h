/* shared_library.h: OpenBLAS and NVIDIA's libraries are opened when something asks for them, and not before: the same program
 * starts on machines that have none. Which ones, and what of them is used, say ops/math/openblas.c, cuda/library.c and
 * dist/nccl/nccl_library.c. */
#ifndef RM_SHARED_LIBRARY_H
#define RM_SHARED_LIBRARY_H

#include "engine/status.h"

typedef struct {
    const char *name;     /* as the system's loader knows it */
    const char *folders;  /* where else to look, with : between them; "": nowhere */
    const char *variable; /* of the environment: names another file, which is then the only one that will do */
    const char *needs;    /* for sentences: "the device \"cuda\" needs" */
    const char *install;  /* "it", "NVIDIA's libnccl2" */
    const char *oldest;   /* "CUDA 13": what has all the functions */
} rm_shared_library;

/* MISSING, with what to do about it. It stays open. */
remat_status rm_shared_library_open(const rm_shared_library *library, void **handle);

/* Does the variable name another file? Then what is linked in is not used. */
bool rm_shared_library_is_named(const rm_shared_library *library);

/* *function: a pointer to a function, of that name. MISSING: the library is too old. */
remat_status rm_shared_library_find(const rm_shared_library *library, void *handle, const char *name, void *function);

#endif
