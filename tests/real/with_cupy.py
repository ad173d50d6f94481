"""Prints the answers of CuPy, which contains the CUDA runtime."""

import cupy

for name, part in [
    ("driverGetVersion", cupy.cuda.runtime.driverGetVersion),
    ("getDeviceCount", cupy.cuda.runtime.getDeviceCount),
    ("malloc", lambda: cupy.cuda.runtime.malloc(1 << 20)),
    ("zeros", lambda: cupy.zeros(4)),
]:
    try:
        print(name, part())
    except Exception as error:
        print(name, type(error).__name__, error)
