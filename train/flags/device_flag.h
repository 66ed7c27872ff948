/* device_flag.h: --device and --devices: the device that a run computes on. */
#ifndef RM_TRAIN_DEVICE_H
#define RM_TRAIN_DEVICE_H

#include "train/flags/options.h"

/* Sets options->session.device; call it once the number of ranks is known. "auto" becomes "cuda" if a session on it would work,
 * else "cpu"; `verbose` prints the reason for "cpu" to stderr. MISSING, MEMORY or DEVICE: "cuda" was requested and would not work. */
remat_status rm_device_choose(rm_options *options, bool verbose);

/* The number of GPUs that --devices names, as "0,1", "cuda:0,1" or "cuda"; 0: it names none. */
int rm_device_count_gpus(const char *devices);

/* Makes only the GPUs of --devices visible to this process and its children, by CUDA_VISIBLE_DEVICES, and sets the device to "cuda".
 * If that variable is set already, --devices indexes its list. INVALID: no such GPU, or another --device. */
remat_status rm_device_use_gpus(rm_options *options);

remat_status rm_device_set(rm_options *options, const char *device); /* MEMORY */

#endif
