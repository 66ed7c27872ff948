/* fuzz_decode.c: any bytes as a JPEG or PNG file. An image with a valid header is decoded in colour and in grey into
 * memory of exactly that size. An error leaves nothing allocated. Large images are skipped, since they only take
 * long. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "tests/train/image_files.h"
#include "train/data/decode.h"

enum { MOST = 1 << 16 };
static fuzz_seed seeds[IMAGE_FILES];

const fuzz_seed *rm_fuzz_seeds(size_t *count) {
    for (int i = 0; i < IMAGE_FILES; i++) seeds[i] = (fuzz_seed){image_files[i].data, image_files[i].size};
    *count = IMAGE_FILES;
    return seeds;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rm_image_size about;
    if (rm_image_size_of(data, size, "input", &about)) return 0;
    if (about.height < 1 || about.width < 1 || about.height > RM_MOST_PIXELS / about.width) abort();
    if (about.height * about.width > MOST) return 0;
    for (int64_t channels = 1; channels <= 3; channels += 2) {
        uint8_t *out = malloc((size_t)(about.height * about.width * channels));
        if (!out) abort();
        (void)rm_image_decode(data, size, "input", channels, &about, out);
        free(out);
    }
    return 0;
}
