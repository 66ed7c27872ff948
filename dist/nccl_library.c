/* nccl_library.c: dlopen and dlsym for group_nccl.c. */
#define _GNU_SOURCE
#include "dist/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define OLDEST 21800 /* NCCL 2.18: the first with ncclCommSplit */

#if CUDART_VERSION < 13000
#define CUDART_NAME "libcudart.so.12"
#else
#define CUDART_NAME "libcudart.so.13"
#endif
_Static_assert(CUDART_VERSION >= 12000 && CUDART_VERSION < 14000, "name the libcudart of this CUDA");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rm_nccl_library library;
static bool opened;

typedef struct {
    const char *name, *folder, *variable, *remedy;
} place;

static const place nccl_place = {
    "libnccl.so.2", RM_NCCL_FOLDER, "REMAT_NCCL_LIBRARY",
    "install NVIDIA's libnccl2, add its folder to LD_LIBRARY_PATH, or name the file in REMAT_NCCL_LIBRARY"};
static const place cudart_place = {
    CUDART_NAME, RM_CUDART_FOLDER, "REMAT_CUDART_LIBRARY",
    "install the CUDA runtime, add its folder to LD_LIBRARY_PATH, or name the file in REMAT_CUDART_LIBRARY"};

static remat_status open_library(const place *where, void **handle) {
    char path[600], why[400];
    const char *named = getenv(where->variable);
    const int flags = RTLD_NOW | RTLD_LOCAL;
    if (named && *named) {
        *handle = dlopen(named, flags);
        REQUIRE(*handle, MISSING, "%s=%s cannot be opened: %.300s", where->variable, named, dlerror());
        return REMAT_OK;
    }
    if ((*handle = dlopen(where->name, flags))) return REMAT_OK;
    snprintf(why, sizeof why, "%s", dlerror());
    snprintf(path, sizeof path, "%s/%s", where->folder, where->name);
    *handle = where->folder[0] ? dlopen(path, flags) : NULL;
    REQUIRE(*handle, MISSING, "ranks on GPUs need %s, and it is not on this machine (%.300s): %s", where->name, why,
            where->remedy);
    return REMAT_OK;
}

/* dlsym gives pointers to data; POSIX says that they can be used so. */
static remat_status find(void *handle, const char *library_name, const char *name, void *function) {
    void *found = dlsym(handle, name);
    REQUIRE(found, MISSING, "%s has no function %s: it is too old for this Remat, which needs NCCL 2.18 and CUDA 12",
            library_name, name);
    *(void **)function = found;
    return REMAT_OK;
}

static remat_status find_runtime(rm_nccl_library *lib) {
    void *cudart;
#ifdef RM_CUDART_LINKED
    const char *named = getenv(cudart_place.variable);
    if (!named || !*named) {
#define LINKED(function) lib->function = function;
        RM_CUDART_CALLS(LINKED)
#undef LINKED
        return REMAT_OK;
    }
#endif
    TRY(open_library(&cudart_place, &cudart));
#define FIND(function) TRY(find(cudart, cudart_place.name, #function, &lib->function));
    RM_CUDART_CALLS(FIND)
#undef FIND
    return REMAT_OK;
}

static remat_status fill_in(rm_nccl_library *lib) {
    void *nccl;
    TRY(find_runtime(lib));
    TRY(open_library(&nccl_place, &nccl));
#define FIND(function) TRY(find(nccl, nccl_place.name, #function, &lib->function));
    RM_NCCL_CALLS(FIND)
#undef FIND
    lib->ncclGetVersion(&lib->version);
    REQUIRE(lib->version >= OLDEST, MISSING, "this machine's NCCL is version %d.%d; Remat needs 2.18 or newer",
            lib->version / 10000, lib->version / 100 % 100);
    return REMAT_OK;
}

remat_status rm_nccl_library_open(const rm_nccl_library **out) {
    pthread_mutex_lock(&lock);
    remat_status status = opened ? REMAT_OK : fill_in(&library);
    if (!status) opened = true;
    pthread_mutex_unlock(&lock);
    *out = &library;
    return status;
}

remat_status rm_cuda_check(const rm_nccl_library *lib, cudaError_t error, const char *doing) {
    if (error == cudaSuccess) return REMAT_OK;
    (void)lib->cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) FAIL(MEMORY, "%s: the GPU's memory is full (cudaMalloc)", doing);
    FAIL(DEVICE, "%s: CUDA says: %s (error %d). `nvidia-smi` shows whether the GPU is well and its driver new enough",
         doing, lib->cudaGetErrorString(error), (int)error);
}
