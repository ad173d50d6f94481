"""A client program of the first hour: does and measures ordinary work on the first GPU that CUDA shows.

It knows nothing of gshare. With PyTorch it does what PyTorch programs do; with --raw, or without PyTorch, it calls
libcuda directly. Each command prints lines for people, and one line that begins with `= ` with the same as JSON.
Needs Python 3.9.
"""

import ctypes
import json
import os
import sys
import threading
import time

RAW = "--raw" in sys.argv
if not RAW:
    try:
        import torch
    except ImportError:
        RAW = True


def result(**figures):
    print("= " + json.dumps(figures), flush=True)


def quantile(values, part):
    values = sorted(values)
    return values[min(int(len(values) * part), len(values) - 1)] if values else None


class Nvml:
    """NVML's memory and utilisation figures of processes on the GPU."""

    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("parts", ctypes.c_uint * 2)]

    class Sample(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("time", ctypes.c_ulonglong)] + [
            (name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder")
        ]

    def __init__(self):
        self.device = ctypes.c_void_p()
        try:
            self.library = ctypes.CDLL("libnvidia-ml.so.1")
            self.library.nvmlInit_v2()
            # NVML orders GPUs by bus, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID.
            self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))
        except OSError:
            self.library = None

    def bytes_of(self, pid):
        """Bytes of a process; None if NVML does not list the process or its bytes."""
        if not self.library:
            return None
        count, found = ctypes.c_uint(256), (self.Process * 256)()
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"):
            count.value = 256
            if getattr(self.library, name)(self.device, ctypes.byref(count), found) == 0:
                for entry in found[: count.value]:
                    if entry.pid == pid and entry.bytes < 1 << 50:
                        return entry.bytes
        return None

    def samples(self, since):
        """NVML's code, the call's duration in milliseconds, and samples of each process's utilisation."""
        count, found = ctypes.c_uint(256), (self.Sample * 256)()
        started = time.perf_counter()
        code = self.library.nvmlDeviceGetProcessUtilization(
            self.device, found, ctypes.byref(count), ctypes.c_ulonglong(since)
        )
        took = (time.perf_counter() - started) * 1e3
        return code, took, [] if code else list(found[: count.value])


class Failed(Exception):
    pass


class Cuda:
    """The part of libcuda that this file needs, through ctypes."""

    # A loop of `rounds`. No compiler removes it, since it stores its result if that equals a constant.
    PTX = """.version 7.0
.target sm_50
.address_size 64
%s"""
    KERNEL = """.visible .entry %s(.param .u32 rounds) {
.reg .pred %%p<3>;
.reg .b32 %%r<5>;
.reg .b64 %%d<2>;
ld.param.u32 %%r1, [rounds];
mov.u32 %%r2, %%tid.x;
setp.eq.u32 %%p1, %%r1, 0;
@%%p1 bra END;
AGAIN:
mad.lo.u32 %%r2, %%r2, 1664525, 1013904223;
sub.u32 %%r1, %%r1, 1;
setp.ne.u32 %%p1, %%r1, 0;
@%%p1 bra AGAIN;
setp.eq.u32 %%p2, %%r2, 305419896;
mov.u64 %%d1, 0;
@%%p2 st.global.u32 [%%d1], %%r2;
END:
ret;
}
"""
    TIMES = (10, 30, 100, 1000, 5000, 20000)

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.took = {}
        self.timed("cuInit", lambda: self.call("cuInit", 0))
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.context = ctypes.c_void_p()
        self.timed("context", self.make_context)
        self.stream = self.new_stream()
        self.rounds = None

    def timed(self, name, part):
        started = time.perf_counter()
        part()
        self.took[name] = time.perf_counter() - started

    def make_context(self):
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise Failed(f"{name} gives {code}")

    def attribute(self, number):
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def new_stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def memory(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def alloc(self, count):
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(count))
        return pointer

    def load(self):
        if self.rounds is not None:
            return
        text = self.PTX % "".join(self.KERNEL % f"spin_{us}us" for us in self.TIMES)
        self.module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self.module), ctypes.c_char_p(text.encode()))
        self.kernels = {}
        for us in self.TIMES:
            kernel = ctypes.c_void_p()
            name = f"spin_{us}us".encode()
            self.call("cuModuleGetFunction", ctypes.byref(kernel), self.module, ctypes.c_char_p(name))
            self.kernels[us] = kernel
        # On a simulated GPU the kernel's name says how long it takes.
        self.rounds = 0
        if "HOUR_SIMULATED" not in os.environ:
            self.rounds = 1000
            for _ in range(3):
                took = self.elapsed(lambda: self.spin(1000))
            self.rounds = max(1, int(1000 * 1000 / max(took, 1)))

    def spin(self, us, stream=None, blocks=64):
        """Launches a kernel of about `us` microseconds."""
        self.load()
        value = ctypes.c_uint(self.rounds * us // 1000)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self.call(
            "cuLaunchKernel", self.kernels[us], blocks, 1, 1, 128, 1, 1, 0, stream or self.stream, parameters, None
        )

    def sync(self, stream=None):
        self.call("cuStreamSynchronize", stream or self.stream)

    def event(self, flags=0):
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), flags)
        return event

    def elapsed(self, part, flags=0):
        """Microseconds between events before and after `part`, from the driver."""
        first, last, ms = self.event(), self.event(flags), ctypes.c_float()
        self.call("cuEventRecord", first, self.stream)
        part()
        self.call("cuEventRecord", last, self.stream)
        self.call("cuEventSynchronize", last)
        self.call("cuEventElapsedTime", ctypes.byref(ms), first, last)
        for event in (first, last):
            self.call("cuEventDestroy_v2", event)
        return ms.value * 1e3

    def graph(self, part):
        graph, run = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, 2)
        part()
        self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(run), graph, ctypes.c_ulonglong(0))
        return run

    def replay(self, graph):
        self.call("cuGraphLaunch", graph, self.stream)


