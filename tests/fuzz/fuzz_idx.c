/* fuzz_idx.c: any bytes as an IDX file. An accepted file must have exactly the number of bytes that its header
 * declares. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "train/data/idx.h"

static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 9};
static const fuzz_seed seeds[] = {{images, sizeof images}, {labels, sizeof labels}};

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    *count = 2;
    return seeds;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_array idx;
    volatile uint8_t last;
    if (rm_idx_parse(data, size, "input", &idx)) return 0;
    if (idx.count < 1 || idx.item + idx.count != data + size) abort();
    if (idx.count != idx.dim[0] * idx.dim[1] * idx.dim[2] * idx.dim[3]) abort();
    last = idx.item[idx.count - 1];
    (void)last;
    return 0;
}
