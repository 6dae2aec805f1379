"""How fast the inspector's page of a large program opens, in a real browser without a window.

    python benchmarks/inspector.py [--layers 8] [--rounds 5] [--out record.json]

The program is a training step of the demo's transformer with more layers: over two thousand values.  The
page is opened anew in each round; the browser tells when it first painted, when the page was ready, and how
long each view takes to be drawn.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import op

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import gpt

POLICY = "default-src 'none';"
TELL = """<script>
new PerformanceObserver(list => {
  const first = list.getEntriesByName("first-contentful-paint")[0]; if (!first) return;
  setTimeout(() => {
    const out = {paint: first.startTime, ready: +document.documentElement.dataset.ready, values: NODES.length, steps: STEPS.length, kernels: KERNELS.length};
    for (const v of Object.keys(views)) { const begin = performance.now(); show(v); views[v].fit?.(true); views[v].paint?.(); document.body.offsetHeight; out["view " + v] = performance.now() - begin; }
    fetch("/told", {method: "POST", body: JSON.stringify(out)});
  }, 200);
}).observe({type: "paint", buffered: true});
</script>"""  # noqa: E501


def written(layers: int, folder: Path) -> tuple[Path, float]:
    """The page, and the seconds that it took to write it."""
    params = gpt.init(ts.key(0), 40, 64, 64, layers)
    optimizer = ts.optim.adam(1e-3)
    tokens = ts.tensor(np.zeros((4, 64), np.int64))

    def loss_of(params: Any, inputs: Any, targets: Any) -> Any:
        return op.cross_entropy(gpt.model(params, inputs, heads=4), targets)

    @ts.jit(target="cpu")
    def step(params: Any, state: Any, inputs: Any, targets: Any) -> Any:
        loss, grads = ts.value_and_grad(loss_of)(params, inputs, targets)
        return loss, *optimizer.update(grads, state, params)

    begin = time.perf_counter()
    path = step.inspect(params, optimizer.init(params), tokens, tokens, path=folder / "step.html")
    return path, time.perf_counter() - begin


def opened(page: str, browser: str, folder: Path) -> dict[str, float]:
    """What a browser tells of a page, in milliseconds."""
    told: list[dict[str, float]] = []
    done = threading.Event()
    body = page.replace(POLICY, f"{POLICY} connect-src 'self';", 1).replace(
        "<head>", "<head>" + TELL, 1
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body.encode())

        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            done.set()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--remote-debugging-port=0",
    ]
    run = subprocess.Popen(
        [browser, *flags, "--window-size=1400,900", f"--user-data-dir={folder / 'profile'}",
        f"http://127.0.0.1:{server.server_address[1]}/"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert done.wait(90), "the page told nothing"
    finally:
        run.terminate()
        run.wait(20)
        server.shutdown()
        server.server_close()
    return told[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, seconds = written(given.layers, folder)
        page = path.read_text()
        rounds = [opened(page, browser, folder) for _ in range(given.rounds)]
    version = subprocess.run(
        [browser, "--version"], capture_output=True, text=True, check=True
    ).stdout
    median = {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}
    found = {
        "machine": platform.machine(), "browser": version.strip(), "bytes": len(page),
        "seconds to write": seconds,
        "rounds": given.rounds, "milliseconds": median, "worst paint": max(r["paint"] for r in rounds),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
