#!/usr/bin/env python3
"""The first hour of gshare on a real GPU, in calls of at most ten minutes: hour.py CALL [--short] [--raw]

    machine   the machine, the list of checks, bare figures
    shares    one program and two, with and without gshare; memory beyond allocations in a claim
    turns     unequal shares, light beside a flood, exits, an inference server that starts beside a neighbour
    detach    checkpoints: the list's part, and a process with known contents
    mps       shares of SMs by MPS, read back

Each prints a dated section for docs/hardware.md and keeps it, with the logs, in $OUT (else ./out). Needs Python 3.9 and
an NVIDIA driver; uses PyTorch where it is there. Writes nowhere else. --short: every part, too short for figures.
"""

import datetime
import glob
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.abspath(os.environ.get("OUT", "out"))
SHORT = "--short" in sys.argv
RAW = ["--raw"] if "--raw" in sys.argv else []
GSHARE = os.environ.get("HOUR_GSHARE", os.path.join(HERE, "gshare"))
GROUP = f"gshare-hour-{os.getpid()}"
LIST = os.environ.get("HOUR_LIST", os.path.join(HERE, "gshare-device"))
CLIENT = [sys.executable, os.path.join(HERE, "client.py")] + RAW
# A call must end within ten minutes, whatever hangs; it says what it leaves out.
LIMIT = 240 if SHORT else 560
END = time.monotonic() + LIMIT
lines, programs = [], []


def say(text=""):
    lines.append(text)
    print(text, flush=True)


def table(head, rows):
    say("| " + " | ".join(head) + " |")
    say("|" + "---|" * len(head))
    for row in rows:
        say("| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |")
    say()


def left(most):
    return max(1.0, min(most, END - time.monotonic()))


