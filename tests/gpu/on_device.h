/* on_device.h: an op, as it runs on a device. on_device makes an op whose kernels in the CPU's column put a call's arrays into
 * the device's memory, run the device's kernel there and bring everything back; so the harness for ops (remat_op_check), which
 * knows of host memory alone, tests kernels on a real GPU, and all that it demands is demanded of them.
 *
 * Each array lies in a place of its own between redzones, at another place in every call; the device's memory holds NaN where
 * nothing was put. */
#ifndef RM_TEST_ON_DEVICE_H
#define RM_TEST_ON_DEVICE_H

#include "engine/device/device.h"

typedef struct {
    const rm_device_api *api;
    rm_device *device;
    rm_queue *queue;
    int64_t calls; /* of kernels so far */
} on_device_state;

/* One at a time. MISSING: no such device here; its sentence says what is not there. */
remat_status on_device_open(const char *name);
void on_device_close(void);
const on_device_state *on_device_now(void);

/* Valid until the next call of on_device; only the last one's kernels may be run. */
const remat_op *on_device(const remat_op *op);
/* What went wrong since the last time of asking: a kernel failed, or wrote beside its arrays; NULL: nothing. */
const char *on_device_complaint(void);

/* So many bytes of the device's memory, valid until the next call, filled with NaN; NULL: there is no room. */
char *on_device_room(uint64_t bytes);

#endif
