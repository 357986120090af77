"""A headless Chromium, driven over two pipes by the DevTools protocol: no driver, no port, no package.

With `--remote-debugging-pipe` Chromium reads commands from descriptor 3 and writes answers and events to 4, each a
JSON object that a zero byte ends.
"""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0
"""Seconds to wait for any one thing; a busy machine is slow, and a hang must still end."""
_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3])
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find():
    """Path of the browser, None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One Chromium with one page."""

    def __init__(self, program, profile):
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        options = (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
            "--force-color-profile=srgb",
            f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
        )  # fmt: skip
        start = [sys.executable, "-c", _START, str(to_browser), str(from_browser), program, *options]
        # Both descriptors are the child's.
        self._process = subprocess.Popen(
            start, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers, self._pending, self._session = itertools.count(1), b"", None
        self.events = []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Send a command and wait for its answer; events that come before it are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != number:
                self.events.append(answer)
                continue
            assert "error" not in answer, f"{method}: {answer['error']}"
            return answer["result"]

    def evaluate(self, expression):
        """The value of a JavaScript expression; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition):
        """Until a JavaScript expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never came true: {condition}"
            time.sleep(0.05)

    def window(self, width, height=900, *, mobile=False):
        scale = 2 if mobile else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, path):
        """Open a file and wait until all of its plots are drawn."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && document.documentElement.dataset.drawn")

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def move(self, x, y, button="none"):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button=button)

    def drag(self, start, end):
        self.move(*start)
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=start[0], y=start[1], button="left", clickCount=1)
        for share in (0.5, 1.0):
            self.move(*(a + share * (b - a) for a, b in zip(start, end, strict=True)), button="left")
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], button="left", clickCount=1)

    def screenshot(self, path):
        """The whole page as a picture."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def errors(self):
        """What the console would show in red, and exceptions that nobody caught."""
        self.evaluate("0")
        found = []
        for event in self.events:
            content = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(content["exceptionDetails"]["text"])
                case "Runtime.consoleAPICalled" if content["type"] in {"error", "warning", "assert"}:
                    found.append(str(content["args"]))
                case "Log.entryAdded" if content["entry"]["level"] in {"error", "warning"}:
                    found.append(content["entry"]["text"])
        return found

    def requests(self):
        """Addresses the page asked for."""
        self.evaluate("0")
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]

    def close(self):
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._commands)
            os.close(self._answers)

    def _receive(self):
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], max(end - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has gone"
            self._pending += part
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)
