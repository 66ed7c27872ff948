/* on_device.h: an op that runs on a device. on_device makes an op whose kernels in the CPU's column copy a call's
 * arrays to the device's memory, run the device's kernel and copy everything back. So the harness for ops
 * (remat_op_check), which only knows host memory, tests kernels on a real GPU.
 *
 * Each array lies between redzones, at a different place in every call. All other device memory holds NaN. */
#ifndef RM_TEST_ON_DEVICE_H
#define RM_TEST_ON_DEVICE_H

#include "engine/device/device.h"

typedef struct {
    const rm_device_api *api;
    rm_device *device;
    rm_queue *queue;
    int64_t calls; /* of kernels so far */
} on_device_state;

/* Only one can be open. MISSING: this machine has no such device; the message says what is missing. */
remat_status on_device_open(const char *name);
void on_device_close(void);
const on_device_state *on_device_now(void);

/* Valid until the next call of on_device; only the kernels of the latest op may run. */
const remat_op *on_device(const remat_op *op);
/* The error since the last call: a kernel failed, or wrote outside its arrays. NULL: no error. */
const char *on_device_complaint(void);

/* This many bytes of device memory, filled with NaN, valid until the next call. NULL: not enough memory. */
char *on_device_room(uint64_t bytes);

#endif
