/* test_gpu_plans.c: the program tests/gpu/test_plans.c on the emulated device. */
#ifdef HAVE_CUDA_HEADERS

#define main program
#include "tests/gpu/test_plans.c"
#undef main

#include "tests/cuda/gpu_program.h"

/* One network at a time, because the fake CUDA limits the number of streams. */
int main(void) {
    char *flags[] = {"test_plans", "--small", NULL, NULL};
    char *in_bf16[] = {"test_plans", "--small", "--net=unet", "--precision=bf16", "--kernels=cudnn", NULL};
    static char *const net[] = {"--net=lstm", "--net=gru", "--net=rnn", "--net=resnet", "--net=unet", "--net=gpt"};
    for (size_t i = 0; i < sizeof net / sizeof *net; i++) {
        flags[2] = net[i];
        if (run_gpu_program(program, flags)) return EXIT_FAILURE;
    }
    return run_gpu_program(program, in_bf16);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
