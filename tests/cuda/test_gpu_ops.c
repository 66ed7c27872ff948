/* test_gpu_ops.c: the program tests/gpu/test_ops.c on the emulated device: a few calls of every op, and everything for three, one of
 * them with long rows. Of the others, cuda/kernels and cuda/rows check the same kernels. */
#ifdef HAVE_CUDA_HEADERS

#define main program
#include "tests/gpu/test_ops.c"
#undef main

#include "tests/cuda/gpu_program.h"
#include "tests/sanitized.h"

int main(void) {
    int failed = run_gpu_program(program, (char *[]){"test_ops", "--small", NULL});
    static char *const op[] = {"--op=attention", "--op=gru", "--op=softmax"};
    for (int i = 0; i < 3 && !failed && !SANITIZED; i++)
        failed = run_gpu_program(program, (char *[]){"test_ops", "--few-elements", op[i], NULL});
    return failed;
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