def facts():
    cuda, nvml = Cuda(), Nvml()
    version, name = ctypes.c_int(), ctypes.create_string_buffer(100)
    cuda.call("cuDriverGetVersion", ctypes.byref(version))
    cuda.call("cuDeviceGetName", name, 100, cuda.device)
    free, total = cuda.memory()
    used = nvml.bytes_of(os.getpid())
    result(
        model=name.value.decode(), cuda=version.value, sms=cuda.attribute(16),
        capability=cuda.attribute(75) * 10 + cuda.attribute(76), total_mib=total >> 20, free_mib=free >> 20,
        init_ms=round(cuda.took["cuInit"] * 1e3), context_ms=round(cuda.took["context"] * 1e3),
        context_mib=used and used >> 20, python=sys.version.split()[0], torch=None if RAW else torch.__version__,
    )


def memory():
    """Memory that NVML shows beyond what the program asked for, after each thing that programs do."""
    nvml, rows = Nvml(), []

    def row(what, asked):
        shown = nvml.bytes_of(os.getpid())
        beyond = None if shown is None else (shown - asked) >> 20
        rows.append([what, asked >> 20, shown and shown >> 20, beyond])
        print(f"{what:36} asked {asked >> 20} MiB, NVML {rows[-1][2]} MiB, beyond {beyond} MiB", flush=True)

    if RAW:
        cuda = Cuda()
        row("a context", 0)
        cuda.alloc(64 << 20)
        row("64 MiB", 64 << 20)
        cuda.spin(10)
        cuda.sync()
        row("a module and a launch", 64 << 20)
        graphs = []
        for count in (1, 10):
            while len(graphs) < count:
                graphs.append(cuda.graph(lambda: [cuda.spin(10) for _ in range(100)]))
                cuda.replay(graphs[-1])
                cuda.sync()
            row(f"{count} graphs of 100 kernels", 64 << 20)
        for kib in (4, 16):
            try:
                cuda.call("cuCtxSetLimit", 0, ctypes.c_size_t(kib << 10))
                cuda.spin(10)
                cuda.sync()
                row(f"a stack of {kib} KiB", 64 << 20)
            except Failed as why:
                print(f"a stack of {kib} KiB: {why}")
        return result(beyond=rows)
    gpu = {"device": "cuda"}

    def grown(what):
        torch.cuda.synchronize()
        row(what, torch.cuda.memory_reserved())

    torch.ones(4, **gpu)
    grown("the first tensor")
    a = torch.rand(2048, 2048, **gpu).half()
    a @ a
    grown("cuBLAS")
    torch.nn.Conv2d(32, 32, 3, **gpu)(torch.rand(4, 32, 64, 64, **gpu))
    grown("cuDNN")
    torch.linalg.cholesky(torch.eye(256, **gpu))
    torch.fft.rfft(torch.rand(1 << 18, **gpu))
    grown("cuSOLVER and cuFFT")
    value, graphs = torch.zeros(1 << 14, **gpu), []
    for count in (1, 10, 40):
        while len(graphs) < count:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                for _ in range(500):
                    value += 1
            graphs[-1].replay()
        grown(f"{count} graphs of 500 kernels")
    try:
        fused = torch.compile(lambda x: torch.nn.functional.gelu(x) * x.sigmoid())
        fused(torch.rand(1 << 20, **gpu))
        grown("torch.compile")
    except Exception as why:
        print("torch.compile:", str(why).splitlines()[0][:160])
    library = ctypes.CDLL("libcuda.so.1")
    for kib in (4, 16):
        code = library.cuCtxSetLimit(0, ctypes.c_size_t(kib << 10))
        value += 1
        grown(f"a stack of {kib} KiB (code {code})")
    result(beyond=rows)


