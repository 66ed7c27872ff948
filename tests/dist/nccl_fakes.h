/* nccl_fakes.h: groups of the engine nccl over libraries that compute on the CPU (fake_nccl/fake.h). Include ranks.h or
 * collectives.h before. */
#ifndef RM_TESTS_NCCL_FAKES_H
#define RM_TESTS_NCCL_FAKES_H

#include <dlfcn.h>

static inline void use_fakes(const char *faults) {
    setenv("REMAT_NCCL_LIBRARY", FAKE_NCCL, 1);
    setenv("REMAT_CUDART_LIBRARY", FAKE_CUDART, 1);
    setenv("FAKE_NCCL", faults ? faults : "", 1);
}

static inline bool is_loaded(const char *library) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (handle) dlclose(handle);
    return handle;
}

static inline int count_of(const char *library, const char *function) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    int (*count)(void);
    need(handle, "%s is not loaded", library);
    *(void **)&count = dlsym(handle, function);
    dlclose(handle);
    return count();
}

static inline void need_nothing_left(void) {
    need(count_of(FAKE_NCCL, "fake_nccl_live") == 0, "communicators are left");
    need(count_of(FAKE_CUDART, "fake_cuda_live") == 0, "memory or streams of the GPU are left");
}

static inline const char *bucket_name(void *context, uint32_t tag) {
    static _Thread_local char text[32];
    (void)context;
    snprintf(text, sizeof text, "bucket %u", tag);
    return text;
}

static inline rm_group_config config_of(int rank, int size, rm_kv *store) {
    return (rm_group_config){.engine = "nccl",
                             .rank = rank,
                             .size = size,
                             .store = store,
                             .gpu = rank + 1,
                             .timeout_ms = 60000,
                             .tag_name = bucket_name};
}

#endif
