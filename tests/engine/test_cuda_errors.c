/* test_cuda_errors.c: messages of the CUDA device (engine/cuda/error.c) for errors that test_cuda.c does not cause:
 * after which errors the process cannot use the GPU any more, and what could help. */
#include <check.h>
#include <string.h>

#ifdef HAVE_CUDA_HEADERS

#include "tests/engine/fake_cuda/stand_ins.h"
#include "tests/says.h"
#include "tests/suite.h"

static const char *sentence_of(cudaError_t error) {
    const rm_cuda_library *lib;
    ck_assert_msg(!rm_cuda_library_open(&lib), "%s", remat_last_error());
    ck_assert_int_eq(
        rm_cuda_status(lib, error, "waiting for the GPU at step 1234567890 of the plan (given last: lstm)"),
        REMAT_DEVICE);
    return remat_last_error();
}

/* CUDA's driver_types.h says for each: to continue using CUDA, the process must be terminated and relaunched. */
START_TEST(fatal_errors_say_that_the_process_cannot_continue) {
    static const struct {
        cudaError_t error;
        const char *word;
    } cases[] = {{cudaErrorECCUncorrectable, "nvidia-smi -q -d ECC"},
                 {cudaErrorIllegalAddress, "CUDA_LAUNCH_BLOCKING"},
                 {cudaErrorLaunchTimeout, "display"},
                 {cudaErrorAssert, "CUDA_LAUNCH_BLOCKING"},
                 {cudaErrorHardwareStackError, "kernel"},
                 {cudaErrorIllegalInstruction, "kernel"},
                 {cudaErrorMisalignedAddress, "CUDA_LAUNCH_BLOCKING"},
                 {cudaErrorInvalidAddressSpace, "CUDA_LAUNCH_BLOCKING"},
                 {cudaErrorInvalidPc, "kernel"},
                 {cudaErrorLaunchFailure, "CUDA_LAUNCH_BLOCKING"}};
    stand_in_reset(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = sentence_of(cases[i].error);
        ck_assert_msg(says_all(text, "process|no longer") && says_all(text, cases[i].word), "%d: %s",
                      (int)cases[i].error, text);
        ck_assert_msg(strlen(text) + 1 < RM_CUDA_SENTENCE, "%d is cut off: %s", (int)cases[i].error, text);
    }
    ck_assert(!says_all(sentence_of(cudaErrorInvalidValue), "no longer"));
}
END_TEST

/* A driver, build or package that does not match the GPU: the status is MISSING, so that callers can fall back. */
START_TEST(mismatched_drivers_and_builds_are_missing) {
    static const struct {
        cudaError_t error;
        const char *word;
    } cases[] = {{cudaErrorNoKernelImageForDevice, "CMAKE_CUDA_ARCHITECTURES"},
                 {cudaErrorUnsupportedPtxVersion, "newer driver"},
                 {cudaErrorCompatNotSupportedOnDevice, "cuda-compat"}};
    const rm_cuda_library *lib;
    stand_in_reset(1);
    ck_assert(!rm_cuda_library_open(&lib));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(rm_cuda_status(lib, cases[i].error, "starting the GPU"), REMAT_MISSING);
        ck_says_all(remat_last_error(), cases[i].word);
    }
}
END_TEST

/* CUDA's driver locks pages itself, so the limit of `ulimit -l` does not apply. */
START_TEST(full_host_memory_is_explained) {
    rm_device *device;
    rm_second_tier *tier;
    stand_in_reset(1);
    ck_assert(!rm_device_cuda.open(1, &device) && !rm_device_cuda.tier_open(device, "/tmp", &tier));
    fake_cuda_fail_at(fake_cuda_calls() + 2, cudaErrorMemoryAllocation); /* after the wait for copies */
    ck_assert_int_eq(rm_device_cuda.tier_reserve(tier, 12345), REMAT_MEMORY);
    fake_cuda_fail_at(0, 0);
    ck_says_all(remat_last_error(), "12345 bytes|host");
    ck_says_all(remat_last_error(), "container");
    ck_assert_msg(!strstr(remat_last_error(), "ulimit"), "%s", remat_last_error());
    rm_device_cuda.tier_close(tier);
    rm_device_cuda.close(device);
    ck_assert_msg(!fake_cuda_violation() && !fake_cuda_live(), "%s", fake_cuda_violation());
}
END_TEST

int main(void) {
    TCase *c = tcase_create("cuda_errors");
    tcase_add_test(c, fatal_errors_say_that_the_process_cannot_continue);
    tcase_add_test(c, mismatched_drivers_and_builds_are_missing);
    tcase_add_test(c, full_host_memory_is_explained);
    return run_cases("cuda_errors", c);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
