/* nccl_library.c: opens the libraries of group_nccl.c: nccl_library.h. */
#include "dist/nccl/nccl_library.h"

#include <pthread.h>

#include "engine/shared_library.h"

#define OLDEST 21800 /* NCCL 2.18, the first version with ncclCommSplit */

#if CUDART_VERSION < 13000
#define CUDART_NAME "libcudart.so.12"
#else
#define CUDART_NAME "libcudart.so.13"
#endif
_Static_assert(CUDART_VERSION >= 12000 && CUDART_VERSION < 14000, "name the libcudart of this CUDA");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rm_nccl_library library;
static bool opened;

static const rm_shared_library nccl = {.name = "libnccl.so.2",
                                       .folders = RM_NCCL_FOLDER,
                                       .variable = "REMAT_NCCL_LIBRARY",
                                       .needs = "ranks on GPUs need",
                                       .install = "NVIDIA's libnccl2",
                                       .oldest = "NCCL 2.18"};
static const rm_shared_library cudart = {.name = CUDART_NAME,
                                         .folders = RM_CUDART_FOLDER,
                                         .variable = "REMAT_CUDART_LIBRARY",
                                         .needs = "ranks on GPUs need",
                                         .install = "the CUDA runtime",
                                         .oldest = "CUDA 12"};

static remat_status find_runtime(rm_nccl_library *lib) {
    void *handle;
#ifdef RM_CUDART_LINKED
    if (!rm_shared_library_is_named(&cudart)) {
#define LINKED(function) lib->function = function;
        RM_CUDART_CALLS(LINKED)
#undef LINKED
        return REMAT_OK;
    }
#endif
    TRY(rm_shared_library_open(&cudart, &handle));
#define FIND(function) TRY(rm_shared_library_find(&cudart, handle, #function, &lib->function));
    RM_CUDART_CALLS(FIND)
#undef FIND
    return REMAT_OK;
}

static remat_status fill_in(rm_nccl_library *lib) {
    void *handle;
    TRY(find_runtime(lib));
    TRY(rm_shared_library_open(&nccl, &handle));
#define FIND(function) TRY(rm_shared_library_find(&nccl, handle, #function, &lib->function));
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
    if (error == cudaErrorMemoryAllocation) FAIL(MEMORY, "%s: GPU memory is full (cudaMalloc)", doing);
    FAIL(DEVICE,
         "%s: CUDA says: %s (error %d). Check with `nvidia-smi` whether the GPU works and its driver is new enough",
         doing, lib->cudaGetErrorString(error), (int)error);
}