def events():
    """Measures what a pair of events adds to a kernel's time, and what waiting costs."""
    cuda = Cuda()
    short = os.environ.get("HOUR_SHORT")
    count = 20 if short else 400

    def spread(part):
        part()
        seen = [part() for _ in range(count)]
        return [round(quantile(seen, q), 1) for q in (0.1, 0.5, 0.9)]

    def idle():
        cuda.sync()
        return cuda.elapsed(lambda: cuda.spin(10))

    def behind():
        cuda.sync()
        cuda.spin(1000)
        return cuda.elapsed(lambda: cuda.spin(10))

    def many():
        return cuda.elapsed(lambda: [cuda.spin(10) for _ in range(100)]) / 100

    figures = {"idle": spread(idle), "behind work": spread(behind), "of a hundred": spread(many)}
    for name, seen in figures.items():
        print(f"10 us kernel, events {name}: 10 % {seen[0]}, half {seen[1]}, 90 % {seen[2]} us")
    wakes = {}
    for name, flags in (("spinning", 0), ("blocking", 1)):
        late = []
        for _ in range(count // 4):
            cuda.sync()
            started = time.perf_counter()
            spent = cuda.elapsed(lambda: cuda.spin(1000), flags)
            late.append((time.perf_counter() - started) * 1e6 - spent)
        wakes[name] = [round(quantile(late, q)) for q in (0.5, 0.99)]
        print(f"waiting for an event, {name}: {wakes[name][0]} us late, 99 % {wakes[name][1]} us")
    started = time.perf_counter()
    # Few enough for the driver to queue without blocking.
    for _ in range(200):
        cuda.spin(10)
    launch = (time.perf_counter() - started) * 1e6 / 200
    cuda.sync()
    zero = all(value == 0 for seen in figures.values() for value in seen)
    result(events=figures, wakes=wakes, launch_us=round(launch, 2), all_zero=zero)


def torch_step(kind):
    torch.manual_seed(7)
    half = {"device": "cuda", "dtype": torch.float16}
    if kind == "eager":
        layers = [layer for _ in range(40) for layer in (torch.nn.Linear(192, 192), torch.nn.ReLU())]
        model = torch.nn.Sequential(*layers).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=False)
        data = torch.rand(32, 192, device="cuda")

        def step():
            optimizer.zero_grad()
            model(data).pow(2).sum().backward()
            optimizer.step()

    elif kind == "flood":
        a, b = torch.rand(6144, 6144, **half), torch.rand(6144, 6144, **half)

        def step():
            for _ in range(8):
                torch.mm(a, b)

    elif kind == "decode":
        model = torch.nn.Sequential(*(torch.nn.Linear(1536, 1536) for _ in range(32))).cuda().half().eval()
        token = torch.rand(1, 1536, **half)

        def step():
            with torch.inference_mode():
                float(model(token).sum())
            time.sleep(0.0005)

    elif kind == "graph":
        a, b = torch.rand(1024, 1024, **half), torch.rand(1024, 1024, **half)
        torch.mm(a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(150):
                torch.mm(a, b)
        step = graph.replay
    else:
        return raw_step(kind)
    return lambda: (step(), torch.cuda.synchronize())


# A callback must live as long as the stream may call it.
KEPT = []


def raw_step(kind):
    cuda = Cuda()
    if kind == "eager":
        return lambda: ([cuda.spin(10) or time.sleep(0.00002) for _ in range(40)], cuda.sync())
    if kind == "flood":
        return lambda: ([cuda.spin(1000) for _ in range(8)], cuda.sync())
    if kind == "decode":
        return lambda: ([cuda.spin(30) for _ in range(16)], cuda.sync(), time.sleep(0.0005))
    if kind == "graph":
        graph = cuda.graph(lambda: [cuda.spin(10) for _ in range(100)])
        return lambda: (cuda.replay(graph), cuda.sync())
    nap = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.02))
    KEPT.append(nap)
    other = cuda.new_stream()

    def step():
        """A host function blocks one stream while the other keeps working."""
        cuda.spin(10, other)
        cuda.call("cuLaunchHostFunc", other, nap, None)
        cuda.spin(10, other)
        for _ in range(20):
            cuda.spin(10)
            cuda.sync()
        cuda.sync(other)

    return step


def steps(kind, seconds):
    step = raw_step(kind) if RAW else torch_step(kind)
    for _ in range(3):
        step()
    print("ready", flush=True)
    if os.environ.get("HOUR_TOGETHER"):
        sys.stdin.readline()
    took, end = [], time.perf_counter() + float(seconds)
    while time.perf_counter() < end:
        started = time.perf_counter()
        step()
        took.append(time.perf_counter() - started)
    result(
        kind=kind, per_second=round(len(took) / float(seconds), 1),
        half_ms=round(quantile(took, 0.5) * 1e3, 2), p99_ms=round(quantile(took, 0.99) * 1e3, 2),
        worst_ms=round(max(took) * 1e3, 1),
    )


