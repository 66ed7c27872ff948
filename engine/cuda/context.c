/* context.c: measures the GPU memory of CUDA's context, some hundred MiB, which CUDA allocates as soon as a process
 * uses the GPU: rm_cuda_context_begin. CUDA cannot report it, since asking CUDA creates the context. The driver's NVML
 * reports the memory in use before and after. Memory that another program allocates or frees in between is counted,
 * too; no better way is known. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "engine/cuda/cuda.h"

enum { GPUS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t known[GPUS];
static bool begun[GPUS];
static int users[GPUS]; /* open devices, of which the first counts the context */
static uint64_t most[GPUS][RM_CUDA_TAKERS];

/* ---- NVML: the declarations that are needed, since toolkits often lack its header ------------------------------- */

typedef struct {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct {
    int (*init)(void);
    int (*find)(const char *bus, void **gpu);
    int (*memory)(void *gpu, nvml_memory *out);
} nvml;

/* The library stays open. */
static bool open_nvml(nvml *out) {
    const char *named = getenv("REMAT_NVML_LIBRARY");
    void *handle = dlopen(named && *named ? named : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) return false;
    *(void **)&out->init = dlsym(handle, "nvmlInit_v2");
    *(void **)&out->find = dlsym(handle, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&out->memory = dlsym(handle, "nvmlDeviceGetMemoryInfo");
    return out->init && out->find && out->memory && !out->init();
}

/* Finds the GPU by its PCI bus id, since NVML ignores CUDA_VISIBLE_DEVICES. */
static bool find_gpu(const rm_cuda_library *lib, int number, nvml *n, void **gpu) {
    char bus[32];
    if (!open_nvml(n)) return false;
    if (lib->cudaDeviceGetPCIBusId(bus, sizeof bus, number) == cudaSuccess) return !n->find(bus, gpu);
    (void)lib->cudaGetLastError();
    return false;
}

static uint64_t used_bytes(const nvml *n, void *gpu) {
    nvml_memory memory = {0};
    return n->memory(gpu, &memory) ? 0 : memory.used;
}

/* ---- The context ------------------------------------------------------------------------------------------------ */

static remat_status begin(const rm_cuda_library *lib, int number, uint64_t *bytes) {
    nvml n;
    void *gpu = NULL;
    size_t free, total;
    bool sees = find_gpu(lib, number, &n, &gpu);
    uint64_t before = sees ? used_bytes(&n, gpu) : 0, after;
    TRY(rm_cuda_status(lib, lib->cudaSetDevice(number), "starting the GPU"));
    TRY(rm_cuda_status(lib, lib->cudaMemGetInfo(&free, &total), "starting the GPU")); /* creates the context */
    after = sees ? used_bytes(&n, gpu) : 0;
    *bytes = before && after > before ? after - before : 0;
    return REMAT_OK;
}

remat_status rm_cuda_context_begin(const rm_cuda_library *lib, int number, uint64_t *bytes) {
    remat_status status = REMAT_OK;
    *bytes = 0;
    if (number >= GPUS) return rm_cuda_status(lib, lib->cudaSetDevice(number), "starting the GPU");
    pthread_mutex_lock(&lock);
    if (begun[number])
        status = rm_cuda_status(lib, lib->cudaSetDevice(number), "starting the GPU");
    else
        status = begin(lib, number, &known[number]);
    begun[number] |= !status;
    *bytes = status || users[number] ? 0 : known[number];
    users[number] += !status;
    pthread_mutex_unlock(&lock);
    return status;
}

void rm_cuda_context_end(int number) {
    if (number >= GPUS) return;
    pthread_mutex_lock(&lock);
    users[number]--;
    pthread_mutex_unlock(&lock);
}

uint64_t rm_cuda_context_most(int number, rm_cuda_taker taker, uint64_t bytes) {
    if (number >= GPUS) return bytes;
    pthread_mutex_lock(&lock);
    if (most[number][taker] < bytes) most[number][taker] = bytes;
    bytes = most[number][taker];
    pthread_mutex_unlock(&lock);
    return bytes;
}
