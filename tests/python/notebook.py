"""A Jupyter client, driven line by line: a JSON object in, a JSON object out.

start (kernel), run (code, until: answer when this text has been printed), rest (of the cell that runs), interrupt,
debug (code, line: stop there, then go on), kill, restart, shutdown.
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
    """The cell's output so far, and how it ended if it has."""
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


def debug(code, line):
    """Runs a cell in the debugger, as JupyterLab does; returns where it stops and what it prints after that."""
    global cell

    def ask(command, **arguments):
        content = {"type": "request", "seq": 1, "command": command, "arguments": arguments}
        message = client.session.msg("debug_request", content)
        client.control_channel.send(message)
        while True:
            answer = client.get_control_msg(timeout=60)
            if answer["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                if not answer["content"].get("success"):
                    raise RuntimeError(f"{command}: {answer['content']}")
                return answer["content"].get("body", {})

    ask("initialize", clientID="test", clientName="test", adapterID="", pathFormat="path", linesStartAt1=True)
    ask("attach")
    source = ask("dumpCell", code=code)["sourcePath"]
    ask("setBreakpoints", breakpoints=[{"line": line}], source={"path": source}, sourceModified=False)
    ask("configurationDone")
    cell = client.execute(code)
    deadline = time.monotonic() + 60
    while True:
        message = client.get_iopub_msg(timeout=max(deadline - time.monotonic(), 0.1))
        if message["msg_type"] == "debug_event" and message["content"]["event"] == "stopped":
            break
    thread = message["content"]["body"]["threadId"]
    frame = ask("stackTrace", threadId=thread)["stackFrames"][0]
    ask("continue", threadId=thread)
    said = collect()
    ask("disconnect", restart=False, terminateDebuggee=False)
    return {**said, "stopped": frame["line"]}


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
    if what == "debug":
        return debug(step["code"], step["line"])
    if what == "kill":
        os.kill(manager.provisioner.pid, signal.SIGKILL)
    elif what == "restart":
        # Two clients would use the same socket names, and the later one would get the answers.
        client.stop_channels()
        manager.restart_kernel(now=True)
        connect()
        return {"pid": manager.provisioner.pid}
    elif what == "shutdown" and manager.has_kernel:
        client.stop_channels()
        manager.shutdown_kernel()
    return {}


for line in sys.stdin:
    print(json.dumps(act(json.loads(line))), flush=True)
