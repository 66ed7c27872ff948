/* settings.c: what a session's config names for its device, and whether the device supports it: the precision of matrix products, and
 * whose recurrent kernels run (device.h). */
#include <string.h>

#include "engine/device/device.h"

const char *const rm_precision_names[RM_PRECISIONS] = {[RM_FP32] = "fp32", [RM_TF32] = "tf32", [RM_BF16] = "bf16"};

remat_status rm_device_set_precision(const rm_device_api *api, rm_device *device, const char *name, rm_precision *out) {
    *out = RM_FP32;
    while (name && *out < RM_PRECISIONS && strcmp(name, rm_precision_names[*out])) (*out)++;
    REQUIRE(*out < RM_PRECISIONS, INVALID, "unknown precision \"%s\": use fp32, tf32 or bf16", name);
    return api->set_precision(device, *out);
}

remat_status rm_device_choose_cells(const rm_device_api *api, rm_device *device, const char *name, bool *cudnn) {
    static const char *const names[] = {"auto", "remat", "cudnn"};
    int which = 0;
    while (name && which < 3 && strcmp(name, names[which])) which++;
    REQUIRE(which < 3, INVALID, "{rnn_kernels} is \"%s\"; it can be auto, remat or cudnn", name);
    *cudnn = which == 2;
    if (!*cudnn) return REMAT_OK;
    REQUIRE(api->use_cudnn, MISSING,
            "cuDNN runs on GPUs, not on the device \"%s\": use the device cuda, or the recurrent kernels remat",
            api->name);
    return api->use_cudnn(device);
}
