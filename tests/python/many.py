"""Uses one user's kernels at random, as people do: cells, pauses, interrupts, restarts, kills, culling.

Arguments: kernel name, number of kernels, seed, longest pause. Answers each line of input with a JSON line of what went
wrong and what was done: `quiet` ends the use of the kernels, `leave` ends the kernels. Of gshare it knows only the message
that a program has its GPU memory back.
"""

import json
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time

from jupyter_client.manager import KernelManager

NAME, COUNT, SEED, PAUSE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
BACK = "has its GPU memory back"
# Most kernels call the driver directly: twenty compilers at a time would not test a GPU.
FIRST = """
import ctypes, os
cuda, size = ctypes.CDLL("libcuda.so.1"), 1 << 16
def ok(result):
    if result:
        raise RuntimeError(f"CUDA {result}")
def hold():
    global context, place, kept
    # Known as held only when it is: an interrupt in the middle leaves nothing that looks whole.
    ok(cuda.cuInit(0))
    context, place = ctypes.c_void_p(), ctypes.c_uint64()
    ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    ok(cuda.cuCtxSetCurrent(context))
    ok(cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size)))
    data = os.urandom(size)
    ok(cuda.cuMemcpyHtoD_v2(place, data, ctypes.c_size_t(size)))
    kept = data
"""
CELL = """
if "kept" not in globals():
    hold()
back = ctypes.create_string_buffer(size)
ok(cuda.cuMemcpyDtoH_v2(back, place, ctypes.c_size_t(size)))
print("same" if back.raw == kept else "other")
"""
# Kernel 0 is a notebook as people write it.
NUMBA_FIRST = """
import numpy as np
from numba import cuda
@cuda.jit
def add(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + 1
def hold():
    data = np.random.default_rng().integers(0, 1 << 30, 1 << 14, dtype=np.int64)
    # All at once: an interrupt in the middle leaves nothing that looks whole.
    globals().update(x=cuda.to_device(data), y=cuda.device_array(data.shape, np.int64), kept=data)
"""
NUMBA_CELL = """
if "kept" not in globals():
    hold()
add[kept.size // 256, 256](x, y)
there = (x.copy_to_host() == kept).all() and (y.copy_to_host() == kept + 1).all()
print("same" if there else "other")
"""
done, wrong, lock = {}, [], threading.Lock()


def note(what):
    with lock:
        done[what] = done.get(what, 0) + 1


def fail(text):
    with lock:
        wrong.append(text)


class Kernel:
    def __init__(self, number):
        self.random = random.Random(SEED * 1000 + number)
        self.number = number
        self.numba = number == 0
        self.first, self.cell = (NUMBA_FIRST, NUMBA_CELL) if self.numba else (FIRST, CELL)

    def start(self):
        # Not ports: another process may take one that is free now.
        self.place = tempfile.TemporaryDirectory(prefix="k")
        self.manager = KernelManager(kernel_name=NAME, transport="ipc", ip=self.place.name + "/k")
        self.manager.start_kernel()
        self.connect()

    def connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.pid = self.manager.provisioner.pid
        self.run(self.first, patience=60)

    def run(self, code, patience=30):
        """A cell's output, its own lines in that output, and its error ("stuck" if no interrupt ended it)."""
        cell = self.client.execute(code)
        written, printed, error, interrupted = "", "", None, False
        end = time.monotonic() + patience
        while True:
            if time.monotonic() > end:
                if interrupted:
                    fail(f"kernel {self.number}: an interrupted cell does not end")
                    return written, printed.splitlines(), "stuck"
                interrupted, end = True, time.monotonic() + 20
                self.manager.interrupt_kernel()
                note("interrupted")
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                written += content["text"]
                # gshare writes to stderr, also in the middle of a line.
                if content["name"] == "stdout":
                    printed += content["text"]
            elif kind == "error":
                error = content["ename"] + ": " + content["evalue"]
            elif kind == "status" and content["execution_state"] == "idle":
                return written, printed.splitlines(), error

    def step(self):
        if not self.manager.is_alive() or self.pid != self.manager.provisioner.pid:
            return fail(f"kernel {self.number}, process {self.pid}, ended by itself")
        what = self.random.choices(["cell", "pause", "restart", "kill", "cull"], [10, 6, 1, 1, 1])[0]
        note(what)
        if what == "cell":
            # Do not interrupt a compiler, only a wait.
            patience = 20 if self.numba else self.random.choice([1, 4, 8])
            written, lines, error = self.run(self.cell, patience)
            if "other" in lines or (error and "KeyboardInterrupt" not in error):
                fail(f"kernel {self.number}: {written} {error}")
            if "same" in lines:
                note("computed" if self.numba else "same")
                if BACK in written:
                    note("back")
        elif what == "pause":
            time.sleep(self.random.uniform(0.2, PAUSE))
        elif what in ("restart", "kill"):
            self.client.stop_channels()
            if what == "kill":
                os.kill(self.pid, signal.SIGKILL)
            self.manager.restart_kernel(now=True)
            self.connect()
        else:
            self.stop()
            self.start()

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel()

    def live(self):
        try:
            self.start()
            while not enough.is_set():
                self.step()
            quiet.wait(timeout=120)
            if not self.manager.is_alive():
                fail(f"kernel {self.number} ended by itself")
            leave.wait(timeout=120)
            self.stop()
        except Exception as error:
            fail(f"kernel {self.number}: {type(error).__name__}: {error}")
            quiet.abort()


quiet, enough, leave = threading.Barrier(COUNT + 1), threading.Event(), threading.Event()
threads = [threading.Thread(target=Kernel(n).live) for n in range(COUNT)]
for thread in threads:
    thread.start()


def settle():
    if not enough.is_set():
        enough.set()
        try:
            quiet.wait(timeout=120)
        except threading.BrokenBarrierError:
            pass


for line in sys.stdin:
    if line == "quiet\n":
        settle()
    elif line == "leave\n":
        leave.set()
        for thread in threads:
            thread.join()
    with lock:
        print(json.dumps({"wrong": wrong, "done": done}), flush=True)
# After a test that failed, there are kernels still.
settle()
leave.set()
