"""NVIDIA's own Python bindings of the driver API, with a kernel compiled by NVRTC.

Prints one fact per line; after `ready` it allocates memory for each line that it reads. It knows nothing of gshare.
"""

import ctypes
import sys

import numpy as np
from cuda.bindings import driver, nvrtc

STEP = (256 << 20) + 1
SOURCE = b"""
extern "C" __global__ void mix(const unsigned *in, unsigned *out, int n, unsigned rounds)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned v = in[i];
        for (unsigned r = 0; r < rounds; r++)
            v = (v ^ (v >> 15)) * 2654435761u + r;
        out[i] = v;
    }
}
"""


class Failed(Exception):
    pass


def check(result):
    status, *values = result
    if status.value != 0:
        if isinstance(status, driver.CUresult):
            _, name = driver.cuGetErrorName(status)
            raise Failed(name.decode())
        raise Failed(str(status))
    return values[0] if len(values) == 1 else tuple(values)


def compile(device):
    major, minor = (
        check(driver.cuDeviceGetAttribute(a, device))
        for a in (
            driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    program = check(nvrtc.nvrtcCreateProgram(SOURCE, b"mix.cu", 0, [], []))
    option = f"--gpu-architecture=compute_{major}{minor}".encode()
    check(nvrtc.nvrtcCompileProgram(program, 1, [option]))
    ptx = b" " * check(nvrtc.nvrtcGetPTXSize(program))
    check(nvrtc.nvrtcGetPTX(program, ptx))
    module = check(driver.cuModuleLoadData(ptx))
    return check(driver.cuModuleGetFunction(module, b"mix"))


def mix(kernel, data):
    """Whether the kernel's result is right."""
    source, target = (check(driver.cuMemAlloc(data.nbytes)) for _ in range(2))
    check(driver.cuMemcpyHtoD(source, data.ctypes.data, data.nbytes))
    kinds = (None, None, ctypes.c_int, ctypes.c_uint)
    arguments = ((source, target, data.size, 9), kinds)
    check(driver.cuLaunchKernel(kernel, 16, 1, 1, 128, 1, 1, 0, 0, arguments, 0))
    check(driver.cuCtxSynchronize())
    result = np.empty_like(data)
    check(driver.cuMemcpyDtoH(result.ctypes.data, target, data.nbytes))
    for pointer in (source, target):
        check(driver.cuMemFree(pointer))
    right = data.copy()
    for r in range(9):
        right = (right ^ (right >> np.uint32(15))) * np.uint32(2654435761) + np.uint32(r)
    return "exact" if (result == right).all() else "wrong"


def main():
    check(driver.cuInit(0))
    print("devices", check(driver.cuDeviceGetCount()))
    device = check(driver.cuDeviceGet(0))
    print("name", check(driver.cuDeviceGetName(100, device)).split(b"\0")[0].decode())
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    free, total = check(driver.cuMemGetInfo())
    assert total == check(driver.cuDeviceTotalMem(device)), "two totals"
    print("total", total)
    data = np.random.default_rng(7).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    pointer = check(driver.cuMemAlloc(data.nbytes))
    check(driver.cuMemcpyHtoD(pointer, data.ctypes.data, data.nbytes))
    back = np.zeros_like(data)
    check(driver.cuMemcpyDtoH(back.ctypes.data, pointer, data.nbytes))
    print("copy", "exact" if (data == back).all() else "wrong")
    check(driver.cuMemFree(pointer))
    kernel = compile(device)
    print("kernel", mix(kernel, data[:4096]))
    print("ready", flush=True)
    held = []
    for _ in sys.stdin:
        try:
            held.append(check(driver.cuMemAlloc(STEP)))
            print("held", len(held), flush=True)
        except Failed as error:
            print("refused", error, flush=True)
            sys.stdin.readline()
            break
    if held:
        check(driver.cuMemFree(held.pop()))
    print("after", mix(kernel, data[:4096]), flush=True)


main()
