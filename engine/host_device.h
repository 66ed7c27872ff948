/* host_device.h: RM_HD marks functions that run both on the CPU and in CUDA kernels. nvcc compiles them for both; for other compilers it is
 * `static inline`. So their mathematics is written once and tested on the CPU. */
#ifndef RM_HOST_DEVICE_H
#define RM_HOST_DEVICE_H

#ifdef __CUDACC__
#define RM_HD static inline __host__ __device__
#else
#define RM_HD static inline
#endif

#endif
