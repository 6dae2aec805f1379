"""Rules for linear algebra, Fourier transforms, control flow, and functions that hold functions."""

from __future__ import annotations

from tests.fuzz.draw import Drawer, Unfit
from tests.fuzz.rules import options, rule

_BELOW = 9  # sizes of matrices that are factorised


def wide(d: Drawer, x: str) -> str:
    """x where LAPACK takes its dtype."""
    if str(d.dtype(x)) not in ("f32", "f64", "c64", "c128"):
        raise Unfit
    return x


def square(d: Drawer, kinds: str = "ffc") -> str:
    """A matrix, or a batch of them, as many rows as columns."""
    return (
        wide(d, d.take(kinds, low=2, high=3, fits=lambda s: s[-1] == s[-2] < _BELOW, fresh=0.4))
        if _has_square(d) or d.often(0.2)
        else wide(d, new_square(d))
    )


def _has_square(d: Drawer) -> bool:
    return any(s[-1] == s[-2] < _BELOW for s in d.shapes("fc") if len(s) > 1)


def new_square(d: Drawer) -> str:
    n = d.pick((1, 2, 3, 4, 5))
    return d.new(d.pick("fffc"), (*d.pick(((), (), (2,))), n, n))


def regular(d: Drawer) -> str:
    """A matrix far from singular."""
    x = square(d)
    n = d.shape_of(x)[-1]
    return f"({x} * 0.25 + {d.pick((2.0, 3.0))} * np.eye({n}, dtype=np.{_numpy(d, x)}))"


def positive(d: Drawer) -> str:
    """A positive definite matrix."""
    x = square(d)
    n = d.shape_of(x)[-1]
    return (
        f"(op.conj(op.matrix_transpose({x})) @ {x} * 0.25 + np.eye({n}, dtype=np.{_numpy(d, x)}))"
    )


def symmetric(d: Drawer) -> str:
    """A Hermitian matrix whose eigenvalues lie apart."""
    x = square(d)
    n = d.shape_of(x)[-1]
    spread = f"np.diag(np.arange({n}) * 4.0).astype(np.{_numpy(d, x)})"
    return f"(({x} + op.conj(op.matrix_transpose({x}))) * 0.25 + {spread})"


def _numpy(d: Drawer, x: str) -> str:
    return {"f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128"}[
        str(d.dtype(x))
    ]


@rule("inv", "det", "slogdet", "lu", "adjugate", "matrix_power", "eigvals", "eig", "matrix_rank")
def factored(d: Drawer, name: str) -> str:
    m = regular(d)
    if name == "matrix_power":
        return f"op.matrix_power({m}, {d.int(-1, 3)})"
    if name in ("eig", "eigvals"):  # in no order: what does not depend on it
        return f"op.sum(op.{name}({m}){'[0]' if name == 'eig' else ''}, -1)"
    return f"op.{name}({m})"


@rule("cholesky", "logm", "sqrtm", "signm")
def definite(d: Drawer, name: str) -> str:
    return f"op.{name}({positive(d)}{options(d, 0.3, upper=(True,)) if name == 'cholesky' else ''})"


@rule("matrix_function", "expm")
def matrix_function(d: Drawer, name: str) -> str:
    if name == "expm":
        return f"op.expm({square(d)} * 0.25)"
    return f"op.matrix_function({positive(d)}, '{d.pick(('sqrt', 'log', 'sign'))}')"


@rule("expm_frechet", "matrix_function_frechet")
def frechet(d: Drawer, name: str) -> str:
    x = square(d)
    if name == "expm_frechet":
        return f"op.expm_frechet({x} * 0.25, {x})"
    n = d.shape_of(x)[-1]
    base = (
        f"({x} @ op.conj(op.matrix_transpose({x})) * 0.25 + np.eye({n}, dtype=np.{_numpy(d, x)}))"
    )
    return f"op.matrix_function_frechet({base}, {x}, '{d.pick(('sqrt', 'log'))}')"


@rule("eigvalsh", "eigh")
def hermitian(d: Drawer, name: str) -> str:
    m = symmetric(d)
    if name == "eigvalsh":
        return f"op.eigvalsh({m})"
    return f"op.abs(op.eigh({m})[1])" if d.often(0.5) else f"op.eigh({m})[0]"


