"""Prints the answers of NVIDIA's Python bindings of driver and runtime."""

from cuda.bindings import driver, runtime

for library, name, arguments in [
    (driver, "cuInit", [0]),
    (driver, "cuDriverGetVersion", []),
    (driver, "cuDeviceGetCount", []),
    (driver, "cuDeviceGet", [0]),
    (runtime, "cudaGetDeviceCount", []),
    (runtime, "cudaMalloc", [1 << 20]),
]:
    code, *values = getattr(library, name)(*arguments)
    print(name, int(code), *values)
