"""JupyterLab in a headless browser, driven line by line: a JSON object in, a JSON object out.

start (dir), launch (shown: the card's words), run (code, until: answer when the output has this), output, interrupt,
restart, rename (to), shutdown, picture (file), stop. It knows nothing of gshare.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

from playwright.sync_api import sync_playwright

server = browser = page = None
TIMEOUT = 60


def wait(what, probe):
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        page.wait_for_timeout(50) if page else time.sleep(0.05)
    raise TimeoutError(what)


def start(play, folder):
    global server, browser, page
    work = pathlib.Path(folder) / "papers"
    work.mkdir(exist_ok=True)
    runtime = pathlib.Path(folder) / "runtime"
    environ = {**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime)}
    options = ["--no-browser", "--allow-root", "--port=0", f"--ServerApp.root_dir={work}"]
    # An address with a prefix, as behind JupyterHub.
    options += ["--ServerApp.base_url=/user/ada/", "--LabApp.expose_app_in_browser=True"]
    log = open(pathlib.Path(folder) / "server.log", "wb")
    command = [sys.executable, "-m", "jupyterlab", *options]
    server = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    about = wait("the server", lambda: written(runtime))
    browser = play.chromium.launch(
        executable_path=os.environ["CHROMIUM"], args=["--no-sandbox", "--disable-gpu"]
    )
    page = browser.new_page(viewport={"width": 900, "height": 480})
    page.set_default_timeout(TIMEOUT * 1000)
    page.goto(f"{about['url']}lab?token={about['token']}")
    page.wait_for_selector(".jp-LauncherCard")
    # Hides the question about news and other boxes in the corner.
    page.add_style_tag(content=".Toastify { display: none }")


def written(runtime):
    """The server's file about itself; None until it is complete."""
    for file in runtime.glob("jpserver-*.json"):
        try:
            return json.loads(file.read_text())
        except ValueError:
            return None


def idle():
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', state="attached")
    # JupyterLab silently drops a cell that is run at the moment when the kernel becomes idle.
    page.wait_for_timeout(1500)


def output():
    text = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell .jp-OutputArea-output"
    return "\n".join(page.locator(text).all_inner_texts())


def command(name):
    page.evaluate("name => { window.jupyterapp.commands.execute(name) }", name)


def act(play, step):
    what = step["do"]
    if what == "start":
        start(play, step["dir"])
    elif what == "launch":
        cards = page.locator('.jp-LauncherCard[data-category="Notebook"]')
        cards.filter(has_text=step["shown"]).first.click()
        idle()
    elif what == "run":
        idle()
        cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
        cell.click()
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(step["code"])
        page.keyboard.press("Control+Enter")
        wait(step["until"], lambda: step["until"] in output())
    elif what == "wait":
        wait(step["until"], lambda: step["until"] in output())
    elif what == "interrupt":
        page.locator('[data-command="notebook:interrupt-kernel"]').first.click()
    elif what == "restart":
        page.locator('[data-command="notebook:restart-kernel"]').first.click()
        page.locator(".jp-Dialog .jp-mod-accept").click()
        page.wait_for_timeout(1000)
        idle()
    elif what == "rename":
        command("docmanager:rename")
        page.locator(".jp-Dialog input").fill(step["to"])
        page.locator(".jp-Dialog .jp-mod-accept").click()
        page.wait_for_selector(f'.lm-TabBar-tabLabel:has-text("{step["to"]}")')
    elif what == "shutdown":
        command("kernelmenu:shutdown")
    elif what == "picture":
        page.screenshot(path=step["file"])
    elif what == "stop":
        browser.close()
        server.terminate()
        server.wait()
    return {"output": output() if page and what != "stop" else ""}


with sync_playwright() as play:
    for line in sys.stdin:
        try:
            answer = act(play, json.loads(line))
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
