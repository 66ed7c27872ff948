/* test_cuda_errors.c: what the CUDA device says of errors (engine/cuda/error.c) that a fault at every call (test_cuda.c) does not
 * bring about: after which of them the process is done with the GPU, and what could help. */
#include <check.h>
#include <string.h>

#ifdef HAVE_CUDA_HEADERS

#include "tests/engine/fake_cuda/stand_ins.h"

static const char *sentence_of(cudaError_t error) {
    const rm_cuda_library *lib;
    ck_assert_msg(!rm_cuda_library_open(&lib), "%s", remat_last_error());
    ck_assert_int_eq(
        rm_cuda_status(lib, error, "waiting for the GPU at step 1234567890 of the plan (given last: lstm)"),
        REMAT_DEVICE);
    return remat_last_error();
}

/* CUDA's driver_types.h says of each: to continue using CUDA, the process must be terminated and relaunched. */
START_TEST(the_process_is_done_with_the_gpu) {
    static const struct {
        cudaError_t error;
        const char *word;
    } cases[] = {{cudaErrorECCUncorrectable, "nvidia-smi -q -d ECC"},
                 {cudaErrorIllegalAddress, "CUDA_LAUNCH_BLOCKING"},
                 {cudaErrorLaunchTimeout, "without a display"},
                 {cudaErrorAssert, "CUDA_LAUNCH_BLOCKING"},
                 {cudaErrorHardwareStackError, "lost its way"},
                 {cudaErrorIllegalInstruction, "lost its way"},
                 {cudaErrorMisalignedAddress, "CUDA_LAUNCH_BLOCKING"},
                 {cudaErrorInvalidAddressSpace, "CUDA_LAUNCH_BLOCKING"},
                 {cudaErrorInvalidPc, "lost its way"},
                 {cudaErrorLaunchFailure, "CUDA_LAUNCH_BLOCKING"}};
    stand_in_reset(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = sentence_of(cases[i].error);
        ck_assert_msg(!!strstr(text, "this process can no longer use"), "%d: %s", (int)cases[i].error, text);
        ck_assert_msg(!!strstr(text, cases[i].word), "%d: %s", (int)cases[i].error, text);
        ck_assert_msg(strlen(text) + 1 < RM_CUDA_SENTENCE, "%d is cut off: %s", (int)cases[i].error, text);
    }
    ck_assert(!strstr(sentence_of(cudaErrorInvalidValue), "this process can no longer use"));
}
END_TEST

/* A driver, a build or a package that does not suit the GPU: whoever can do without it does. */
START_TEST(not_for_this_gpu) {
    static const struct {
        cudaError_t error;
        const char *word;
    } cases[] = {{cudaErrorNoKernelImageForDevice, "CMAKE_CUDA_ARCHITECTURES"},
                 {cudaErrorUnsupportedPtxVersion, "install a newer driver"},
                 {cudaErrorCompatNotSupportedOnDevice, "cuda-compat"}};
    const rm_cuda_library *lib;
    stand_in_reset(1);
    ck_assert(!rm_cuda_library_open(&lib));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(rm_cuda_status(lib, cases[i].error, "starting the GPU"), REMAT_MISSING);
        ck_assert_msg(!!strstr(remat_last_error(), cases[i].word), "%s", remat_last_error());
    }
}
END_TEST

/* CUDA locks pages by its driver, for which the limit that `ulimit -l` shows does not count. */
START_TEST(no_room_on_the_host) {
    rm_device *device;
    rm_second_tier *tier;
    stand_in_reset(1);
    ck_assert(!rm_device_cuda.open(1, &device) && !rm_device_cuda.tier_open(device, "/tmp", &tier));
    fake_cuda_fail_at(fake_cuda_calls() + 2, cudaErrorMemoryAllocation); /* after waiting for copies */
    ck_assert_int_eq(rm_device_cuda.tier_reserve(tier, 12345), REMAT_MEMORY);
    fake_cuda_fail_at(0, 0);
    ck_assert_msg(!!strstr(remat_last_error(), "moves 12345 bytes to the host"), "%s", remat_last_error());
    ck_assert_msg(!!strstr(remat_last_error(), "container"), "%s", remat_last_error());
    ck_assert_msg(!strstr(remat_last_error(), "ulimit"), "%s", remat_last_error());
    rm_device_cuda.tier_close(tier);
    rm_device_cuda.close(device);
    ck_assert_msg(!fake_cuda_violation() && !fake_cuda_live(), "%s", fake_cuda_violation());
}
END_TEST

int main(void) {
    Suite *suite = suite_create("cuda_errors");
    TCase *c = tcase_create("cuda_errors");
    tcase_add_test(c, the_process_is_done_with_the_gpu);
    tcase_add_test(c, not_for_this_gpu);
    tcase_add_test(c, no_room_on_the_host);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