def utilisation(seconds):
    nvml, seen, odd, codes, slow = Nvml(), {}, 0, set(), 0.0
    since, end = int((time.time() - 1) * 1e6), time.time() + float(seconds)
    ages = []
    while time.time() < end:
        code, took, found = nvml.samples(since)
        codes.add(code)
        slow = max(slow, took)
        now = int(time.time() * 1e6)
        for sample in found:
            odd += sample.sm > 100
            ages.append((now - sample.time) / 1e6)
            seen.setdefault(sample.pid, []).append(sample.sm)
        if found:
            since = max(sample.time for sample in found)
        time.sleep(0.25)
    shares = {pid: round(sum(v) / len(v), 1) for pid, v in seen.items()}
    result(
        codes=sorted(codes), slowest_ms=round(slow, 2), above_100=odd, mean_by_pid=shares,
        oldest_s=round(max(ages), 2) if ages else None, samples=sum(len(v) for v in seen.values()),
    )


def ending(how):
    """Exits with work still on the GPU, in one of several ways."""
    cuda = Cuda()
    for _ in range(300):
        cuda.spin(100)
    if how == "thread":
        threading.Thread(target=lambda: [cuda.sync() for _ in range(1000)], daemon=True).start()
    if how == "raise":
        raise SystemExit(7)
    if how == "killed":
        os.kill(os.getpid(), 9)


def checksum(cuda, pointer, count):
    import zlib

    part, total = ctypes.create_string_buffer(64 << 20), 0
    for at in range(0, count, len(part)):
        size = min(len(part), count - at)
        cuda.call("cuMemcpyDtoH_v2", part, ctypes.c_uint64(pointer.value + at), ctypes.c_size_t(size))
        total = zlib.crc32(part.raw[:size], total)
    return total


def hold(mib):
    """Holds memory with known contents while it works; checks the contents at each line `check`."""
    count, lock = int(float(mib) * (1 << 20)) & ~3, threading.Lock()
    cuda, worst = Cuda(), [0.0]
    if RAW:
        memory = cuda.alloc(count)
    else:
        values = torch.empty(count // 4, dtype=torch.int32, device="cuda")
        memory = ctypes.c_uint64(values.data_ptr())
    for at in range(0, count, 1 << 28):
        size = min(1 << 28, count - at)
        place = ctypes.c_uint64(memory.value + at)
        cuda.call("cuMemsetD32_v2", place, ctypes.c_uint(at // 4 + 12345), ctypes.c_size_t(size // 4))
    cuda.call("cuCtxSynchronize")
    before = checksum(cuda, memory, count)
    print(f"ready {os.getpid()} {before}", flush=True)

    def work():
        cuda.call("cuCtxSetCurrent", cuda.context)
        while True:
            started = time.perf_counter()
            with lock:
                cuda.spin(100)
                cuda.sync()
            worst[0] = max(worst[0], time.perf_counter() - started)
            time.sleep(0.01)

    threading.Thread(target=work, daemon=True).start()
    for line in sys.stdin:
        if line.strip() == "check":
            with lock:
                after = checksum(cuda, memory, count)
            print(f"{'same' if after == before else 'DIFFERENT'} longest {worst[0]:.2f}", flush=True)
            worst[0] = 0.0
        else:
            break
    os._exit(0)


def server():
    """Starts like an inference server: takes 85 % of the free memory, then captures its graphs."""
    cuda, started = Cuda(), time.perf_counter()
    free, total = cuda.memory()
    cache, wanted = [], int(free * 0.85)
    if RAW:
        while wanted > 0:
            cache.append(cuda.alloc(min(wanted, 1 << 30)))
            wanted -= 1 << 30
    else:
        cache.append(torch.empty(wanted, dtype=torch.uint8, device="cuda"))
    taken = time.perf_counter() - started
    for size in range(8 if os.environ.get("HOUR_SHORT") else 35):
        cuda.replay(cuda.graph(lambda: [cuda.spin(10) for _ in range(80)]))
        cuda.sync()
    result(
        shown_mib=total >> 20, taken_s=round(taken, 2), graphs_s=round(time.perf_counter() - started - taken, 2),
        left_mib=cuda.memory()[0] >> 20,
    )


COMMANDS = {
    "facts": facts, "memory": memory, "events": events, "steps": steps, "utilisation": utilisation,
    "ending": ending, "hold": hold, "server": server,
}

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--raw"]
    try:
        COMMANDS[words[0]](*words[1:])
    except Failed as why:
        print(f"= {json.dumps({'failed': str(why)})}", flush=True)
        sys.exit(3)
