/* device_flag.h: --device, and which of several GPUs: what a run computes on. */
#ifndef RM_TRAIN_DEVICE_H
#define RM_TRAIN_DEVICE_H

#include "train/flags/options.h"

/* Once the number of ranks is known. "auto" becomes "cuda" where a session on it would work, else "cpu"; who `speaks` says so
 * on stderr, with the reason. "cuda" where it would not work: MISSING, MEMORY or DEVICE, with what is lacking. Leaves the
 * device in options->session.device. */
remat_status rm_device_choose(rm_options *options, bool speaks);

/* "0,1", "cuda:0,1", "cuda": how many GPUs a --devices names; 0: it names none. */
int rm_device_count_gpus(const char *devices);

/* The GPUs of --devices, and no others, are what this process and those it starts see (CUDA_VISIBLE_DEVICES, in which numbers
 * count where it is set already); the device is "cuda". INVALID: there are no such GPUs, or --device says something else. */
remat_status rm_device_use_gpus(rm_options *options);

remat_status rm_device_set(rm_options *options, const char *device); /* MEMORY */

#endif
