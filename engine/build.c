/* build.c: what this build is made of: remat_build, for `remat info` and bug reports. */
#include "engine/abi.h"
#include "engine/session/session.h"
#include "memory/host.h"
#include "ops/cpu/kernels.h"
#include "ops/math/gemm.h"

remat_build_info rm_build_info_of_this(void) {
    const rm_cell_kernels *bf16 = rm_cell_kernels_bf16();
    remat_build_info info = {.version = REMAT_VERSION,
#ifdef __clang__
                             .compiler = "clang " __clang_version__,
#else
                             .compiler = "gcc " __VERSION__,
#endif
                             .instruction_set = (bf16 ? bf16 : rm_cell_kernels_get())->isa,
                             .gemm_library = rm_gemm_library(),
                             .host_allocator = rm_host_allocator(),
                             .threads = rm_default_threads(),
#ifdef REMAT_HAVE_CUDA
                             .devices = "cpu, cuda, null"};
#else
                             .devices = "cpu, null"};
#endif
    rm_host_stats(&info.host_allocated_bytes, &info.host_resident_bytes);
    return info;
}

remat_status remat_build(remat_build_info *out) {
    NEED(out, "a place for the result");
    *out = rm_build_info_of_this();
    return REMAT_OK;
}
