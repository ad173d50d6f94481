"""What NVIDIA's own Python bindings of NVML show to a program on a MIG instance.

Prints one fact per line. The arguments are UUIDs of instances that are not its own. It knows nothing of gshare.
"""

import sys
from ctypes import byref, c_uint

import pynvml as nvml


def code(call, *arguments):
    """A call's value, or the name of its error."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        return type(error).__name__


def number(value):
    """The bindings return some numbers as ctypes objects."""
    return getattr(value, "value", value)


def main():
    nvml.nvmlInit()
    print("gpus", nvml.nvmlDeviceGetCount())
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    print("gpu", nvml.nvmlDeviceGetUUID(gpu))
    print("index", nvml.nvmlDeviceGetIndex(gpu))
    print("second", code(nvml.nvmlDeviceGetHandleByIndex, 1))
    print("mode", *nvml.nvmlDeviceGetMigMode(gpu))
    print("gpu_is_instance", number(nvml.nvmlDeviceIsMigDeviceHandle(gpu)))
    count = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    print("instances", count)
    found = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i) for i in range(count)]
    print("uuids", *(nvml.nvmlDeviceGetUUID(one) for one in found))
    for beyond in range(count, 8):
        print("beyond", beyond, code(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, beyond))
    own = found[0]
    print("is_instance", number(nvml.nvmlDeviceIsMigDeviceHandle(own)))
    print("name", nvml.nvmlDeviceGetName(own))
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(own)
    print("parent", nvml.nvmlDeviceGetUUID(parent))
    instance = nvml.nvmlDeviceGetGpuInstanceId(own)
    print("ids", instance, nvml.nvmlDeviceGetComputeInstanceId(own))
    print("attributes", nvml.nvmlDeviceGetAttributes_v2(own).multiprocessorCount)
    for name, handle in (("memory", own), ("gpu_memory", gpu)):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        print(name, memory.total, memory.used, memory.free)
    for name, handle in (("processes", own), ("gpu_processes", gpu)):
        processes = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        print(name, *sorted(p.pid for p in processes))
    again = nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(own))
    print("by_uuid", nvml.nvmlDeviceGetUUID(again))
    for other in sys.argv[1:]:
        print("neighbour", other, code(nvml.nvmlDeviceGetHandleByUUID, other))
    for one in range(8):
        if one != instance:
            sample = nvml.nvmlGpmSampleAlloc()
            print("counters", one, code(nvml.nvmlGpmMigSampleGet, gpu, one, sample))
            nvml.nvmlGpmSampleFree(sample)
    # What administrators see of a MIG GPU.
    handles = (nvml.c_nvmlGpuInstance_t * 8)()
    print("list", code(nvml.nvmlDeviceGetGpuInstances, gpu, 0, handles, byref(c_uint())))
    for one in range(8):
        whose = "own" if one == instance else "others"
        print("by_id", whose, one, code(nvml.nvmlDeviceGetGpuInstanceById, gpu, one))
    nvml.nvmlShutdown()


main()
