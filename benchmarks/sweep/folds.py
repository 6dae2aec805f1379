"""Reductions, norms, softmaxes and losses, with gradients, of rows of any width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tessera as ts
from sweep.case import Case, Operand, size_name, slopes, torch_slopes
from tessera import op

FOLDS: dict[str, tuple[Any, Any]] = {
    "sum": (op.sum, lambda t, x, a: x.sum(a)),
    "mean": (op.mean, lambda t, x, a: x.mean(a)),
    "max": (op.max, lambda t, x, a: x.amax(a)),
    "var": (op.var, lambda t, x, a: t.var(x, a, correction=0)),
    "logsumexp": (op.logsumexp, lambda t, x, a: t.logsumexp(x, a)),
    "norm": (lambda x, a: op.norm(x, axis=a), lambda t, x, a: t.linalg.vector_norm(x, dim=a)),
}
SHAPES: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((1 << 26,), 0), ((8192, 8192), 1), ((8192, 8192), 0), ((16381, 1021), 1), ((1021, 16381), 0),
    ((64, 127, 1025), 1), ((1 << 20, 17), 1), ((17, 1 << 20), 1), ((17, 1 << 20), 0),
)  # fmt: skip
WIDTHS = ((32768, 17), (8192, 768), (4096, 4096), (1021, 12289), (4096, 50304), (64, 262147))


def cases() -> Iterator[Case]:
    """All of the family."""
    for name, (f, g) in FOLDS.items():
        for i, (shape, axis) in enumerate(SHAPES):
            if name in ("mean", "norm", "logsumexp") and i % 2:
                continue
            x = Operand(shape, "bf16" if i % 3 == 2 and name in ("sum", "max", "mean") else "f32")
            yield Case("fold", f"{name} axis {axis} {size_name(x)}", lambda x, f=f, a=axis: f(x, a),
                       lambda t, x, g=g, a=axis: g(t, x, a), (x,))  # fmt: skip
    yield from _others()
    yield from _rows()
    yield from _images()
    yield from _losses()


def _others() -> Iterator[Case]:
    x, b = Operand((4096, 4097)), Operand((4096, 4097), "bool", "bool")
    whole, i = Operand((1 << 26,)), Operand((4096, 4097), "i64", "index", 1000)
    p = Operand((4096, 4097), "f32", "positive")
    more: list[tuple[str, Any, Any, Operand]] = [
        ("var of everything", op.var, lambda t, x: t.var(x, correction=0), whole),
        ("max of everything", op.max, lambda t, x: x.amax(), whole),
        ("argmax rows", lambda x: op.argmax(x, 1), lambda t, x: x.argmax(1), x),
        ("argmax columns", lambda x: op.argmax(x, 0), lambda t, x: x.argmax(0), x),
        ("argmin of everything", op.argmin, lambda t, x: x.argmin(), whole),
        ("std rows", lambda x: op.std(x, 1), lambda t, x: t.std(x, 1, correction=0), x),
        ("any rows", lambda x: op.any(x, 1), lambda t, x: x.any(1), b),
        ("all columns", lambda x: op.all(x, 0), lambda t, x: x.all(0), b),
        ("count", op.count_nonzero, lambda t, x: t.count_nonzero(x), b),
        ("sum rows", lambda x: op.sum(x, 1), lambda t, x: x.sum(1), i),
        ("prod rows", lambda x: op.prod(x, 1), lambda t, x: x.prod(1), p),
        ("mean of exp", lambda x: op.mean(op.exp(x)), lambda t, x: x.exp().mean(), x),
        ("sum of the upper triangle", lambda x: op.sum(op.triu(x)), lambda t, x: x.triu().sum(), x),
        ("dot", lambda x: op.sum(x * x), lambda t, x: t.dot(x, x), whole),
    ]  # fmt: skip
    for name, f, g, o in more:
        tolerance = 2e-2 if name == "prod rows" else 0.0
        yield Case("fold", f"{name} {size_name(o)}", f, g, (o,),
            compiled=name in ("mean of exp", "var of everything"),
                   tolerance=tolerance)  # fmt: skip


ROWS: dict[str, tuple[Any, Any]] = {
    "softmax": (op.softmax, lambda t, x: t.softmax(x, -1)),
    "log_softmax": (op.log_softmax, lambda t, x: t.log_softmax(x, -1)),
    "layernorm": (op.layernorm, lambda t, x: t.nn.functional.layer_norm(x, x.shape[-1:])),
    "rmsnorm": (op.rmsnorm, lambda t, x: t.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)),
}


def _rows() -> Iterator[Case]:
    for name, (f, g) in ROWS.items():
        for i, shape in enumerate(WIDTHS):
            for dtype in ("bf16", "f32") if name == "softmax" else ("bf16",) if i % 2 else ("f32",):
                x = Operand(shape, dtype)
                yield Case("rows", f"{name} {size_name(x)}", f, g, (x,), compiled=i in (2, 4))
    for name, (f, g) in ROWS.items():
        for shape in (WIDTHS[1], WIDTHS[3], WIDTHS[4])[: 3 if name == "softmax" else 2]:
            x = Operand(shape, "bf16")
            yield Case("rows", f"{name} gradient {size_name(x)}", slopes(f), torch_slopes(g), (x, x),
                       compiled=True)  # fmt: skip
    x, w = Operand((8192, 4096), "bf16"), Operand((4096,), "bf16")
    norm: Callable[..., Any] = lambda t, x, w, b: t.nn.functional.layer_norm(x, x.shape[-1:], w, b)  # noqa: E731
    yield Case("rows", f"layernorm gradient with weights {size_name(x)}", slopes(op.layernorm, 3),
               torch_slopes(norm, 3), (x, w, w, x), compiled=True)  # fmt: skip
    for axis, shape in ((0, (4096, 4099)), (1, (64, 1000, 129))):
        x = Operand(shape)
        yield Case("rows", f"softmax axis {axis} {size_name(x)}", lambda x, a=axis: op.softmax(x, a),
                   lambda t, x, a=axis: t.softmax(x, a), (x,))  # fmt: skip
    x = Operand((8192, 4096), "bf16")
    yield Case("rows", f"residual and rmsnorm {size_name(x)}", lambda x, y, g: op.rmsnorm(x + y, g),
               lambda t, x, y, g: t.nn.functional.rms_norm(x + y, g.shape, g, 1e-6),
               (x, x, Operand((4096,), "bf16")), compiled=True)  # fmt: skip


def _images() -> Iterator[Case]:
    for shape in ((64, 64, 56, 56), (16, 96, 127, 129)):
        for dtype in ("bf16", "f32"):
            x, w = Operand(shape, dtype), Operand(shape[1:2], dtype)
            v = Operand(shape[1:2], dtype, "positive")
            yield Case("norms", f"group norm {size_name(x)}",
                       lambda x, w, b: op.groupnorm(x, 32, w, b),
                       lambda t, x, w, b: t.nn.functional.group_norm(x, 32, w, b), (x, w, w),
                       compiled=dtype == "bf16")  # fmt: skip
            yield Case("norms", f"batch norm {size_name(x)}", op.batchnorm,
                       lambda t, x, m, v, w, b: t.nn.functional.batch_norm(x, m, v, w, b),
                       (x, w, v, w, w))  # fmt: skip
        x, w = Operand(shape), Operand(shape[1:2])
        yield Case("norms", f"instance norm {size_name(x)}", op.instancenorm,
                   lambda t, x: t.nn.functional.instance_norm(x), (x,))  # fmt: skip
        yield Case("norms", f"batch norm of a batch {size_name(x)}",
                   lambda x, w, b: op.batchnorm_train(x, w, b)[0],
                   lambda t, x, w, b: t.nn.functional.batch_norm(x, None, None, w, b, True),
                   (x, w, w))  # fmt: skip
        group: Callable[..., Any] = lambda x, w, b: op.groupnorm(x, 32, w, b)  # noqa: E731
        yield Case("norms", f"group norm gradient {size_name(x)}", slopes(group, 3),
                   torch_slopes(lambda t, x, w, b: t.nn.functional.group_norm(x, 32, w, b), 3),
                   (x, w, w, x))  # fmt: skip


def _losses() -> Iterator[Case]:
    for rows, classes, dtype in ((4096, 50304, "bf16"), (8191, 32003, "f32"), (65536, 10, "f32")):
        x, y = Operand((rows, classes), dtype), Operand((rows,), "i64", "index", classes)
        cross: Callable[..., Any] = lambda t, x, y: t.nn.functional.cross_entropy(x, y)  # noqa: E731
        yield Case("loss", f"cross entropy {size_name(x)}", op.cross_entropy, cross, (x, y),
                   compiled=classes > 40000)  # fmt: skip

        def gradient(t: Any, x: Any, y: Any, cross: Any = cross) -> Any:
            x = x.detach().requires_grad_()
            return t.autograd.grad(cross(t, x, y), [x])

        yield Case("loss", f"cross entropy gradient {size_name(x)}",
                   lambda x, y: ts.grad(lambda x: op.cross_entropy(x, y))(x), gradient, (x, y),
                   compiled=True)  # fmt: skip
    x, p = Operand((4093, 4096)), Operand((4093, 4096), "f32", "probability")
    f = "mse", "l1", "huber", "bce", "kl"
    more = (
        (op.mse, lambda t, x, y: t.nn.functional.mse_loss(x, y)),
        (op.l1_loss, lambda t, x, y: t.nn.functional.l1_loss(x, y)),
        (op.huber, lambda t, x, y: t.nn.functional.huber_loss(x, y)),
        (op.binary_cross_entropy, lambda t, x, y: t.nn.functional.binary_cross_entropy_with_logits(x, y)),
        (op.kl_div, lambda t, x, y: t.nn.functional.kl_div(x, y, reduction="mean")),
    )  # fmt: skip
    for name, (ours, theirs) in zip(f, more, strict=True):
        yield Case("loss", f"{name} {size_name(x)}", ours, theirs, (x, p), compiled=name == "bce")
