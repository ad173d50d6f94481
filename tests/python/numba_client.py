"""Numba as people use it: arrays to the GPU and back, kernels, and memory until none is left.

Prints one fact per line; after `ready` it allocates memory for each line that it reads. It knows nothing of gshare.
"""

import sys

import numpy as np
from numba import cuda

STEP = (256 << 20) + 1


@cuda.jit
def collatz(start, steps):
    i = cuda.grid(1)
    if i < start.size:
        n = start[i]
        count = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        steps[i] = count


@cuda.jit
def axpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + y[i]


def by_hand(n):
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return count


def kernels():
    start = np.arange(1, 2001, dtype=np.int64)
    steps = cuda.device_array_like(start)
    collatz[8, 256](cuda.to_device(start), steps)
    if steps.copy_to_host().tolist() != [by_hand(int(n)) for n in start]:
        return "wrong collatz"
    x = np.arange(5000, dtype=np.float64)
    y = cuda.to_device(np.ones(5000))
    axpy[20, 256](0.5, cuda.to_device(x), y)
    return "exact" if (y.copy_to_host() == 0.5 * x + 1).all() else "wrong axpy"


def main():
    data = np.random.default_rng(7).integers(0, 255, 1 << 20, dtype=np.uint8)
    back = cuda.to_device(data).copy_to_host()
    print("devices", len(cuda.gpus))
    print("name", cuda.get_current_device().name)
    print("total", cuda.current_context().get_memory_info().total)
    print("copy", "exact" if (data == back).all() else "wrong")
    print("kernel", kernels())
    print("ready", flush=True)
    held = []
    for _ in sys.stdin:
        try:
            held.append(cuda.device_array(STEP, dtype=np.uint8))
            print("held", len(held), flush=True)
        except Exception as error:
            # Numba frees pending deallocations and retries before it gives up.
            print("refused", type(error).__name__, error, flush=True)
            sys.stdin.readline()
            break
    print("after", kernels(), flush=True)


main()
