/* test_gpu_ops.c: the program tests/gpu/test_ops.c on the emulated device. */
#ifdef HAVE_CUDA_HEADERS

#define main program
#include "tests/gpu/test_ops.c"
#undef main

#include "tests/cuda/gpu_program.h"
#include "tests/sanitized.h"

int main(void) {
    return run_gpu_program(program, (char *[]){"test_ops", SANITIZED ? "--small" : "--few-elements", NULL});
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
