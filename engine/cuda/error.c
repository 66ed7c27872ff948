/* error.c: what CUDA and cuBLAS answer, once, in words (rnn.c has cuDNN's): for calls that are answered at once, and for work on a queue,
 * whose failure shows later, perhaps at a call that had nothing to do with it. */
#include <stdio.h>

#include "engine/cuda/cuda.h"

/* What could help, for the errors that users meet. After those that say so, CUDA answers every call with the same error until the
 * process ends (CUDA's driver_types.h). */
static const char *remedy(cudaError_t error) {
    switch (error) {
    case cudaErrorInsufficientDriver:
        return ": the NVIDIA driver is older than this CUDA; install a newer one, or use the device cpu";
    case cudaErrorNoDevice:
        return ": look with nvidia-smi, and at CUDA_VISIBLE_DEVICES; or use the device cpu";
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
        return ": this build's kernels are for other GPUs: build it again with -DCMAKE_CUDA_ARCHITECTURES=native on "
               "this "
               "machine, or use the device cpu";
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
        return ": the driver cannot translate this build's kernels for this GPU: install a newer driver, or build "
               "Remat "
               "again with -DCMAKE_CUDA_ARCHITECTURES=native on this machine";
    case cudaErrorCompatNotSupportedOnDevice:
        return ": a package for forward compatibility (cuda-compat) is in the loader's way, and this GPU takes none: "
               "take "
               "it out of LD_LIBRARY_PATH, and install a newer driver if need be";
    case cudaErrorDevicesUnavailable:
        return ": another program has the GPU for itself (nvidia-smi shows which)";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
        return ": a kernel has failed, and this process can no longer use the GPU; with CUDA_LAUNCH_BLOCKING=1 the "
               "step named is the one that failed";
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
        return ": a kernel has lost its way, and this process can no longer use the GPU; start it again, and if that "
               "does not help, look whether the driver and this build's kernels suit the GPU (nvidia-smi, dmesg)";
    case cudaErrorLaunchTimeout:
        return ": a GPU that drives a display ends kernels that take seconds, and this process can no longer use it; "
               "start it again on a GPU without a display, or with a smaller tile or batch";
    case cudaErrorECCUncorrectable:
        return ": the GPU's memory holds an error that it cannot correct, and this process can no longer use the GPU; "
               "nvidia-smi -q -d ECC counts them, a reset of the GPU clears them, and until then use another";
    default:
        return "; nvidia-smi shows whether the GPU is well";
    }
}

static remat_status code_of(cudaError_t error) {
    if (error == cudaErrorMemoryAllocation) return REMAT_MEMORY;
    switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorCompatNotSupportedOnDevice:
        return REMAT_MISSING;
    default:
        return REMAT_DEVICE;
    }
}

static void words(const rm_cuda_library *lib, cudaError_t error, const char *doing, char *sentence) {
    (void)lib->cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        snprintf(sentence, RM_CUDA_SENTENCE,
                 "%s: CUDA has no memory left for it; let other programs on this GPU end, or use a smaller batch or a "
                 "memory budget",
                 doing);
    else
        snprintf(sentence, RM_CUDA_SENTENCE, "%s: CUDA says \"%s\" (error %d)%s", doing, lib->cudaGetErrorString(error),
                 (int)error, remedy(error));
}

remat_status rm_cuda_status(const rm_cuda_library *lib, cudaError_t error, const char *doing) {
    char sentence[RM_CUDA_SENTENCE];
    if (error == cudaSuccess) return REMAT_OK;
    words(lib, error, doing, sentence);
    return rm_fail(code_of(error), "%s", sentence);
}

static remat_status blas_code_of(cublasStatus_t error) {
    return error == CUBLAS_STATUS_ALLOC_FAILED ? REMAT_MEMORY : REMAT_DEVICE;
}

static void blas_words(const rm_cuda_library *lib, cublasStatus_t error, const char *doing, char *sentence) {
    (void)lib->cudaGetLastError();
    if (error == CUBLAS_STATUS_ALLOC_FAILED)
        snprintf(sentence, RM_CUDA_SENTENCE, "%s: cuBLAS found no memory for it; let other programs on this GPU end",
                 doing);
    else
        snprintf(sentence, RM_CUDA_SENTENCE,
                 "%s: cuBLAS says \"%s\" (status %d); nvidia-smi shows whether the GPU is well", doing,
                 lib->cublasGetStatusString(error), (int)error);
}

remat_status rm_cublas_status(const rm_cuda_library *lib, cublasStatus_t error, const char *doing) {
    char sentence[RM_CUDA_SENTENCE];
    if (error == CUBLAS_STATUS_SUCCESS) return REMAT_OK;
    blas_words(lib, error, doing, sentence);
    return rm_fail(blas_code_of(error), "%s", sentence);
}

/* "at step 7 of the plan (given last: lstm)". */
const char *rm_cuda_when(const rm_device *device, const char *doing, char *text) {
    if (device->step >= 0)
        snprintf(text, RM_CUDA_WHEN, "%s at step %lld of the plan (given last: %s)", doing, (long long)device->step,
                 device->doing);
    else
        snprintf(text, RM_CUDA_WHEN, "%s (given last: %s)", doing, device->doing);
    return text;
}

bool rm_cuda_went(rm_device *device, cudaError_t error, const char *doing) {
    char when[RM_CUDA_WHEN];
    if (error == cudaSuccess) return true;
    if (device->failed) return false;
    device->failed = code_of(error);
    words(device->lib, error, rm_cuda_when(device, doing, when), device->sentence);
    return false;
}

bool rm_cublas_went(rm_device *device, cublasStatus_t error, const char *doing) {
    char when[RM_CUDA_WHEN];
    if (error == CUBLAS_STATUS_SUCCESS) return true;
    if (device->failed) return false;
    device->failed = blas_code_of(error);
    blas_words(device->lib, error, rm_cuda_when(device, doing, when), device->sentence);
    return false;
}

bool rm_cuda_ready(rm_device *device) {
    return !device->failed && rm_cuda_went(device, device->lib->cudaSetDevice(device->number), "choosing the GPU");
}

remat_status rm_cuda_tell(rm_device *device) {
    remat_status status = device->failed;
    device->failed = REMAT_OK;
    return status ? rm_fail(status, "%s", device->sentence) : REMAT_OK;
}
