"""Computes with Numba, cuda.bindings and cuda.core and prints a digest of each result. The output must be
the same with the bare driver and in a claim."""

import hashlib

import numpy as np
from numba import cuda


def digest(name, array):
    print(name, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16], flush=True)


@cuda.jit
def step(x, y, n):
    i = cuda.grid(1)
    if i < n:
        acc = np.float32(0)
        for k in range(8):
            acc += x[(i + k) % n] * np.float32(k + 1)
        y[i] = acc


def with_numba():
    n = 5000
    x = np.arange(n, dtype=np.float32) / np.float32(7)
    y = cuda.device_array(n, dtype=np.float32)
    step[(n + 127) // 128, 128](cuda.to_device(x), y, n)
    digest("numba", y.copy_to_host())


def checked(result):
    if int(result[0]) != 0:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def with_bindings():
    from cuda.bindings import driver

    data = np.arange(1 << 16, dtype=np.uint32)
    pointer = checked(driver.cuMemAlloc(data.nbytes))
    checked((*driver.cuMemcpyHtoD(pointer, data.ctypes.data, data.nbytes), None))
    checked((*driver.cuMemsetD32(int(pointer) + 4096, 0xDEADBEEF, 512), None))
    back = np.empty_like(data)
    checked((*driver.cuMemcpyDtoH(back.ctypes.data, pointer, data.nbytes), None))
    checked((*driver.cuMemFree(pointer), None))
    digest("bindings", back)


SOURCE = r"""
extern "C" __global__ void mix(const float *a, const float *b, float *out, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] * 3.0f + b[i];
}
"""


def with_core():
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    stream = device.create_stream()
    arch = "".join(str(part) for part in device.compute_capability)
    program = Program(SOURCE, code_type="c++", options=ProgramOptions(arch=f"compute_{arch}"))
    kernel = program.compile("ptx").get_kernel("mix")
    n = 4096
    a = np.arange(n, dtype=np.float32)
    b = np.sqrt(a)
    buffers = [device.allocate(a.nbytes, stream=stream) for _ in range(3)]
    stream.sync()
    from cuda.bindings import driver

    for buffer, array in zip(buffers, (a, b)):
        checked((*driver.cuMemcpyHtoD(int(buffer.handle), array.ctypes.data, array.nbytes), None))
    launch(stream, LaunchConfig(grid=(n // 128,), block=(128,)), kernel,
           buffers[0], buffers[1], buffers[2], np.uint32(n))
    stream.sync()
    out = np.empty_like(a)
    checked((*driver.cuMemcpyDtoH(out.ctypes.data, int(buffers[2].handle), out.nbytes), None))
    if not np.array_equal(out, a * np.float32(3) + b):
        raise RuntimeError("cuda.core computed something else")
    digest("core", out)
    for buffer in buffers:
        buffer.close(stream)


with_numba()
with_bindings()
with_core()
