/* cpu/choose.c: selects the kernels of an instruction set: the widest that was compiled and that this processor
 * supports, or those that a test or a precision requests; and queries the size of the caches. Compiled once, unlike the
 * kernels. Entry point: rm_cell_kernels_get. */
#include "ops/cpu/kernels.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const rm_cell_kernels rm_cell_kernels_baseline;
#ifdef RM_HAVE_X86_KERNELS
extern const rm_cell_kernels rm_cell_kernels_avx2, rm_cell_kernels_avx512;
#endif
#ifdef RM_HAVE_BF16_KERNELS
extern const rm_cell_kernels rm_cell_kernels_avx512_bf16;
#endif

static const rm_cell_kernels *chosen; /* by rm_cell_kernels_use; NULL: the best */

const rm_cell_kernels *rm_cell_kernels_list(int i) {
    if (i == 0) return &rm_cell_kernels_baseline;
#ifdef RM_HAVE_X86_KERNELS
    __builtin_cpu_init();
    if (i == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &rm_cell_kernels_avx2;
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (i == 2 && avx512) return &rm_cell_kernels_avx512;
#endif
#ifdef RM_HAVE_BF16_KERNELS
    if (i == RM_CELL_BF16 && avx512 && __builtin_cpu_supports("avx512bf16")) return &rm_cell_kernels_avx512_bf16;
#endif
    return NULL;
}

void rm_cell_kernels_use(const rm_cell_kernels *kernels) { chosen = kernels; }

static const char *named_isa(void) {
    const char *isa = getenv("REMAT_ISA");
    return isa && *isa ? isa : NULL;
}

/* NULL: this build or processor lacks the instruction set that REMAT_ISA names. */
static const rm_cell_kernels *find_usual(void) {
    const char *isa = named_isa();
    for (int i = RM_CELL_BF16 - 1; i >= 0; i--) {
        const rm_cell_kernels *kernels = rm_cell_kernels_list(i);
        if (kernels && (!isa || !strcmp(kernels->isa, isa))) return kernels;
    }
    return NULL;
}

const rm_cell_kernels *rm_cell_kernels_get(void) {
    static _Atomic(const rm_cell_kernels *) usual; /* the variable is read once */
    if (chosen) return chosen;
    const rm_cell_kernels *kernels = atomic_load_explicit(&usual, memory_order_relaxed);
    if (kernels) return kernels;
    kernels = find_usual();
    if (!kernels) kernels = &rm_cell_kernels_baseline;
    atomic_store_explicit(&usual, kernels, memory_order_relaxed);
    return kernels;
}

const rm_cell_kernels *rm_cell_kernels_bf16(void) { return named_isa() ? NULL : rm_cell_kernels_list(RM_CELL_BF16); }

remat_status rm_cell_kernels_check(void) {
    REQUIRE(find_usual(), MISSING,
            "REMAT_ISA is \"%s\", which this build or processor does not have; set it to baseline%s%s, or unset it",
            named_isa(), rm_cell_kernels_list(1) ? ", avx2" : "", rm_cell_kernels_list(2) ? ", avx512" : "");
    return REMAT_OK;
}

/* Some systems do not report it. */
int64_t rm_cell_cache_bytes(void) {
#ifdef _SC_LEVEL2_CACHE_SIZE
    long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (bytes > 0) return bytes;
#endif
    return 1 << 20;
}