@rule("svdvals", "svd", "pinv", "matrix_norm", "qr")
def orthogonal(d: Drawer, name: str) -> str:
    x = wide(d, d.take("ffc", low=2, high=3, fits=lambda s: max(s[-2:]) < _BELOW))
    if name == "svd":
        return f"op.svd({x}, full_matrices=False)[1]"
    if name == "qr":
        return f"op.abs(op.qr({x})[{d.int(0, 1)}])"
    if name == "matrix_norm":
        return f"op.matrix_norm({x}, {d.pick((repr('fro'), '1', repr('nuc'), '2'))})"
    return f"op.{name}({x})"


@rule("solve", "triangular_solve")
def solve(d: Drawer, name: str) -> str:
    x = square(d)
    *batch, n, _ = d.shape_of(x)
    m = f"({x} * 0.25 + 2.0 * np.eye({n}, dtype=np.{_numpy(d, x)}))"
    b = d.new(d.kind(x), (*batch, n, d.int(1, 3)), dtype=d.spelled_dtype(x))
    if name == "solve":
        return f"op.solve({m}, {b})"
    return f"op.triangular_solve({m}, {b}{options(d, lower=(True, False), transpose=(True, False), unit_diagonal=(True, False))})"  # noqa: E501


@rule("lstsq")
def lstsq(d: Drawer, name: str) -> str:
    x = wide(d, d.take("f", low=2, high=2, fits=lambda s: max(s) < _BELOW))
    return f"op.lstsq({x}, {d.new('f', (d.shape_of(x)[0], 2), dtype=d.spelled_dtype(x))}).solution"


@rule("tridiagonal_solve")
def tridiagonal(d: Drawer, name: str) -> str:
    n, t = d.int(1, 6), d.pick(d.floats)
    low, up = d.new("f", (n,), dtype=t), d.new("f", (n,), dtype=t)
    main = d.new("f", (n,), 5.0, 6.0, dtype=t)
    return f"op.tridiagonal_solve({wide(d, low)}, {main}, {up}, {d.new('f', (n, 2), dtype=t)})"


# Fourier transforms

_NORM = ("ortho", "forward", "backward")


@rule("fft", "ifft", "hfft", "irfft", "rfft", "ihfft")
def transform(d: Drawer, name: str) -> str:
    x = wide(
        d, d.take("f" if name in ("rfft", "ihfft") else "cf", low=1, fits=lambda s: 0 not in s)
    )
    if name not in ("rfft", "ihfft") and d.kind(x) == "f":
        x = f"op.cast({x}, {'c128' if str(d.dtype(x)) == 'f64' else 'c64'})"
        return f"op.{name}({x}{options(d, n=(1, 2, 3, 5, 8, 12), norm=_NORM)})"
    return f"op.{name}({x}{options(d, n=(1, 2, 3, 5, 8, 12), norm=_NORM)}, axis={d.axis(x)})"


@rule("fftn", "ifftn", "fft2", "ifft2", "rfftn", "irfftn")
def transforms(d: Drawer, name: str) -> str:
    x = wide(d, d.take("f" if name == "rfftn" else "cf", low=2, fits=lambda s: 0 not in s))
    if name != "rfftn" and d.kind(x) == "f":
        x = f"op.cast({x}, {'c128' if str(d.dtype(x)) == 'f64' else 'c64'})"
    return f"op.{name}({x}{options(d, 0.4, norm=_NORM)})"


@rule("dct", "idct")
def cosine_transform(d: Drawer, name: str) -> str:
    x = wide(d, d.take("f", low=1, fits=lambda s: 0 not in s))
    return f"op.{name}({x}{options(d, type=(1, 2, 3, 4), norm=('ortho', 'forward'))}, axis={d.axis(x)})"


@rule("fftshift", "ifftshift")
def shift(d: Drawer, name: str) -> str:
    x = d.take("fc")
    return f"op.{name}({x}, {d.axes(x)})"


@rule("fftfreq", "rfftfreq", "hann_window")
def ticks(d: Drawer, name: str) -> str:
    t = "f64" if d.floats[0] == "f64" else "f32"
    more = (
        options(d, periodic=(True, False))
        if name == "hann_window"
        else f", d={d.pick((0.5, 1.0, 2.0))}"
    )
    return f"op.{name}({d.int(1, 9)}{more}, dtype={t})"


@rule("stft")
def stft(d: Drawer, name: str) -> str:
    x = wide(d, d.take("f", low=1, high=2, fits=lambda s: s[-1] >= 5 and 0 not in s))
    return f"op.stft({x}, {d.pick((2, 4))}{options(d, hop=(1, 2), center=(True, False))})"


# Functions of functions


