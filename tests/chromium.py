"""A headless Chromium driven over a pipe by the DevTools protocol, with nothing but the standard library."""

import base64
import json
import os
import select
import shutil
import subprocess
import time


def executable() -> str | None:
    """Return Chromium's path, None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """A tab: what it shows, what it says, what it asks the network for."""

    def __init__(self, executable, profile):
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [
            executable, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._count, self._session, self.events = b"", 0, None, []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @property
    def pid(self):
        return self._process.pid

    def _receive(self, seconds):
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("Chromium did not answer")
            read = os.read(self._in, 1 << 16)
            if not read:
                raise EOFError("Chromium has ended")
            self._buffer += read
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(60)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, path, *, width=1280, height=900, dark=False):
        self.events.clear()
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        ])  # fmt: skip
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(60))
        self.drawn()

    def drawn(self):
        """Wait until what has changed is on the screen, and its events are out."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script):
        """Evaluate, waiting for a promise."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def run_inside(self, script):
        """Evaluate in the sandboxed frame of the page, which is a process of its own."""
        self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)
        while True:
            attached = [event["params"] for event in self.events if event.get("method") == "Target.attachedToTarget"]
            frames = [each["sessionId"] for each in attached if each["targetInfo"]["type"] == "iframe"]
            if frames:
                break
            self.events.append(self._receive(60))
        whole, self._session = self._session, frames[-1]
        try:
            return self.run(script)
        finally:
            self._session = whole

    def text(self):
        return self.run("document.body.innerText")

    def middle(self, selector, x=0.5, y=0.5):
        """Scroll an element into view and give a point inside it."""
        return self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            f"const b = e.getBoundingClientRect(); return [b.left + {x} * b.width, b.top + {y} * b.height]; }})()"
        )

    def hover(self, x, y):
        self.drawn()  # scrolling hides the tooltip
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return self.run("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")

    def click(self, selector):
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def complaints(self):
        """List console messages, exceptions and log entries."""
        bad = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in bad]

    def requests(self):
        asked = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        urls = (event["params"]["request"]["url"] for event in asked)
        return [url for url in urls if not url.startswith("data:image/")]

    def screenshot(self, path, *, whole=True):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        self._process.wait(30)
