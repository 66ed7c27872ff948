/* precision.c: precisions of matrix products by name, and whether a device supports them (device.h). */
#include <string.h>

#include "engine/device/device.h"

const char *const rm_precision_names[RM_PRECISIONS] = {[RM_FP32] = "fp32", [RM_TF32] = "tf32", [RM_BF16] = "bf16"};

remat_status rm_device_set_precision(const rm_device_api *api, rm_device *device, const char *name, rm_precision *out) {
    *out = RM_FP32;
    while (name && *out < RM_PRECISIONS && strcmp(name, rm_precision_names[*out])) (*out)++;
    REQUIRE(*out < RM_PRECISIONS, INVALID, "unknown precision \"%s\": use fp32, tf32 or bf16", name);
    return api->set_precision(device, *out);
}
