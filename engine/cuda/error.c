/* error.c: messages for errors of CUDA and cuBLAS (rnn.c has cuDNN's), of synchronous calls and of queued work. A
 * failure of queued work shows later, possibly at an unrelated call. */
#include <stdio.h>

#include "engine/cuda/cuda.h"

/* Remedies for the errors that users meet. After those that say so, every CUDA call fails with the same error until the
 * process ends (CUDA's driver_types.h). */
static const char *remedy(cudaError_t error) {
    switch (error) {
    case cudaErrorInsufficientDriver:
        return ": the NVIDIA driver is older than this CUDA; install a newer one, or use the device cpu";
    case cudaErrorNoDevice:
        return ": check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the device cpu";
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
        return ": this build's kernels are for other GPUs; build it again with -DCMAKE_CUDA_ARCHITECTURES=native on "
               "this machine, or use the device cpu";
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
        return ": the driver cannot translate this build's kernels for this GPU; install a newer driver, or build "
               "Remat again with -DCMAKE_CUDA_ARCHITECTURES=native on this machine";
    case cudaErrorCompatNotSupportedOnDevice:
        return ": the loader has found a forward-compatibility package (cuda-compat), which this GPU does not support; "
               "remove it from LD_LIBRARY_PATH, and install a newer driver if necessary";
    case cudaErrorDevicesUnavailable:
        return ": another program uses the GPU exclusively (nvidia-smi shows which); end it, or use another GPU";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
        return ": a kernel has failed, and this process can no longer use the GPU; run it with CUDA_LAUNCH_BLOCKING=1, "
               "which names the exact step";
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
        return ": a kernel has crashed, and this process can no longer use the GPU; start it again, and if that does "
               "not help, check whether driver and build match the GPU (nvidia-smi, dmesg)";
    case cudaErrorLaunchTimeout:
        return ": a GPU with a display aborts kernels that take seconds, and this process can no longer use it; start "
               "it again on a GPU without a display, or with a smaller tile or batch";
    case cudaErrorECCUncorrectable:
        return ": the GPU's memory has an uncorrectable error, and this process can no longer use the GPU; use "
               "another one, or reset it (nvidia-smi -q -d ECC counts such errors)";
    default:
        return "; check the GPU with nvidia-smi";
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
                 "%s: CUDA is out of memory; end other programs on this GPU, or use a smaller batch or a memory budget",
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
        snprintf(sentence, RM_CUDA_SENTENCE, "%s: cuBLAS is out of memory; end other programs on this GPU", doing);
    else
        snprintf(sentence, RM_CUDA_SENTENCE, "%s: cuBLAS says \"%s\" (status %d); check the GPU with nvidia-smi", doing,
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
