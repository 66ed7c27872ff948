/* test_gpu_products.c: the program tests/gpu/test_products.c on the emulated device. */
#ifdef HAVE_CUDA_HEADERS

#define main program
#include "tests/gpu/test_products.c"
#undef main

#include "tests/cuda/gpu_program.h"

int main(void) { return run_gpu_program(program, (char *[]){"test_products", "--small", NULL}); }

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif
