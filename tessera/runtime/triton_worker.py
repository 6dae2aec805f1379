"""A process that turns Triton source into code for a GPU; no GPU needs to be there.

    python -P triton_worker.py

It is run by path and imports nothing of tessera.  A request is a length and JSON: the source, the name of
the kernel, its signature, the target and options.  A reply is `+` or `-`, a length, and JSON with the
figures of the kernel, a zero byte and its code; or the message of an error.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import struct
import sys
import tempfile
from typing import Any

LENGTH = struct.Struct("<Q")


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "0"
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print must not get between replies
    requests = sys.stdin.buffer
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # Tessera has a store of its own
        while len(head := requests.read(LENGTH.size)) == LENGTH.size:
            text = requests.read(*LENGTH.unpack(head)).decode()
            try:
                status, payload = b"+", build(json.loads(text), folder)
            except Exception as e:  # whatever a compiler raises is the answer
                status, payload = b"-", f"{type(e).__name__}: {e}".encode()
            replies.write(status + LENGTH.pack(len(payload)) + payload)
            replies.flush()


def build(request: dict[str, Any], folder: str) -> bytes:
    """Figures and code of a kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # Lines name the folder of this process, by which equal code would differ between machines.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "0" if request["lines"] else "1"
    kernel = getattr(_module(request["source"], folder), request["name"])
    aligned = {(i,): [["tt.divisibility", 16]] for i in request["aligned"]}
    if "gluon" in type(kernel).__module__:
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    source = ASTSource(kernel, signature=request["signature"], attrs=aligned)
    made = triton.compile(source, target=GPUTarget(*request["target"]), options=request["options"])
    m = made.metadata
    figures = {
        "name": m.name,
        "warps": m.num_warps,
        "shared": m.shared,
        "scratch": getattr(m, "global_scratch_size", 0) or 0,
        "cluster": list(getattr(m, "cluster_dims", (1, 1, 1))),
    }
    kind = next(k for k in ("cubin", "hsaco") if k in made.asm)
    if request.get("assembly"):
        figures["assembly"] = made.asm["ptx" if kind == "cubin" else "amdgcn"]
    code: bytes = made.asm[kind]
    return json.dumps(figures).encode() + b"\0" + code


def _module(text: str, folder: str) -> Any:
    """The module that a text defines; Triton reads the file again."""
    name = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    path = os.path.join(folder, f"{name}.py")
    with open(path, "w") as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
