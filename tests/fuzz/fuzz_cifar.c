/* fuzz_cifar.c: any bytes as a CIFAR-10 file. Accepted files are read to the last byte. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "train/data/cifar.h"

static uint8_t two[2 * RM_CIFAR_BYTES]; /* zeros: labels 0 */
static const fuzz_seed seeds[] = {{two, sizeof two}, {two, RM_CIFAR_BYTES}};

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    *count = 2;
    return seeds;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t count;
    if (rm_cifar_check(data, size, "input", &count)) return 0;
    if (count < 1 || (size_t)count * RM_CIFAR_BYTES != size) abort();
    for (int64_t i = 0; i < count; i++) {
        rm_array image;
        rm_cifar_image(data + i * RM_CIFAR_BYTES, &image);
        const double last = rm_array_at(&image, 2, 31, 31);
        if (!(last >= 0 && last <= 255)) abort();
    }
    return 0;
}
