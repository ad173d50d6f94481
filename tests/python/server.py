"""A Jupyter server without a browser, driven line by line: a JSON object in, a JSON object out.

start (dir, options, env), open (path, kernel), tab (kernel: a browser's socket, which stays open), run (kernel, code),
begin (kernel, code; does not wait), hear (kernel, words: waits for these in its output), list, state (kernel), rename
(session, to), interrupt, restart, close (session), stop. It knows nothing of gshare.
"""

import http.client
import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import time
import urllib.parse

import websocket
from jupyter_client import BlockingKernelClient

server = about = token = None
clients, tabs = {}, []


class OverFile(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(about["sock"])
        if about["secure"]:
            self.sock = ssl._create_unverified_context().wrap_socket(self.sock)


def ask(method, what, body=None):
    url = urllib.parse.urlparse(about["url"])
    if about.get("sock"):
        connection = OverFile("localhost")
    elif url.scheme == "https":
        connection = http.client.HTTPSConnection(url.netloc, context=ssl._create_unverified_context())
    else:
        connection = http.client.HTTPConnection(url.netloc)
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    text = None if body is None else json.dumps(body)
    connection.request(method, f"{about['base_url'].rstrip('/')}/api/{what}", text, headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {what}: {answer.status} {text[:300]}")
    return json.loads(text) if text else None


def wait(what, probe):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(what)


def whole(file):
    try:
        return json.loads(file.read_text())
    except ValueError:
        return None


def answers():
    try:
        return ask("GET", "status")
    except OSError:
        return None


def start(step):
    global server, about, token
    work = pathlib.Path(step["dir"])
    runtime = work / "runtime"
    environ = {**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime), **step.get("env", {})}
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--ServerApp.root_dir={work}"]
    log = open(work / "server.log", "wb")
    server = subprocess.Popen([*command, *step["options"]], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=work)
    name = f"jpserver-{server.pid}.json"
    about = wait("the server", lambda: (runtime / name).exists() and whole(runtime / name))
    token = about["token"] or environ.get("JUPYTERHUB_API_TOKEN", "")
    # The server writes its file a moment before it listens.
    wait("its first answer", answers)
    return about


def client_of(kernel):
    if kernel not in clients:
        file = pathlib.Path(about["root_dir"]) / "runtime" / f"kernel-{kernel}.json"
        client = BlockingKernelClient(connection_file=str(file))
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        clients[kernel] = client
    return clients[kernel]


def run(kernel, code):
    printed = []

    def collect(message):
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    answer = client_of(kernel).execute_interactive(code, timeout=60, output_hook=collect)
    return {"printed": "".join(printed), "error": answer["content"].get("ename")}


def hear(kernel, words):
    heard, deadline = "", time.monotonic() + 60
    while words not in heard:
        message = client_of(kernel).get_iopub_msg(timeout=max(deadline - time.monotonic(), 0.1))
        if message["msg_type"] == "stream":
            heard += message["content"]["text"]
    return {"heard": heard}


def act(step):
    what = step["do"]
    if what == "start":
        return start(step)
    if what == "open":
        body = {"path": step["path"], "name": step["path"], "type": "notebook", "kernel": {"name": step["kernel"]}}
        session = ask("POST", "sessions", body)
        return {"session": session["id"], "kernel": session["kernel"]["id"]}
    if what == "tab":
        address = about["url"].replace("http", "ws", 1)
        channels = f"{address}api/kernels/{step['kernel']}/channels?token={token}"
        tabs.append(websocket.create_connection(channels, timeout=60))
    if what == "begin":
        client_of(step["kernel"]).execute(step["code"])
    if what == "state":
        return ask("GET", f"kernels/{step['kernel']}")
    if what == "run":
        return run(step["kernel"], step["code"])
    if what == "hear":
        return hear(step["kernel"], step["words"])
    if what == "list":
        return {"server": about["pid"], "sessions": ask("GET", "sessions"), "kernels": ask("GET", "kernels")}
    if what == "rename":
        return ask("PATCH", f"sessions/{step['session']}", {"path": step["to"], "name": step["to"]})
    if what in ("interrupt", "restart"):
        if what == "restart" and step["kernel"] in clients:
            clients.pop(step["kernel"]).stop_channels()
        return {"kernel": ask("POST", f"kernels/{step['kernel']}/{what}", {})}
    if what == "close":
        ask("DELETE", f"sessions/{step['session']}")
    if what == "stop" and server:
        server.terminate()
        server.wait()
    return {}


for line in sys.stdin:
    try:
        said = act(json.loads(line)) or {}
    except Exception as error:
        said = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)
