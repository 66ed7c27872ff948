/* nccl_error.c: messages for NCCL's results: rm_nccl_fail. */
#include <stdio.h>
#include <string.h>

#include "dist/nccl/nccl_comm.h"

typedef struct {
    const char *words; /* a part of NCCL's text; NULL: any text */
    ncclResult_t result;
    remat_status status;
    const char *meaning, *remedy;
} explanation;

/* The first match counts. */
static const explanation explanations[] = {
    {"Duplicate GPU", 0, REMAT_INVALID, "two ranks of a machine use the same GPU, which NCCL refuses",
     "start at most as many ranks on a machine as it has GPUs (--nproc-per-node), and let each use the GPU of its "
     "local rank"},
    {"socket interface", 0, REMAT_DEVICE, "NCCL found no network interface to use",
     "choose one with NCCL_SOCKET_IFNAME=NAME (`ip -br addr` lists them; ^NAME excludes one)"},
    {"no interface found", 0, REMAT_DEVICE, "NCCL found no network interface to use",
     "choose one with NCCL_SOCKET_IFNAME=NAME (`ip -br addr` lists them; ^NAME excludes one)"},
    {NULL, ncclUnhandledCudaError, REMAT_DEVICE, "a call to CUDA failed within NCCL",
     "check with `nvidia-smi` whether the GPU works, whether other programs fill its memory, and whether its driver is "
     "new enough; NCCL_DEBUG=INFO says which call it was"},
    {NULL, ncclSystemError, REMAT_DEVICE, "a call to the system failed within NCCL",
     "often caused by the network interface (choose one with NCCL_SOCKET_IFNAME=NAME) or by too little /dev/shm in a "
     "container; NCCL_DEBUG=INFO says which call it was"},
    {NULL, ncclInternalError, REMAT_DEVICE, "NCCL failed within itself",
     "NCCL_DEBUG=INFO says where; different versions of NCCL on the ranks can also cause this"},
    {NULL, ncclInvalidArgument, REMAT_INVALID, "NCCL refused an argument", "NCCL_DEBUG=WARN says which"},
    {NULL, ncclInvalidUsage, REMAT_INVALID, "NCCL reports wrong usage", "NCCL_DEBUG=WARN says how"},
    {NULL, ncclRemoteError, REMAT_PEER, "NCCL lost its connection to another rank",
     "another rank has ended, or the network failed; look for the first failure in the logs of the other ranks"},
};
enum { EXPLANATIONS = sizeof explanations / sizeof *explanations };

static const explanation *explain(ncclResult_t result, const char *text) {
    for (int i = 0; i < EXPLANATIONS; i++) {
        const explanation *e = &explanations[i];
        if (e->words ? strstr(text, e->words) != NULL : e->result == result) return e;
    }
    return NULL;
}

remat_status rm_nccl_fail(const rm_nccl_library *lib, ncclComm_t comm, ncclResult_t result) {
    char text[300];
    const char *last = lib->ncclGetLastError(comm);
    snprintf(text, sizeof text, "%s", last && *last ? last : lib->ncclGetErrorString(result));
    for (size_t n = strlen(text); n > 0 && strchr("\n .", text[n - 1]); n--) text[n - 1] = 0;
    const explanation *e = explain(result, text);
    if (!e) FAIL(DEVICE, "NCCL failed with result %d: %s. NCCL_DEBUG=INFO says more", (int)result, text);
    return rm_fail(e->status, "%s: %s. %s", e->meaning, text, e->remedy);
}
