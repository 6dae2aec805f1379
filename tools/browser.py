"""A Chromium without a window, driven by its DevTools protocol over a pipe: no port, no package.

    with Browser() as b, b.page(path, width=390, height=844, dark=True) as p:
        p.evaluate("document.title")
        p.screenshot("page.png")

`Page.counters` are the browser's own performance counters: elements, layouts and seconds of script,
layout and the whole
main thread.  They count work, not the time that others take from the machine.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--remote-debugging-pipe",
          "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
_LIMIT = 120.0  # seconds for one answer: a machine may be busy
# A command reaches the browser through descriptor 3 and its answer comes from 4; the shell puts them there.
_SHELL = 'exec "$0" "$@" 3<&{read} 4>&{write}'


class Page:
    """A tab: what it is asked, and what its console said."""

    def __init__(self, browser: Browser, session: str):
        self._browser, self._session = browser, session
        self.console: list[str] = []  # errors and warnings

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol and its answer."""
        return self._browser.send(method, self._session, **params)

    def evaluate(self, script: str) -> Any:
        """The value of an expression; of a promise, what it becomes."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(
                found["exceptionDetails"].get("exception", {}).get("description", found)
            )
        return found["result"].get("value")

    def frame(self) -> None:
        """Wait until the next frame was drawn."""
        self.evaluate("new Promise(r => requestAnimationFrame(() => setTimeout(r)))")

    def counters(self) -> dict[str, float]:
        """The browser's performance counters by name."""
        return {x["name"]: x["value"] for x in self.send("Performance.getMetrics")["metrics"]}

    def screenshot(self, path: str | os.PathLike[str]) -> None:
        """Write what is in sight as PNG."""
        self.frame()
        found = self.send("Page.captureScreenshot", format="png")
        Path(path).write_bytes(base64.b64decode(found["data"]))


class Browser:
    """A running browser; its profile is gone when it ends."""

    def __init__(self, *flags: str) -> None:
        assert BROWSER is not None, "there is no Chromium on this machine"
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self._out = os.pipe()
        self._in, back = os.pipe()
        self._number, self._rest = 0, b""
        self._pages: dict[str, Page] = {}
        shell = _SHELL.format(read=theirs, write=back)
        profile = f"--user-data-dir={self._folder.name}"
        self._run = subprocess.Popen(
            ["bash", "-c", shell, BROWSER, *_FLAGS, *flags, profile, "about:blank"],
            pass_fds=(theirs, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        os.close(back)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.send("Browser.close")
        except (AssertionError, OSError):
            self._run.kill()
        self._run.wait(60)
        os.close(self._out)
        os.close(self._in)
        self._folder.cleanup()

    def send(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """A command and its answer; events until then go to their pages."""
        self._number += 1
        said: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            said["sessionId"] = session
        text = json.dumps(said).encode() + b"\0"
        while text:
            text = text[os.write(self._out, text) :]
        while True:
            x = self._message()
            if x.get("id") == self._number:
                assert "error" not in x, f"{method}: {x.get('error')}"
                found: dict[str, Any] = x.get("result", {})
                return found
            self._event(x)

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + _LIMIT
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser did not answer in {_LIMIT:.0f} s"
            more = os.read(self._in, 1 << 16)
            assert more, "the browser ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def _event(self, x: dict[str, Any]) -> None:
        page, p = self._pages.get(x.get("sessionId", "")), x.get("params", {})
        if page is None:
            return
        if x["method"] == "Runtime.exceptionThrown":
            e = p["exceptionDetails"]
            page.console.append(e.get("exception", {}).get("description") or e["text"])
        elif x["method"] == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning"):
            page.console.append(" ".join(str(a.get("value", a)) for a in p["args"]))
        elif x["method"] == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            page.console.append(p["entry"]["text"])

    @contextmanager
    def page(
        self, path: str | os.PathLike[str], width: int = 1400, height: int = 900, dark: bool = False,
        mark: str = ""
    ) -> Iterator[Page]:  # fmt: skip
        """A file in a tab of this size, once its script has run; mark is what follows # in the address."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        p = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Performance"):
            p.send(f"{domain}.enable")
        p.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False)  # fmt: skip
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        p.send("Emulation.setEmulatedMedia", features=scheme)
        p.send("Page.bringToFront")
        address = Path(path).absolute().as_uri() + (f"#{mark}" if mark else "")
        p.send("Page.navigate", url=address)
        p.evaluate("""new Promise(r => document.readyState === "complete" ? r() : addEventListener("load", r))""")  # fmt: skip  # noqa: E501
        p.frame()
        try:
            yield p
        finally:
            del self._pages[session]
            self.send("Target.closeTarget", targetId=target)
