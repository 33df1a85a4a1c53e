"""A headless Chromium that a test drives through the DevTools protocol, over a pipe."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

from tests.support.slowness import scaled

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
    "--window-size=1400,1500",
)  # fmt: skip
LAUNCH = """
import os, sys
from fcntl import F_DUPFD, fcntl
pipes = [fcntl(int(fd), F_DUPFD, 10) for fd in sys.argv[1:3]]
for fd, pipe in zip((3, 4), pipes):  # the protocol reads from 3 and writes to 4
    os.dup2(pipe, fd)
os.execv(sys.argv[3], sys.argv[3:])
"""
SECONDS = 60


def find_browser():
    """The path of a browser: $CHROME_BIN, or the first one on the path; None if there is none."""
    return os.environ.get("CHROME_BIN") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a new browser. `errors` has everything that its console and its network complain about."""

    def __init__(self, path, profile):
        self.errors, self.requests = [], []
        to_browser, self.commands = os.pipe()
        self.replies, from_browser = os.pipe()

        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                LAUNCH,
                str(to_browser),
                str(from_browser),
                path,
                *FLAGS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]  # the first one may load a start page
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.commands)
        os.close(self.replies)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def call(self, method, **params):
        """The result of a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return reply["result"]

    def open(self, url):
        """Load a page, until its load event."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._read()

    def run(self, script):
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, selector):
        """Click the middle of an element, as a mouse does."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        """Press a key in the element that has the focus."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def enter(self, selector, value):
        """Give an input a value, as a user does."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{element}.value = {json.dumps(value)}, {element}.dispatchEvent(new Event('input'))")

    def _read(self):
        end = time.monotonic() + scaled(SECONDS)
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self.replies], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self.replies, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError(f"the browser did not answer (its exit status is {self.process.poll()})")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        if message.get("sessionId") == self._session:
            self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method, params):
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"])
        elif method == "Log.entryAdded":
            self.errors.append(params["entry"])
        elif method == "Runtime.consoleAPICalled":
            self.errors.append([argument.get("value") for argument in params["args"]])
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(params)
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
