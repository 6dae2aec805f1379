"""Record calls of ATen ops with PyTorch's answers, for tests that have no PyTorch.

    python tools/record_torch.py        (in the environment of the oracles; writes
    tests/support/data/torch_rules.json.gz)
    python tools/record_torch.py --chosen       only the calls of torch_calls.py

PyTorch's own samples of its operators run, forward and backward; of the ATen ops that reach the dispatcher
and have a rule, a few calls of each form are kept, with small tensors, and once more with special values
among them.  Calls on which a rule does not agree are printed, and left out.
"""

from __future__ import annotations

import contextlib
import sys
import types
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# A package that PyTorch's own tests want at import; the samples do not need it.
sys.modules.setdefault("expecttest", types.ModuleType("expecttest"))
sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
sys.path.insert(0, str(Path(__file__).parent.parent))

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

import tessera as ts  # noqa: E402
from tessera.core.flags import override  # noqa: E402
from tessera.interop.torch.backend import table  # noqa: E402
from tessera.interop.torch.exchange import array_of, dtype_of  # noqa: E402
from tessera.interop.torch.rule import RULES, AtenCall  # noqa: E402
from tests.support.runners.recorded_calls import (  # noqa: E402
    difference,
    load,
    map_arrays,
    save,
    written,
)
from tools.torch_calls import chosen_calls  # noqa: E402

EACH = 7  # calls of an op
FORMS = 2  # of one form
SIZE = 150  # elements of all tensors
SPECIAL = [
    float("nan"),
    float("inf"),
    -float("inf"),
    -0.0,
    0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    2.0,
    1e30,
    -3.5,
]
RTOL, ATOL = 2e-5, 2e-6


def ours(x: Any) -> Any:
    """Arguments and results as rules see them, with arrays for tensors."""
    if isinstance(x, torch.Tensor):
        return np.array(array_of(x.detach().resolve_conj().resolve_neg().contiguous()))
    if isinstance(x, torch.dtype):
        return dtype_of(x)
    if isinstance(x, list | tuple):
        return [ours(v) for v in x]
    if isinstance(x, dict):
        return {k: ours(v) for k, v in x.items()}
    if isinstance(x, torch.memory_format | torch.layout | torch.device):
        return None  # rules do not ask where tensors lie
    return x


def form(x: Any) -> Any:
    """What calls that are alike have in common."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind, x.ndim, 0 in x.shape
    if isinstance(x, list | tuple):
        return tuple(map(form, x))
    if isinstance(x, dict):
        return tuple((k, form(v)) for k, v in sorted(x.items()))
    return str(x)


def elements(x: Any) -> int:
    total = 0

    def add(a: Any) -> Any:
        nonlocal total
        total += a.size
        return a

    map_arrays(x, add)
    return total


class Recorder(TorchDispatchMode):
    """Keeps calls of ATen ops that have a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []
        self.forms: Counter[Any] = Counter()
        self.differ: Counter[str] = Counter()
        self.quiet = False
        self.size = SIZE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in table() and str(func) not in RULES:
            with self:
                return table()[func](*args, **kwargs)
        name = str(func)
        if name not in RULES or func._schema.is_mutable or self.quiet or "empty" in name:
            return func(*args, **kwargs)
        try:
            given = ours(list(args)), ours(kwargs)
        except Exception:
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        key = name, form(given)
        if elements(given) <= self.size and self.forms[key] < FORMS and self.forms[name] < EACH:
            if self.keep(func, given, out):
                self.forms[key] += 1
                self.forms[name] += 1
                self.special(func, args, kwargs)
        return out

    def special(self, func: Any, args: Any, kwargs: Any) -> None:
        """The same call with special values in all float tensors."""
        changed = False

        def put(x: Any) -> Any:
            nonlocal changed
            if isinstance(x, list | tuple):
                return type(x)(map(put, x))
            if not isinstance(x, torch.Tensor) or x.dtype is not torch.float32 or not x.numel():
                return x
            y = x.detach().clone().contiguous()
            n = min(len(SPECIAL), y.numel())
            first = 5 * changed  # not the same beside each other
            values = (SPECIAL[first:] + SPECIAL[:first])[:n]
            changed = True
            y.view(-1)[:n] = torch.tensor(values)
            return y

        try:
            args = put(tuple(args))
            if changed:
                self.keep(func, (ours(list(args)), ours(kwargs)), func(*args, **kwargs), True)
        except Exception:
            return

    def keep(self, func: Any, given: Any, out: Any, special: bool = False) -> bool:
        name = str(func)
        several = isinstance(out, list | tuple)
        found = list(out) if several else [out]
        tensors = [x if isinstance(x, torch.Tensor) else None for x in found]
        try:
            want = [None if x is None else ours(x) for x in tensors]
            row = {
                "op": name, "args": given[0], "kwargs": given[1],
                "dtypes": [None if x is None else dtype_of(x.dtype) for x in tensors],
                "want": want if several else want[0],
            }  # fmt: skip
            written(row)
        except Exception:
            return False
        if elements(want) > self.size:
            return False
        self.quiet = True
        try:
            told = checked(row)
        finally:
            self.quiet = False
        if told:
            self.differ[f"{'special ' if special else ''}{name}: {told[:230]}"] += 1
            return False
        self.kept.append(row)
        return True


