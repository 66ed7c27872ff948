/* shared_library.h: opens OpenBLAS and NVIDIA's libraries when they are first needed, so that the same program starts on machines without
 * them. ops/math/openblas.c, cuda/library.c and dist/nccl/nccl_library.c say which functions are used. */
#ifndef RM_SHARED_LIBRARY_H
#define RM_SHARED_LIBRARY_H

#include "engine/status.h"

typedef struct {
    const char *name;     /* the name for the dynamic loader */
    const char *folders;  /* further folders to search, separated by ":"; "": none */
    const char *variable; /* environment variable that names the file to use instead */
    const char *needs;    /* for messages: "the device \"cuda\" needs" */
    const char *install;  /* "it", "NVIDIA's libnccl2" */
    const char *oldest;   /* the oldest version with all functions: "CUDA 13" */
} rm_shared_library;

/* MISSING: not found; the message says how to install it. The library stays open. */
remat_status rm_shared_library_open(const rm_shared_library *library, void **handle);

/* Does the environment variable name a file? Then a linked-in library is not used. */
bool rm_shared_library_is_named(const rm_shared_library *library);

/* Sets *function to the function of that name. MISSING: the library is too old. */
remat_status rm_shared_library_find(const rm_shared_library *library, void *handle, const char *name, void *function);

#endif