def inner(d: Drawer, x: str, name: str = "t", other: str | None = None) -> str:
    """An expression of a name that keeps shape and dtype."""
    kind = d.kind(x)
    if kind != "f":
        return {"b": f"~{name}", "c": f"{name} * (0.5 + 0.5j)"}.get(kind, f"{name} + 1")
    forms = [
        f"op.sin({name})", f"{name} * 0.5 + 0.25", f"op.tanh({name}) - {name}", f"op.relu({name}) * {name}",
        f"op.where({name} > 0, {name}, {name} * 0.25)", f"{name} - op.mean({name})", f"op.flip({name}) * 0.5",
        f"op.sigmoid({name})", f"op.abs({name})",
    ]  # fmt: skip
    if d.rank(x):
        forms += [
            f"op.softmax({name}, -1)",
            f"op.roll({name}, 1, 0)",
            f"op.cumsum({name}, 0) * 0.25",
            f"op.sort({name}, -1)",
        ]
    if other is not None:
        forms += [f"{name} * 0.5 + {other}", f"op.maximum({name}, {other})"] * 3
    return d.pick(forms)  # type: ignore[no-any-return]


def scalar_condition(d: Drawer) -> str:
    have = [n for n, v in d.values.items() if v.dtype.kind == "b" and v.shape == ()]
    if have and d.often(0.5):
        return d.pick(have)  # type: ignore[no-any-return]
    x = d.take("f")
    return f"op.sum({x}) > 0" if d.often(0.8) else d.new("b", ())


@rule("cond")
def cond(d: Drawer, name: str) -> str:
    x = d.take("ffffic")
    p = scalar_condition(d)
    captured = d.same_shape(x, d.kind(x)) if d.often(0.4) and d.kind(x) == "f" else None
    captured = captured if captured and d.dtype(captured) is d.dtype(x) else None
    return f"op.cond({p}, lambda t: {inner(d, x, other=captured)}, lambda t: {inner(d, x)}, {x})"


@rule("while_loop")
def while_loop(d: Drawer, name: str) -> str:
    x = d.take("f")
    body = f"lambda c: (c[0] + 1, {inner(d, x, 'c[1]')})"
    return f"op.while_loop(lambda c: c[0] < {d.int(0, 4)}, {body}, (np.int64(0), {x}){options(d, 0.5, bound=(4, 5))})[1]"  # noqa: E501


@rule("fori_loop")
def fori_loop(d: Drawer, name: str) -> str:
    x = d.take("f")
    captured = d.same_shape(x, "f") if d.often(0.3) else None
    captured = captured if captured and d.dtype(captured) is d.dtype(x) else None
    return f"op.fori_loop({d.int(0, 1)}, {d.int(1, 4)}, lambda i, t: {inner(d, x, other=captured)}, {x})"


@rule("scan")
def scan(d: Drawer, name: str) -> str:
    xs = d.take("f", low=1)
    carry = d.new("f", d.shape_of(xs)[1:], dtype=d.spelled_dtype(xs))
    step = d.pick(
        (
            "(c * 0.5 + t, c * t)",
            "(op.tanh(c + t), op.sin(c))",
            "(op.maximum(c, t), c - t)",
            "(t, c)",
        )
    )
    return f"op.scan(lambda c, t: {step}, {carry}, {xs}{options(d, 0.4, reverse=(True, False))})"


# What the catalogue holds under a decorator

OTHERS = ("nested", "checkpointed", "own_rule", "own_kernel", "inner_grad", "inner_vmap")


@rule(*OTHERS)
def others(d: Drawer, name: str) -> str:
    """Calls of jitted functions, checkpoints, custom rules, kernels, derivatives and batches inside a
    program.
    """
    x = d.take(
        "f",
        low=1 if name in ("own_kernel", "inner_vmap") else 0,
        high=1 if name == "own_kernel" else 4,
    )
    if name == "own_kernel":
        if str(d.dtype(x)) not in ("f32", "f64"):
            raise Unfit
        return f"parts.squared({x})"
    if name == "own_rule":
        return f"parts.{d.pick(('sine', 'cube'))}({x})"
    if name == "inner_grad":
        return f"ts.grad(lambda t: op.sum({inner(d, x)}))({x})"
    if name == "inner_vmap":
        return f"ts.vmap(lambda t: {inner(d, x).replace(', 0)', ', -1)')}, in_axes={d.int(0, d.rank(x) - 1)})({x})"  # noqa: E501
    wrapper = {"nested": "ts.jit", "checkpointed": "ts.checkpoint"}[name]
    return f"{wrapper}(lambda t: {inner(d, x)})({x})"
