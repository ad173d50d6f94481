"""A Jupyter client that is driven line by line: a JSON object in, a JSON object out.

start (kernel), run (code, until: answer when this text has been printed), rest (of the cell that runs), interrupt,
kill, restart, shutdown.
"""

import json
import os
import queue
import signal
import sys
import time

from jupyter_client.manager import KernelManager

manager = client = cell = None


def connect():
    global client
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)


def collect(until=None, timeout=60):
    """What the cell prints and how it ends, as far as it has come."""
    printed, ended, error, words = "", False, None, None
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and not ended and not (until and until in printed):
        try:
            message = client.get_iopub_msg(timeout=0.2)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != cell:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            printed += content["text"]
        elif kind == "error":
            error, words = content["ename"], content["evalue"]
        elif kind == "status":
            ended = content["execution_state"] == "idle"
    return {"printed": printed, "ended": ended, "error": error, "words": words}


def act(step):
    global manager, cell
    what = step["do"]
    if what == "start":
        manager = KernelManager(kernel_name=step["kernel"])
        began = time.monotonic()
        manager.start_kernel()
        connect()
        return {"seconds": time.monotonic() - began, "pid": manager.provisioner.pid}
    if what == "run":
        began = time.monotonic()
        cell = client.execute(step["code"])
        return {**collect(step.get("until")), "seconds": time.monotonic() - began}
    if what == "rest":
        return collect(step.get("until"))
    if what == "interrupt":
        began = time.monotonic()
        manager.interrupt_kernel()
        return {**collect(), "seconds": time.monotonic() - began}
    if what == "kill":
        os.kill(manager.provisioner.pid, signal.SIGKILL)
    elif what == "restart":
        manager.restart_kernel(now=True)
        connect()
        return {"pid": manager.provisioner.pid}
    elif what == "shutdown" and manager.has_kernel:
        client.stop_channels()
        manager.shutdown_kernel()
    return {}


for line in sys.stdin:
    print(json.dumps(act(json.loads(line))), flush=True)
