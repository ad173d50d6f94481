#!/usr/bin/env python3
"""Writes the list of the driver's entry points, from which ../build.rs makes the proxy's trampolines.

    generate.py HEADERS...   reads cuda.h and its companions in each directory (one per CUDA version,
                             oldest first) and writes entries.tsv
    generate.py              rewrites entries.tsv with its present names, after a hook was added to or
                             removed from ../src/table.rs
    generate.py --check      changes nothing; fails if entries.tsv would change
    generate.py --missing HEADERS...   names the entry points of newer headers that entries.tsv lacks

The headers come with the wheels nvidia-cuda-runtime-cu11, nvidia-cuda-runtime-cu12 and
nvidia-cuda-runtime (`pip download --no-deps`; directory `include`). Needs a C preprocessor as `cc`.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ENTRIES = HERE / "entries.tsv"
TABLE = HERE.parent / "src" / "table.rs"

HEADERS = ["cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h"]
# Stand-ins for what the companions need from other projects' headers.
FOREIGN = {
    "GL/gl.h": "typedef unsigned int GLuint; typedef unsigned int GLenum;",
    "EGL/egl.h": "typedef int EGLint; typedef void *EGLSyncKHR;",
    "EGL/eglext.h": "typedef void *EGLImageKHR; typedef void *EGLStreamKHR;",
    "vdpau/vdpau.h": "typedef unsigned int VdpDevice; typedef unsigned int VdpVideoSurface;"
    "typedef unsigned int VdpOutputSurface; typedef void VdpGetProcAddress(void);",
}
# The wheels declare types for these functions, but no prototypes.
PROFILER = {
    "cuProfilerInitialize": "const char *, const char *, int",
    "cuProfilerStart": "void",
    "cuProfilerStop": "void",
}

# Families; the first match counts. `ask`: calls that read, set up the calling thread or free things. They always pass,
# so that a program whose claim has ended can clean up and exit. Everything else needs the GPU and is refused once the
# claim no longer holds it.
ASK = (
    r"cu\w*?(Get|Query|Destroy|Free|Release|Unload|Unregister|Unmap|Close|Synchronize|Disable"
    r"|Pop|Push|Detach|IsCapturing|EndCapture|Occupancy|Address|Current|Profiler|Logs?|Coredump"
    r"|Checkpoint|Is[A-Z])"
)
FAMILIES = [
    ("lookup", r"cuGetProcAddress|cuGetExportTable|cuInit$"),
    ("launch", r"cuLaunch(?!HostFunc)|cuGraphLaunch"),
    (
        "memory",
        r"cuMem(Alloc(?!Host)|Free|Create|Release|Map$|Unmap|RetainAllocationHandle|PoolCreate"
        r"|PoolDestroy|PoolTrimTo)|cuMemAllocFromPool|cuArray(3D)?(Create|Destroy)"
        r"|cuMipmappedArray(Create|Destroy)|cuGraphAddMemAllocNode|cuGraphInstantiate"
        r"|cuGraphUpload|cuGraphExecDestroy|cuDeviceGraphMemTrim",
    ),
    ("context", r"cu(DevicePrimaryCtx(Retain|Release|Reset)|(Green)?Ctx(Create|Destroy)|D3D\w*CtxCreate|GLCtxCreate|VDPAUCtxCreate)"),
    ("view", r"cuDeviceTotalMem|cuMemGetInfo|cuDeviceGetCount|cuDeviceGet(_v\d)?$"),
    ("ask", ASK),
    ("work", r""),
]


# Answered without a GPU: these pass even while a claim is detached, without the in-call mark.
FREE = r"cuGetError(Name|String)$|cuDriverGetVersion$|cuGetExportTable$|cuCheckpoint"
# Structures that are passed by value and do not fit into registers.
LARGE = r"\b(CUipc\w*Handle|CUeglFrame) \w+(,|$)"


def on_stack(parameters):
    """Whether some arguments of a function are on the stack: more than six, or large ones."""
    plain = re.sub(r"\([^()]*\)", "", parameters)
    return plain.count(",") >= 6 or re.search(LARGE, plain) is not None


def family(name):
    return next(kind for kind, pattern in FAMILIES if re.match(pattern, name))


def prototypes(directory):
    """Maps each entry point that a directory of headers declares to its parameters."""
    found = {}
    with tempfile.TemporaryDirectory() as stand_ins:
        for path, text in FOREIGN.items():
            place = pathlib.Path(stand_ins) / path
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)
        for header in HEADERS:
            path = pathlib.Path(directory) / header
            if not path.exists():
                continue
            # The second run declares every version and per-thread twin under its own name; the first declares what
            # the second leaves out.
            for extra in ([], ["-D__CUDA_API_VERSION_INTERNAL"], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]):
                text = subprocess.run(
                    ["cc", "-E", "-P", f"-I{directory}", f"-I{stand_ins}", *extra, path],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
                text = " ".join(text.split())
                for name, parameters in re.findall(r"CUresult (cu[A-Z]\w*) ?\(([^;{]*)\) ?;", text):
                    found.setdefault(name, re.sub(r" ([*,])|\s+(?=\))", r" \1", parameters).strip())
    found.update({name: text for name, text in PROFILER.items() if name not in found})
    return found


def read_entries():
    rows = {}
    for line in ENTRIES.read_text().splitlines():
        if line and not line.startswith("#"):
            name, kind, since, parameters, _ = line.split("\t")
            rows[name] = (kind, since, parameters)
    return rows


def version(directory):
    text = (pathlib.Path(directory) / "cuda.h").read_text()
    number = int(re.search(r"#define CUDA_VERSION (\d+)", text).group(1))
    return f"{number // 1000}.{number % 1000 // 10}"


def collect(directories):
    rows = {}
    for directory in directories:
        for name, parameters in prototypes(directory).items():
            rows.setdefault(name, (family(name), version(directory), parameters))
    return rows


def hooked():
    """Names of all hooks in table.rs."""
    body = TABLE.read_text().split("\nhooks! {", 1)[1]
    return set(re.findall(r"\bcu[A-Z]\w*", re.sub(r"//[^\n]*", "", body)))


def way(name, kind, parameters):
    """The kind of trampoline for a function without a hook."""
    if re.search(r"\b(float|double) \w*(,|$)", parameters):
        return "plain"
    if re.match(FREE, name):
        return "free"
    ask = kind in ("lookup", "view") or re.match(ASK, name)
    return ("ask" if ask else "work") + ("_wide" if on_stack(parameters) else "")


def entries_text(rows):
    hooks = hooked()
    lines = [
        "# Made by generate.py from the CUDA headers; not edited by hand.",
        "# name, family, first of the headers read that has it, parameters, way: `hook`, or passed to the driver:",
        "# `ask` always, `work` while the claim holds its GPU, `plain` likewise but with a number in a vector register,",
        "# which rules the in-call mark out; `free` need no GPU at all and wait for nothing. `_wide`: some arguments lie",
        "# on the stack.",
    ]
    for name in sorted(rows):
        kind, since, parameters = rows[name]
        last = "hook" if name in hooks else way(name, kind, parameters)
        lines.append("\t".join((name, kind, since, parameters, last)))
    return "\n".join(lines) + "\n"


def main(arguments):
    if arguments[:1] == ["--missing"]:
        known = read_entries()
        for name, (kind, since, parameters) in sorted(collect(arguments[1:]).items()):
            if name not in known:
                print(f"{name}\t{kind}\t{since}\t{parameters}")
        return 0
    check = arguments == ["--check"]
    fresh = collect(arguments) if arguments and not check else None
    # Families are computed anew: FAMILIES may have changed although the headers have not.
    rows = fresh or {name: (family(name), *rest) for name, (_, *rest) in read_entries().items()}
    text = entries_text(rows)
    if not check:
        ENTRIES.write_text(text)
    elif ENTRIES.read_text() != text:
        print(f"{ENTRIES} is not what generate.py makes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
