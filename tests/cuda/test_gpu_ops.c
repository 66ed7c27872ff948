/* test_gpu_ops.c: the program tests/gpu/test_ops.c on the emulated device: a few calls of every op, and everything for two. Of the others,
 * cuda/kernels checks the same kernels. */
#ifdef HAVE_CUDA_HEADERS

#define main program
#include "tests/gpu/test_ops.c"
#undef main

#include "tests/cuda/gpu_program.h"
#include "tests/sanitized.h"

int main(void) {
    int failed = run_gpu_program(program, (char *[]){"test_ops", "--small", NULL});
    for (int i = 0; i < 2 && !failed && !SANITIZED; i++)
        failed = run_gpu_program(program, (char *[]){"test_ops", "--few-elements", i ? "--op=gru" : "--op=attention", NULL});
    return failed;
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
