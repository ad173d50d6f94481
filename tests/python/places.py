"""What a program whose claim has no GPU yet, and its children, find in their environments, before and after."""
import ctypes, os, subprocess, sys

client = sys.argv[1]
names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")


def block(pid="self"):
    return open(f"/proc/{pid}/environ", "rb").read().split(b"\0")[:-1]


def lacks(entries):
    return not any(e.split(b"=")[0].decode() in names for e in entries)


def child(env=None):
    """The answers of a CUDA client that starts now."""
    asked = subprocess.run([client], input=b"sms\nmps\ncount\n", stdout=subprocess.PIPE, env=env)
    return " ".join(asked.stdout.decode().split()[1::2])


before = dict(os.environ)
shown = subprocess.run(["cat", "/proc/self/environ"], stdout=subprocess.PIPE).stdout.split(b"\0")[:-1]
print("before", lacks(block()), lacks(shown), all(block()), flush=True)
reader, writer = os.pipe()
if os.fork() == 0:
    cuda, sms = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
    made = cuda.cuInit(0)
    cuda.cuDeviceGetAttribute(ctypes.byref(sms), 16, 0)
    os.write(writer, f"{made} {sms.value}".encode())
    os._exit(0)
print("forked", os.read(reader, 100).decode(), flush=True)
os.wait()
print("own place still empty", lacks(block()), flush=True)
cuda, sms = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
made = cuda.cuInit(0)
cuda.cuDeviceGetAttribute(ctypes.byref(sms), 16, 0)
print("own", made, sms.value, flush=True)
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
for name in names:
    value = libc.getenv(name.encode())
    entry = f"{name}=".encode() + (value or b"")
    print(name, value.decode() if value else None, entry in block(), os.environ.get(name), flush=True)
print("whole", all(block()), all(b"=" in e for e in block()), flush=True)
print("child", child(), flush=True)
print("child with the copy", child(before), flush=True)
