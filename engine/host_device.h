/* host_device.h: RM_HD, which marks the functions that run on the CPU and in CUDA kernels alike: nvcc compiles them for
 * both, and every other compiler reads `static inline`. Their mathematics is written once, and the CPU's tests test it. */
#ifndef RM_HOST_DEVICE_H
#define RM_HOST_DEVICE_H

#ifdef __CUDACC__
#define RM_HD static inline __host__ __device__
#else
#define RM_HD static inline
#endif

#endif
