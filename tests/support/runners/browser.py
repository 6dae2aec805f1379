"""Chromium without a window, driven by its own protocol over a pair of pipes."""

import base64
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
           "--disable-background-networking", "--disable-dev-shm-usage"]  # fmt: skip


class Page:
    """One page: go somewhere, run a script, look."""

    def __init__(self, to, back):
        self._to, self._back, self._count, self._session = to, back, 0, None
        self.failures = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target,
            flatten=True)["sessionId"]  # fmt: skip
        self._ask("Page.enable")
        self._ask("Runtime.enable")

    def _ask(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("method") == "Runtime.exceptionThrown":
                self.failures.append(found["params"]["exceptionDetails"])
            if found.get("id") == self._count:
                assert "error" not in found, found
                return found["result"]

    def _read(self):
        raw = b""
        while not raw.endswith(b"\0"):
            part = self._back.read(1)
            assert part, "the browser ended"
            raw += part
        return json.loads(raw[:-1])

    def run(self, script):
        """The value of a script, which may await."""
        found = self._ask("Runtime.evaluate", expression=f"(async () => {{ {script} }})()", awaitPromise=True,
                          returnByValue=True)  # fmt: skip
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def go(self, url):
        """Open an address, and wait for it."""
        self._ask("Page.navigate", url=url)
        while self.run("return [location.href, document.readyState].join(' ')") != f"{url} complete":  # fmt: skip  # noqa: E501
            pass

    def look(self, width, height, scheme, path=None):
        """Set the size and the colours, and write a picture."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 500)  # fmt: skip
        self._ask("Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip
        raw = base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"])
        if path is not None:
            Path(path).write_bytes(raw)
        return raw


@contextlib.contextmanager
def browsing():
    """A page of a browser of its own."""
    (theirs, to), (back, theirs_too) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = shlex.join([BROWSER, *OPTIONS, f"--user-data-dir={profile}"])
        shell = ["bash", "-c", f"exec {command} 3<&{theirs} 4>&{theirs_too}"]
        process = subprocess.Popen(shell, pass_fds=(theirs, theirs_too), stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(theirs_too)
        with os.fdopen(to, "wb", buffering=0) as out, os.fdopen(back, "rb") as into:
            try:
                yield Page(out, into)
            finally:
                process.kill()
                process.wait()
