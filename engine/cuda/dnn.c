/* dnn.c: a device's cuDNN: opening, and messages for its errors (error.c has CUDA's): dnn.h. */
#include "engine/cuda/dnn.h"

#include <stdio.h>

#include "engine/cuda/cuda.h"
#include "memory/host.h"

#ifdef RM_HAVE_CUDNN

/* ---- Messages ----------------------------------------------------------------------------------------------------- */

static remat_status code_of(cudnnStatus_t error) {
    bool memory = error == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                  error == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    return memory ? REMAT_MEMORY : REMAT_DEVICE;
}

static void words(const rm_device *device, cudnnStatus_t error, const char *doing, char *sentence) {
    (void)device->lib->cudaGetLastError();
    if (code_of(error) == REMAT_MEMORY)
        snprintf(sentence, RM_CUDA_SENTENCE, "%s: cuDNN is out of memory; end other programs on this GPU", doing);
    else
        snprintf(sentence, RM_CUDA_SENTENCE,
                 "%s: cuDNN says \"%s\" (status %d); use the recurrent kernels remat, and REMAT_CUDA_CUDNN=OFF for "
                 "convolutions, to avoid cuDNN",
                 doing, device->dnn->lib->cudnnGetErrorString(error), (int)error);
}

remat_status rm_cuda_dnn_status(const rm_device *device, cudnnStatus_t error, const char *doing) {
    char sentence[RM_CUDA_SENTENCE];
    if (error == CUDNN_STATUS_SUCCESS) return REMAT_OK;
    words(device, error, doing, sentence);
    return rm_fail(code_of(error), "%s", sentence);
}

bool rm_cuda_dnn_went(rm_device *device, cudnnStatus_t error, const char *doing) {
    char when[RM_CUDA_WHEN];
    if (error == CUDNN_STATUS_SUCCESS) return true;
    if (device->failed) return false;
    device->failed = code_of(error);
    words(device, error, rm_cuda_when(device, doing, when), device->sentence);
    return false;
}

/* ---- Life --------------------------------------------------------------------------------------------------------- */

bool rm_cuda_dnn_begin(rm_queue *q) {
    const rm_cuda_dnn *dnn = q->device->dnn;
    return rm_cuda_dnn_went(q->device, dnn->lib->cudnnSetStream(dnn->handle, q->stream), "giving cuDNN a stream");
}

remat_status rm_cuda_dnn_open(rm_device *device) {
    const rm_cudnn_library *lib;
    if (device->dnn) return REMAT_OK;
    REQUIRE(rm_cuda_kernels_built.add_pieces, MISSING,
            "this build has no CUDA kernels, which layers by cuDNN need, too; use a build with CUDA kernels");
    TRY(rm_cudnn_library_open(&lib));
    rm_cuda_dnn *dnn = rm_calloc(1, sizeof *dnn);
    REQUIRE(dnn, MEMORY, "out of host memory for cuDNN");
    dnn->lib = lib;
    device->dnn = dnn; /* freed with the device, even after a failure */
    cudnnStatus_t error = lib->cudnnCreate(&dnn->handle);
    if (error) dnn->handle = NULL;
    return rm_cuda_dnn_status(device, error, "starting cuDNN");
}

void rm_cuda_dnn_close(rm_device *device) {
    rm_cuda_dnn *dnn = device->dnn;
    if (!dnn) return;
    if (dnn->handle) (void)dnn->lib->cudnnDestroy(dnn->handle);
    rm_free(dnn);
    device->dnn = NULL;
}

uint64_t rm_cuda_dnn_version(const rm_device *device) { return device->dnn ? device->dnn->lib->cudnnGetVersion() : 0; }

#else

remat_status rm_cuda_dnn_open(rm_device *device) {
    const rm_cudnn_library *lib;
    (void)device;
    return rm_cudnn_library_open(&lib);
}
void rm_cuda_dnn_close(rm_device *device) { (void)device; }
uint64_t rm_cuda_dnn_version(const rm_device *device) { return (void)device, 0; }

#endif
