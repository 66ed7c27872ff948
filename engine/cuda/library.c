/* library.c: opens the libraries of the CUDA device: library.h. */
#include "engine/cuda/library.h"

#include <pthread.h>

#include "engine/shared_library.h"

#if CUDART_VERSION < 13000
#define MAJOR "12"
#else
#define MAJOR "13"
#endif
_Static_assert(CUDART_VERSION >= 12000 && CUDART_VERSION < 14000, "name the libraries of this CUDA");

#ifndef RM_CUDA_FOLDER
#define RM_CUDA_FOLDER "" /* folders where CMake found the libraries, separated by colons */
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rm_cuda_library library;
static bool runtime_found, products_found;

/* Describes one of CUDA's libraries, which all have the same version. */
#define OF_CUDA(file, environment)                                                                                     \
    {                                                                                                                  \
        .name = file, .folders = RM_CUDA_FOLDER, .variable = environment, .needs = "the device \"cuda\" needs",        \
        .install = "it", .oldest = "CUDA " MAJOR                                                                       \
    }
static const rm_shared_library runtime = OF_CUDA("libcudart.so." MAJOR, "REMAT_CUDART_LIBRARY");
static const rm_shared_library blas = OF_CUDA("libcublas.so." MAJOR, "REMAT_CUBLAS_LIBRARY");
static const rm_shared_library blaslt = OF_CUDA("libcublasLt.so." MAJOR, "REMAT_CUBLASLT_LIBRARY");

static remat_status find_runtime(rm_cuda_library *lib) {
    void *handle;
#ifdef RM_CUDART_LINKED
    if (!rm_shared_library_is_named(&runtime)) {
#define LINKED(function) lib->function = function;
        RM_CUDA_RUNTIME_CALLS(LINKED)
#undef LINKED
        return REMAT_OK;
    }
#endif
    TRY(rm_shared_library_open(&runtime, &handle));
#define FIND(function) TRY(rm_shared_library_find(&runtime, handle, #function, &lib->function));
    RM_CUDA_RUNTIME_CALLS(FIND)
#undef FIND
    return REMAT_OK;
}

static remat_status find_products(rm_cuda_library *lib) {
    void *handle;
    TRY(rm_shared_library_open(&blas, &handle));
#define FIND(function) TRY(rm_shared_library_find(&blas, handle, #function, &lib->function));
    RM_CUBLAS_CALLS(FIND)
#undef FIND
    TRY(rm_shared_library_open(&blaslt, &handle));
#define FIND(function) TRY(rm_shared_library_find(&blaslt, handle, #function, &lib->function));
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

static const rm_shared_library dnn_file = {.name = "libcudnn.so.9",
                                           .folders = RM_CUDA_FOLDER,
                                           .variable = "REMAT_CUDNN_LIBRARY",
                                           .needs = "a session with layers by cuDNN needs",
                                           .install = "it",
                                           .oldest = "cuDNN 9"};
static rm_cudnn_library dnn;
static bool dnn_opened;

static remat_status fill_in_dnn(rm_cudnn_library *lib) {
    void *handle;
    TRY(rm_shared_library_open(&dnn_file, &handle));
#define FIND(function) TRY(rm_shared_library_find(&dnn_file, handle, #function, &lib->function));
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
                   "this build does not support cuDNN, because it was made without cudnn.h of version 9; use the "
                   "recurrent kernels remat");
}

#endif
