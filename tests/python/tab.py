"""A real Jupyter server and what a tab of a browser does with it, driven line by line: a JSON object in, a JSON object out.

start (kernel), open (a tab: its socket, which is kept open), run (code, in that tab), begin (code, not waited for), state,
close, stop. It knows nothing of gshare.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import uuid

import requests
import websocket

server = about = kernel = tab = None


def wait(what, probe, timeout=60):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(what)


def ask(how, what, **more):
    headers = {"Authorization": f"token {about['token']}"}
    answer = requests.request(how, f"{about['url']}api/{what}", headers=headers, timeout=30, **more)
    answer.raise_for_status()
    return answer.json() if answer.text else {}


def start(name):
    global server, about, kernel
    home = pathlib.Path(os.environ["HOME"])
    runtime = home / "runtime"
    environ = {**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime)}
    log = open(home / "server.log", "wb")
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--port=0"]
    server = subprocess.Popen([*command, f"--ServerApp.root_dir={home}"], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    told = wait("the server", lambda: list(runtime.glob("jpserver-*.json")))
    about = json.loads(told[0].read_text())
    session = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": name}}
    kernel = ask("POST", "sessions", json=session)["kernel"]["id"]


def open_tab():
    global tab
    address = about["url"].replace("http", "ws", 1)
    tab = websocket.create_connection(f"{address}api/kernels/{kernel}/channels?token={about['token']}", timeout=60)


def begin(code):
    number = uuid.uuid4().hex
    header = {"msg_id": number, "msg_type": "execute_request", "username": "", "session": number, "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell", "buffers": []}
    tab.send(json.dumps(message))
    return number


def run(code):
    number, printed = begin(code), ""
    while True:
        message = json.loads(tab.recv())
        if message["parent_header"].get("msg_id") != number:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            printed += content["text"]
        elif kind == "error":
            return {"printed": printed, "error": content["ename"]}
        elif kind == "status" and content["execution_state"] == "idle":
            return {"printed": printed, "error": None}


def act(step):
    what = step["do"]
    if what == "start":
        start(step["kernel"])
    elif what == "open":
        open_tab()
    elif what == "run":
        return run(step["code"])
    elif what == "begin":
        begin(step["code"])
    elif what == "state":
        return ask("GET", f"kernels/{kernel}")
    elif what == "close":
        tab.close()
    elif what == "stop" and server:
        server.terminate()
        server.wait()
    return {}


for line in sys.stdin:
    try:
        said = act(json.loads(line))
    except Exception as error:
        said = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)
