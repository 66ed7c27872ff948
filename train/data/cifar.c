/* cifar.c: see cifar.h. */
#include "train/data/cifar.h"

remat_status rm_cifar_check(const uint8_t *data, size_t size, const char *name, int64_t *count) {
    REQUIRE(size && size % RM_CIFAR_BYTES == 0, IO,
            "%s has %zu bytes, not a multiple of the %d bytes that CIFAR-10's binary files have per image: fetch it "
            "again (the binary version, not the Python version or CIFAR-100)",
            name, size, RM_CIFAR_BYTES);
    *count = (int64_t)(size / RM_CIFAR_BYTES);
    for (int64_t i = 0; i < *count; i++)
        REQUIRE(
            data[i * RM_CIFAR_BYTES] < RM_CIFAR_CLASSES, IO,
            "%s: image %lld has the label %d, but CIFAR-10's labels are 0 to 9: the file is damaged or not CIFAR-10",
            name, (long long)i, data[i * RM_CIFAR_BYTES]);
    return REMAT_OK;
}

void rm_cifar_image(const uint8_t *data, rm_array *out) {
    const int64_t side = RM_CIFAR_SIDE;
    *out =
        (rm_array){.kind = 'u', .bytes = 1, .rank = 3, .dim = {3, side, side, 1}, .stride = {side * side, side, 1, 0}};
    out->count = 3 * side * side;
    out->item = data + 1;
}