def output(command, most=60, **options):
    """A command's exit status (None after a timeout) and output."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=left(most), **options
        )
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        text = late.stdout or b""
        return None, text.decode(errors="replace") if isinstance(text, bytes) else text
    except OSError as why:
        return 127, str(why)


def figures(text):
    found = [line for line in text.splitlines() if line.startswith("= ")]
    return json.loads(found[-1][2:]) if found else {}


class Program:
    """A running client, in a claim or outside."""

    def __init__(self, words, claim=None, **environment):
        command = CLIENT + [str(word) for word in words]
        if claim is not None:
            command = [GSHARE, "claim", "-q"] + claim + ["--"] + command
        self.errors = open(os.path.join(OUT, "clients.txt"), "a")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, bufsize=0,
            env=dict(os.environ, **environment), start_new_session=True,
        )
        # Bytes read but not yet returned. Not a buffered pipe: `select` does not see what such a pipe holds back.
        self.text = b""
        programs.append(self)

    def line(self, start, most=120):
        """The next line that begins with `start`; None if the client ends or takes too long."""
        until, ended = time.monotonic() + left(most), False
        while True:
            while b"\n" in self.text:
                line, self.text = self.text.split(b"\n", 1)
                if line.startswith(start.encode()):
                    return line.decode(errors="replace").strip()
            wait = min(0.2, until - time.monotonic())
            if ended or wait <= 0:
                return None
            if select.select([self.process.stdout], [], [], wait)[0]:
                part = self.process.stdout.read(1 << 16)
                self.text, ended = self.text + part, not part

    def tell(self, text):
        try:
            self.process.stdin.write(text.encode() + b"\n")
        except OSError:
            pass

    def result(self, most=120):
        line = self.line("= ", most)
        self.end()
        return json.loads(line[2:]) if line else {"failed": f"status {self.process.returncode}"}

    def end(self, most=20):
        self.tell("end")
        try:
            self.process.wait(left(most))
        except subprocess.TimeoutExpired:
            self.kill()
        self.errors.close()
        return self.process.returncode

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def together(programs, most=180):
    """Lets programs begin at the same time and returns their results."""
    ready = [program.line("ready", most) for program in programs]
    for program in programs:
        program.tell("go")
    return [p.result(most) if r else {"failed": "it did not start"} for p, r in zip(programs, ready)]


def pair(kind, seconds, claims):
    wait = {"HOUR_TOGETHER": "1"}
    kinds = kind if isinstance(kind, list) else [kind] * len(claims)
    return together([Program(["steps", k, seconds], c, **wait) for k, c in zip(kinds, claims)])


class Service:
    """A private service for this call, with everything below $OUT."""

    def __init__(self, more=""):
        # The path of a socket has at most 107 bytes.
        self.link = None
        home = os.path.join(OUT, "service")
        shutil.rmtree(home, ignore_errors=True)
        os.makedirs(home)
        if len(home) > 70:
            self.link = tempfile.mkdtemp(prefix="hour-") + "/s"
            os.symlink(home, self.link)
            home = self.link
        config = os.path.join(home, "gshare.toml")
        with open(config, "w") as file:
            file.write(
                f'[service]\nruntime-dir = "{home}/run"\nstate-dir = "{home}/state"\n\n[launch]\ncaps = "preload"\n\n'
                f'[policy]\nunclaimed = "observe"\n\n[cgroup]\nsystemd = "off"\nroot = "{GROUP}"\n\n{os.environ.get("HOUR_CONFIG", "")}\n{more}'
            )
        self.log = open(os.path.join(OUT, "service.txt"), "a")
        command = [GSHARE, "daemon", "--config", config] + (["--user"] if os.geteuid() else [])
        self.mps = f"{home}/run/mps"
        os.environ["GSHARE_SOCKET"] = f"{home}/run/gshared.sock"
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, start_new_session=True)

    def __enter__(self):
        until = time.monotonic() + left(40)
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            if output([GSHARE, "ps"], 10)[0] == 0:
                return self
            time.sleep(0.1)
        self.log.flush()
        with open(os.path.join(OUT, "service.txt")) as log:
            say("The service does not answer:\n\n```\n" + log.read()[-600:] + "\n```\n")
        self.__exit__()
        raise SystemExit(1)

    def __exit__(self, *_):
        for claim in claims():
            output([GSHARE, "release", claim["id"]], 10)
        # A service that ends leaves MPS running for its users.
        for gpu in os.listdir(self.mps) if os.path.isdir(self.mps) else []:
            output([GSHARE, "admin", "release", gpu], 30)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        # The service leaves its cgroups, too.
        for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            for group, _, _ in os.walk(f"{mount}/{GROUP}", topdown=False):
                try:
                    os.rmdir(group)
                except OSError as why:
                    say(f"A control group is left: {why}\n")
        if self.link:
            shutil.rmtree(os.path.dirname(self.link), ignore_errors=True)


def claims():
    status, text = output([GSHARE, "ps", "--json"], 10)
    try:
        return json.loads(text)["claims"] if status == 0 else []
    except (ValueError, KeyError):
        return []


def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def the_list(names, most):
    """Runs the list of checks and prints those that differ."""
    if not os.path.exists(LIST):
        return say("The list of checks is not in the folder.\n")
    status, text = output([LIST] + names, most)
    with open(os.path.join(OUT, "list.txt"), "a") as file:
        file.write(text)
    different = [line for line in text.splitlines() if line.startswith("DIFFERENT")]
    total = re.findall(r"^\d+ checks with .*$", text, re.M)
    say(f"List of checks ({' '.join(names) or 'all'}): {total[-1] if total else f'no end (status {status})'}.\n")
    if different:
        say("```\n" + "\n".join(line[:150] for line in different) + "\n```\n")


def machine():
    rows = [
        ["kernel", os.uname().release],
        ["driver", read("/proc/driver/nvidia/version").split("\n")[0] or "no /proc/driver/nvidia"],
        ["user", f"uid {os.geteuid()}"],
        ["cgroup", next((line for line in read("/proc/mounts").splitlines() if " cgroup2 " in line), "no cgroup2")],
        ["own cgroup", read("/proc/self/cgroup").split("\n")[-1]],
        ["majors", " ".join(line.strip() for line in read("/proc/devices").splitlines() if "nvidia" in line)],
        ["nodes", " ".join(sorted(os.path.basename(node) for node in glob.glob("/dev/nvidia*")))],
        ["profiling", next((l for l in read("/proc/driver/nvidia/params").splitlines() if "Profiling" in l), "")],
        ["glibc", os.confstr("CS_GNU_LIBC_VERSION")],
        ["MPS", shutil.which("nvidia-cuda-mps-control") or "no control program"],
    ]
    query = "name,driver_version,memory.total,memory.used,mig.mode.current,compute_mode,persistence_mode"
    rows.append(["nvidia-smi", output(["nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader"], 30)[1].strip()])
    # The list compares free memory exactly: nothing else may be on the GPU.
    for turn in ("first", "again"):
        rows.append([f"a process, {turn}", json.dumps(figures(output(CLIENT + ["facts"], 90)[1]))])
    table(["machine", ""], rows)
    the_list(["init.", "error.", "lookup.", "event."] if SHORT else [], 330)
    status, text = output(CLIENT + ["events"], 90)
    say("Events and waiting:\n\n```\n" + "\n".join(l for l in text.splitlines() if l[:2] != "= ") + "\n```\n")
    if figures(text).get("all_zero"):
        say("All event times are 0: gshare cannot learn what kernels take here.\n")
    beyond(output(CLIENT + ["memory"], 120)[1])


def beyond(text):
    rows = figures(text).get("beyond")
    if not rows:
        return say("Memory beyond allocations: no figures\n\n```\n" + text[-800:] + "\n```\n")
    table(["after", "asked, MiB", "NVML, MiB", "beyond, MiB"], rows)


def half(more=()):
    return ["-g", "0.5"] + list(more)


def speed(result):
    return result.get("per_second", result.get("failed"))


def shares():
    seconds = 0.2 if SHORT else 7
    with Service():
        say("```\n" + output([GSHARE, "doctor"], 60)[1].strip() + "\n```\n")
        program = Program(["memory"], half())
        seen = []
        while program.process.poll() is None and time.monotonic() < END - 200:
            line = program.line("= ", 0.5)
            if line:
                beyond(line)
                break
            seen += [c for c in claims() if c.get("overuse")]
        program.end()
        say(f"Over-use announced for it: {'yes: ' + json.dumps(seen[-1].get('overuse')) if seen else 'no'}.\n")
        rows = []
        for kind in ("eager", "callback") if SHORT else ("eager", "decode", "graph", "flood", "callback"):
            if END - time.monotonic() < 6 * seconds + 20:
                rows.append([kind, "no time left"])
                continue
            alone = pair(kind, seconds, [None])[0]
            inside = pair(kind, seconds, [half()])[0]
            two = pair(kind, seconds, [None, None])
            shared = pair(kind, seconds, [half(), half()])
            sums = [sum(r.get("per_second", 0) for r in results) for results in (two, shared)]
            rows.append(
                [kind, speed(alone), speed(inside), " ".join(str(speed(r)) for r in two),
                 " ".join(str(speed(r)) for r in shared), f"{sums[1] / sums[0]:.2f}" if sums[0] else None,
                 " ".join(str(r.get("p99_ms")) for r in two), " ".join(str(r.get("p99_ms")) for r in shared)]
            )
        say(f"Steps per second, {seconds} s each:\n")
        head = ["program", "alone", "alone in a claim", "two", "two in claims of a half", "sum with/without gshare"]
        table(head + ["p99 of two, ms", "p99 in claims, ms"], rows)


def turns():
    seconds = 0.2 if SHORT else 12
    with Service():
        rows, mixes = [], [
            ("0.1", "0.9", ["flood", "flood"]), ("0.5", "0.5", ["decode", "flood"]), ("0.3", "0.7", ["flood", "flood"]),
            ("0.1", "0.9", ["eager", "flood"]), ("0.1", "0.9", ["decode", "decode"]),
        ]
        for first, second, kinds in mixes[: 2 if SHORT else None]:
            if END - time.monotonic() < 5 * seconds + 150:
                rows.append([f"{kinds[0]} {first} : {kinds[1]} {second}", "no time left"])
                continue
            alone = [pair(k, seconds / 3, [None])[0] for k in kinds]
            watch = Program(["utilisation", max(0.4, seconds - 1)])
            seen = pair(kinds, seconds, [["-g", first], ["-g", second]])
            watched = watch.result()
            bare = pair(kinds, seconds, [None, None])
            parts = [
                f"{r.get('per_second', 0) / a['per_second']:.2f}" if a.get("per_second") else None
                for results in (seen, bare) for r, a in zip(results, alone)
            ]
            rows.append([f"{kinds[0]} {first} : {kinds[1]} {second}", " + ".join(map(str, parts[:2])),
                         " + ".join(map(str, parts[2:])), json.dumps(watched)])
        say("Parts of what each does alone; their sum is what turns leave of the GPU:\n")
        table(["claims", "with gshare", "without", "NVML's samples meanwhile"], rows)
        rows = []
        for how in ("thread", "killed") if SHORT else ("return", "thread", "raise", "killed"):
            bad, slowest = [], 0.0
            for _ in range(1 if SHORT else 5):
                started = time.monotonic()
                program = Program(["ending", how], half())
                status = program.end(40)
                slowest = max(slowest, time.monotonic() - started)
                right = {"raise": (7,), "killed": (-9, 137)}.get(how, (0,))
                bad += [] if status in right else [status]
            rows.append([how, f"{slowest:.1f} s", bad or "as they should"])
        table(["programs that end with work on the GPU", "longest", "ends"], rows)
        neighbour = Program(["steps", "decode", 1 if SHORT else 40], half())
        neighbour.line("ready")
        time.sleep(0.2 if SHORT else 10)
        server = Program(["server"], half()).result(120)
        say(f"A server that takes 85 % of what it is shown and captures its graphs: `{json.dumps(server)}`; "
            f"the neighbour meanwhile: `{json.dumps(neighbour.result(80))}`.\n")


def checkpoint(mib, how, **environment):
    program = Program(["hold", mib], half(["-n", "hour"]), **environment)
    ready = program.line("ready", 120)
    if not ready:
        program.end()
        return [how, mib, "it did not start"]
    row, before = [how, mib], bare_memory()
    own = next((claim["id"] for claim in claims() if claim.get("name") == "hour"), "hour")
    for action in ("detach", "attach"):
        started = time.monotonic()
        status, text = output([GSHARE, action, "hour"], 120)
        took = time.monotonic() - started
        rate = f", {mib / 1024 / took:.1f} GiB/s" if took > 0 else ""
        row.append(f"{took:.2f} s{rate}" if status == 0 else f"refused: {text.strip()[:200]}")
        if action == "detach":
            row.append(f"{before} -> {bare_memory()}")
            if status != 0:
                break
    program.tell("check")
    row.append(program.line("", 120) or "no answer")
    row.append(program.end())
    with open(os.path.join(OUT, "detach.txt"), "a") as file:
        file.write(output([GSHARE, "log", own], 20)[1])
    return row


def bare_memory():
    """MiB in use on the GPU, from nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    status, text = output(query, 20)
    return text.strip().split("\n")[0] if status == 0 else "?"


