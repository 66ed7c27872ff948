/* devices.c: the devices of this build. A separate file, so that a test can link its own list. */
#include <string.h>

#include "engine/abi.h"
#include "engine/device/device.h"

const rm_device_api *rm_device_find(const char *name) {
    static const rm_device_api *const all[] = {
        &rm_device_cpu,
#ifdef REMAT_HAVE_CUDA
        &rm_device_cuda,
#endif
        &rm_device_null,
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (name && !strcmp(all[i]->name, name)) return all[i];
    return NULL;
}

remat_status rm_device_number(const char *name, int *number) {
    const rm_device_api *api = rm_device_find(name);
    rm_device *device = NULL;
    REQUIRE(api, MISSING, "this build has no device \"%s\"; it has: %s%s", name ? name : "",
            rm_build_info_of_this().devices, rm_device_remedy(name));
    TRY(api->open(1, &device));
    *number = api->number ? api->number(device) : -1;
    api->close(device);
    return REMAT_OK;
}

remat_status remat_device_check(const char *name) {
    int number;
    NEED(name, "the name of a device");
    return rm_device_number(name, &number);
}
