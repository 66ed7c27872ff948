/* precision.c: what matrix products round their operands to, by name, and whether a device does so (device.h). */
#include <string.h>

#include "engine/device/device.h"

const char *const rm_precision_names[RM_PRECISIONS] = {[RM_FP32] = "fp32", [RM_TF32] = "tf32", [RM_BF16] = "bf16"};

remat_status rm_device_set_precision(const rm_device_api *api, rm_device *device, const char *name, rm_precision *out) {
    *out = RM_FP32;
    while (name && *out < RM_PRECISIONS && strcmp(name, rm_precision_names[*out])) (*out)++;
    REQUIRE(*out < RM_PRECISIONS, INVALID, "precision is \"%s\"; it can be fp32, tf32 or bf16", name);
    return api->set_precision(device, *out);
}
