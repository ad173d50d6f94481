/* The few declarations of the CUDA Driver API that `light.c` uses, written by hand from its documentation, so that the
 * program builds on a machine without the CUDA toolkit. */
#ifndef LIGHT_CUDA_H
#define LIGHT_CUDA_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef void (*CUhostFn)(void *);

enum { CUDA_SUCCESS = 0 };
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2 };
enum { CU_CTX_SCHED_BLOCKING_SYNC = 4 };
enum { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16 };

/* name in libcuda.so.1, name here, arguments */
#define CUDA_CALLS(CALL)                                                                                               \
    CALL(cuInit, cuInit, (unsigned flags))                                                                             \
    CALL(cuDeviceGet, cuDeviceGet, (CUdevice * device, int ordinal))                                                   \
    CALL(cuDeviceGetCount, cuDeviceGetCount, (int *count))                                                             \
    CALL(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))                     \
    CALL(cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags))                 \
    CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                   \
    CALL(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext context))                                                        \
    CALL(cuModuleLoadData, cuModuleLoadData, (CUmodule * module, const void *image))                                   \
    CALL(cuModuleGetFunction, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))         \
    CALL(cuStreamCreate, cuStreamCreate, (CUstream * stream, unsigned flags))                                          \
    CALL(cuStreamSynchronize, cuStreamSynchronize, (CUstream stream))                                                  \
    CALL(cuEventCreate, cuEventCreate, (CUevent * event, unsigned flags))                                              \
    CALL(cuEventRecord, cuEventRecord, (CUevent event, CUstream stream))                                               \
    CALL(cuEventSynchronize, cuEventSynchronize, (CUevent event))                                                      \
    CALL(cuMemAlloc_v2, cuMemAlloc, (CUdeviceptr * address, size_t bytes))                                             \
    CALL(cuMemHostAlloc, cuMemHostAlloc, (void **address, size_t bytes, unsigned flags))                               \
    CALL(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync,                                                                      \
         (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                                            \
    CALL(cuLaunchHostFunc, cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data))                         \
    CALL(cuLaunchKernel, cuLaunchKernel,                                                                               \
         (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,           \
          unsigned shared, CUstream stream, void **parameters, void **extra))

#endif