def detach():
    the_list(["checkpoint.s"] if SHORT else ["checkpoint."], 150)
    total = figures(output(CLIENT + ["facts"], 90)[1]).get("total_mib", 16384)
    sizes = [64] if SHORT else [1024, min(16384, total * 2 // 5)]
    with Service():
        rows = [checkpoint(mib, "one allocation") for mib in sizes]
        if not RAW:
            setting = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
            rows.append(checkpoint(2048, "expandable segments", **setting))
        table(["memory", "MiB", "detach", "GPU in use, MiB", "attach", "contents", "end"], rows)
        program = Program(["hold", 64], half(["-n", "leaver"]))
        program.line("ready", 60)
        output([GSHARE, "detach", "leaver"], 60)
        started = time.monotonic()
        program.process.terminate()
        say(f"SIGTERM while detached: status {program.end(30)} after {time.monotonic() - started:.1f} s.\n")


def mps():
    if not shutil.which("nvidia-cuda-mps-control") and "HOUR_CONFIG" not in os.environ:
        return say("MPS's control program is not on this machine.\n")
    seconds = 0.2 if SHORT else 12
    with Service('[gpu.all]\nmode = "mps"\n' if not os.environ.get("HOUR_MPS") else os.environ["HOUR_MPS"]):
        whole = figures(output(CLIENT + ["facts"], 90)[1])
        rows = []
        for part in ("0.25", "0.75"):
            inside = figures(output([GSHARE, "claim", "-q", "-g", part, "--"] + CLIENT + ["facts"], 120)[1])
            rows.append([part, whole.get("sms"), inside.get("sms"), inside.get("total_mib"), inside.get("failed")])
        table(["claim", "SMs of the GPU", "SMs in the claim", "memory shown, MiB", "failed"], rows)
        for kind in ("flood", "decode"):
            seen = pair(kind, seconds, [["-g", "0.25"], ["-g", "0.75"]])
            say(f"{kind}, 0.25 beside 0.75: `{json.dumps(seen)}`\n")
        say("```\n" + "\n".join(l for l in output([GSHARE, "doctor"], 60)[1].splitlines() if "MPS" in l) + "\n```\n")


CALLS = {"machine": machine, "shares": shares, "turns": turns, "detach": detach, "mps": mps}

def too_late(_, frame):
    """Ends a call that hangs; `main` then ends the programs that it started."""
    signal.alarm(0)
    stood = "".join(traceback.format_stack(frame)[-4:])
    say(f"Stopped after {LIMIT + 10} s. It stood at:\n\n```\n{stood}```\n")
    raise SystemExit(1)


def main(call):
    os.makedirs(OUT, exist_ok=True)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    # Caches of PyTorch, Triton and CUDA: here, since the home directory may be read-only.
    for name, place in [("TRITON_CACHE_DIR", "triton"), ("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("CUDA_CACHE_PATH", "cuda")]:
        os.environ[name] = os.path.join(OUT, "cache", place)
    if SHORT:
        os.environ["HOUR_SHORT"] = "1"
    started = time.monotonic()
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LIMIT + 10)
    say(f"### {datetime.date.today()}: {call}{' (short: no figures)' if SHORT else ''}\n")
    try:
        CALLS[call]()
    finally:
        for program in programs:
            program.kill()
        say(f"{call} took {time.monotonic() - started:.0f} s.\n")
        shutil.rmtree(os.path.join(OUT, "cache"), ignore_errors=True)
        with open(os.path.join(OUT, f"{call}.md"), "w") as file:
            file.write("\n".join(lines))


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if len(words) != 1 or words[0] not in CALLS:
        sys.exit(__doc__)
    main(words[0])
