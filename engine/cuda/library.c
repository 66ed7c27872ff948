/* library.c: dlopen and dlsym for the CUDA device: library.h. */
#define _GNU_SOURCE
#include "engine/cuda/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if CUDART_VERSION < 13000
#define MAJOR "12"
#else
#define MAJOR "13"
#endif
_Static_assert(CUDART_VERSION >= 12000 && CUDART_VERSION < 14000, "name the libraries of this CUDA");

#ifndef RM_CUDA_FOLDER
#define RM_CUDA_FOLDER "" /* where CMake found the libraries: folders, with : between them */
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rm_cuda_library library;
static bool runtime_found, products_found;

typedef struct {
    const char *name, *variable;
    const char *for_what; /* NULL: the device */
} place;

static const place runtime_place = {"libcudart.so." MAJOR, "REMAT_CUDART_LIBRARY", NULL};
static const place blas_place = {"libcublas.so." MAJOR, "REMAT_CUBLAS_LIBRARY", NULL};
static const place blaslt_place = {"libcublasLt.so." MAJOR, "REMAT_CUBLASLT_LIBRARY", NULL};

/* NVIDIA's packages for Python have a folder for each library. */
static void *open_where_found(const char *name, int flags) {
    char path[600];
    void *handle = NULL;
    for (const char *at = RM_CUDA_FOLDER; *at && !handle;) {
        int length = (int)strcspn(at, ":");
        snprintf(path, sizeof path, "%.*s/%s", length, at, name);
        handle = dlopen(path, flags);
        at += length + (at[length] == ':');
    }
    return handle;
}

static remat_status open_library(const place *where, void **handle) {
    char why[300];
    const char *named = getenv(where->variable);
    const int flags = RTLD_NOW | RTLD_LOCAL;
    if (named && *named) {
        *handle = dlopen(named, flags);
        REQUIRE(*handle, MISSING, "%s=%s cannot be opened: %.300s", where->variable, named, dlerror());
        return REMAT_OK;
    }
    if ((*handle = dlopen(where->name, flags))) return REMAT_OK;
    snprintf(why, sizeof why, "%s", dlerror());
    *handle = open_where_found(where->name, flags);
    REQUIRE(*handle, MISSING,
            "%s needs %s, and it is not on this machine (%s): install it, add its folder to "
            "LD_LIBRARY_PATH, or name the file in %s",
            where->for_what ? where->for_what : "the device \"cuda\"", where->name, why, where->variable);
    return REMAT_OK;
}

/* dlsym gives pointers to data; POSIX says that they can be used so. */
static remat_status find(void *handle, const place *where, const char *name, void *function) {
    void *found = dlsym(handle, name);
    REQUIRE(found, MISSING, "%s has no function %s: it is too old for this Remat, which needs CUDA " MAJOR, where->name,
            name);
    *(void **)function = found;
    return REMAT_OK;
}

static remat_status find_runtime(rm_cuda_library *lib) {
    void *runtime;
#ifdef RM_CUDART_LINKED
    const char *named = getenv(runtime_place.variable);
    if (!named || !*named) {
#define LINKED(function) lib->function = function;
        RM_CUDA_RUNTIME_CALLS(LINKED)
#undef LINKED
        return REMAT_OK;
    }
#endif
    TRY(open_library(&runtime_place, &runtime));
#define FIND(function) TRY(find(runtime, &runtime_place, #function, &lib->function));
    RM_CUDA_RUNTIME_CALLS(FIND)
#undef FIND
    return REMAT_OK;
}

static remat_status find_products(rm_cuda_library *lib) {
    void *blas, *blaslt;
    TRY(open_library(&blas_place, &blas));
#define FIND(function) TRY(find(blas, &blas_place, #function, &lib->function));
    RM_CUBLAS_CALLS(FIND)
#undef FIND
    TRY(open_library(&blaslt_place, &blaslt));
#define FIND(function) TRY(find(blaslt, &blaslt_place, #function, &lib->function));
    RM_CUBLASLT_CALLS(FIND)
#undef FIND
    return REMAT_OK;
}

remat_status rm_cuda_library_open(const rm_cuda_library **out) {
    pthread_mutex_lock(&lock);
    remat_status status = runtime_found ? REMAT_OK : find_runtime(&library);
    runtime_found |= !status;
    pthread_mutex_unlock(&lock);
    *out = &library;
    return status;
}

remat_status rm_cuda_library_open_products(void) {
    pthread_mutex_lock(&lock);
    remat_status status = products_found ? REMAT_OK : find_products(&library);
    products_found |= !status;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- cuDNN -------------------------------------------------------------------------------------------------------- */

#ifdef RM_HAVE_CUDNN

static const place dnn_place = {"libcudnn.so.9", "REMAT_CUDNN_LIBRARY", "a session with the recurrent kernels cudnn"};
static rm_cudnn_library dnn;
static bool dnn_opened;

static remat_status fill_in_dnn(rm_cudnn_library *lib) {
    void *handle;
    TRY(open_library(&dnn_place, &handle));
#define FIND(function) TRY(find(handle, &dnn_place, #function, &lib->function));
    RM_CUDNN_CALLS(FIND)
#undef FIND
    return REMAT_OK;
}

remat_status rm_cudnn_library_open(const rm_cudnn_library **out) {
    pthread_mutex_lock(&lock);
    remat_status status = dnn_opened ? REMAT_OK : fill_in_dnn(&dnn);
    if (!status) dnn_opened = true;
    pthread_mutex_unlock(&lock);
    *out = &dnn;
    return status;
}

#else

remat_status rm_cudnn_library_open(const rm_cudnn_library **out) {
    *out = NULL;
    return rm_fail(REMAT_MISSING,
                   "this build knows no cuDNN: no cudnn.h of version 9 was found when it was made; use the "
                   "recurrent kernels remat");
}

#endif