def checked(row: Any) -> str:
    """How a rule differs from a call."""
    want = row["want"] if isinstance(row["want"], list) else [row["want"]]
    shapes = tuple(None if w is None else w.shape for w in want)
    call = AtenCall(row["op"], tuple(row["dtypes"]), shapes)
    args, kwargs = map_arrays((row["args"], row["kwargs"]), ts.asarray)
    try:
        got = RULES[row["op"]](call, *args, **kwargs)
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return difference(row["want"], got, RTOL, ATOL)


def run(info: Any, dtype: torch.dtype, most: int) -> None:
    """The first samples of an operator, with the backward pass where there is one."""
    grad = dtype is torch.float32 and info.supports_autograd
    torch.manual_seed(0)
    for _, s in zip(
        range(most), info.sample_inputs("cpu", dtype, requires_grad=grad), strict=False
    ):
        out = info.op(s.input, *s.args, **s.kwargs)
        flat = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        flat = [x for x in flat if x.requires_grad and x.dtype is torch.float32]
        if flat:
            torch.autograd.backward(flat, [torch.randn_like(x) for x in flat])


def plain_calls(name: str) -> None:
    """Call an ATen op on small tensors and numbers, as far as it takes them."""
    space, base, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, space), base), overload)
    torch.manual_seed(0)
    x, y, n, m = (
        torch.randn(3, 4),
        torch.rand(3, 4),
        torch.arange(-4, 8).reshape(3, 4),
        torch.arange(1, 5),
    )
    z, half, image = torch.complex(x, y), x.half(), torch.randn(1, 2, 4, 5)
    for args in (
        (x,), (y,), (n,), (z,), (half,), (x > 0,), (image,), (x, y), (n, m), (m, n), (x, n),
        (x > 0, y > 0.5), (x, 2), (n, 3),
        (2, m), (1.5, y), (n, 2.5), (x, 0), (x, 1), (x, [0]), (x, [1, 0]), (n, [0, 1]), (image, [2, 3]),
        (x, y, y), (x, torch.float64), (n, torch.float32), (5,), (1, 7), (1, 9, 3), (0.0, 1.0, 5),
        ([2, 3],), ([2, 3], 1.5),
        (x, 1, 1), (x, 0, 1, 3), (x, 2, 1), (y, 2, 0, True), (image, [1, 1, 1, 1]), (image, [2, 1, 0, 1]),
        (x.T @ x, x.T), (image, image, image),
        (image, [2, 2]), (image, [2, 2], [1, 1], [1, 1], True), (image[None], [2, 2, 2]), (x, True),
        (x, 0, True), (x, [1], True),
        (image, [6, 7], None), (image, [6, 7], False, None), (image, None, True, [2.0, 1.5]),
        (image, None, [2.0, 1.5]), (image[0], [9], None),
        (image[0], [9], False, None), (image[None], [3, 6, 7], None), (image[None], [3, 6, 7], True, None),
        (x, y, x, y, y, True, 0.1, 1e-5),
    ):  # fmt: skip
        try:
            op(*args)
        except Exception:
            continue


def record_chosen(recorder: Recorder) -> None:
    """Call the chosen ones, as many as there are of a form."""
    for name, args in chosen_calls():
        space, base, overload = name.split(".")
        packet = getattr(getattr(torch.ops, space), base)
        if overload not in packet.overloads() or name not in RULES:
            print("has no such overload, or no rule:", name)
            continue
        kwargs = args[-1] if isinstance(args[-1], dict) else {}
        args = args[:-1] if kwargs else args
        func = getattr(packet, overload)
        try:
            made = func(*args, **kwargs)
        except Exception as e:
            print("PyTorch refuses", name, str(e).partition("\n")[0][:120])
            continue
        if not recorder.keep(func, (ours(list(args)), ours(kwargs)), made):
            print("not kept:", name, [getattr(a, "shape", a) for a in args], kwargs)


def add_chosen() -> None:
    """Replace the chosen calls of the record, and leave all others."""
    recorder = Recorder()
    recorder.size, names = 6 * SIZE, {name for name, _ in chosen_calls()}
    with warnings.catch_warnings(), override(target="numpy"):
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        record_chosen(recorder)
    before = [row for row in load("torch_rules.json.gz") if not row.get("chosen")]
    for text in sorted(recorder.differ):
        print("differs", text)
    print(
        f"{len(recorder.kept)} calls of {len({r['op'] for r in recorder.kept})} of {len(names)} ops"
    )
    rows = [{**row, "chosen": True} for row in recorder.kept]
    save("torch_rules.json.gz", {"torch": torch.__version__}, [*before, *rows])


def main() -> None:
    if sys.argv[1:] == ["--chosen"]:
        add_chosen()
        return
    recorder = Recorder()
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    failed = 0
    with warnings.catch_warnings(), override(target="numpy"):
        warnings.simplefilter("ignore")
        for info in op_db:
            for dtype in (torch.float32, torch.int64, torch.bool):
                if "empty" in info.name or dtype not in info.supported_dtypes("cpu"):
                    continue
                try:
                    with recorder:
                        run(info, dtype, most)
                except Exception:
                    failed += 1
        recorder.size = 6 * SIZE
        for name in sorted(set(RULES) - {row["op"] for row in recorder.kept}):
            with contextlib.suppress(Exception), recorder:
                plain_calls(name)
    for text in sorted(recorder.differ):
        print("differs", text)
    have = {row["op"] for row in recorder.kept}
    print("no call of:", *sorted(set(RULES) - have))
    print(
        f"{len(recorder.kept)} calls of {len(have)} of {len(RULES)} rules; {failed} samples failed"
    )
    save("torch_rules.json.gz", {"torch": torch.__version__}, recorder.kept)
    add_chosen()


if __name__ == "__main__":
    main()
