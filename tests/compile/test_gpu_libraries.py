"""Libraries of a device: CuPy computes in our memory, on our stream, what the references mean."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.gpu import executable, libraries
from tessera.core.errors import NumericalError
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import gpu
from tessera.runtime.gpu import cupy_library
from tests.support.fakes.cupy_fake import BROKEN, LOG, fake_cupy
from tests.support.fakes.gpu_fake import fake_gpu
from tests.support.runners.tolerance import assert_close

RUNS_ON = "numpy"


@pytest.fixture
def cuda() -> Iterator[None]:
    """A device with CuPy, where an op that runs on the host is an error."""
    with fake_gpu(), fake_cupy(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        executable._WARNED.clear()
        yield


def matrices(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    if dtype.startswith("c"):
        x = x + 1j * rng.standard_normal(shape)
    return (x + max(4, shape[-1] - 8) * np.eye(*shape[-2:])).astype(dtype)


def definite(*shape: int, dtype: str = "float32") -> Any:
    x = matrices(*shape, dtype=dtype)
    return x @ np.swapaxes(x.conj(), -1, -2)


SQUARE = [(5, 5), (2, 3, 4, 4)]
LARGE = [(37, 37), (2, 2, 33, 33)]  # than what has kernels
CASES: dict[str, tuple[Any, list[tuple[int, ...]], Any]] = {
    "cholesky": (op.cholesky, LARGE, definite),
    "cholesky upper": (lambda x: op.cholesky(x, upper=True), LARGE, definite),
    "qr": (op.qr, [(5, 3), (3, 5), (2, 4, 3)], matrices),
    "qr complete": (lambda x: op.qr(x, mode="complete"), [(5, 3), (2, 4, 3)], matrices),
    "lu": (op.lu, [*LARGE, (5, 3)], matrices),
    "eigh": (op.eigh, SQUARE, definite),
    "eigvalsh": (op.eigvalsh, SQUARE, definite),
    "eig": (op.eig, SQUARE, definite),
    "eigvals": (op.eigvals, SQUARE, definite),
    "svd": (op.svd, [(5, 3), (2, 3, 5)], matrices),
    "svd thin": (lambda x: op.svd(x, full_matrices=False), [(5, 3), (2, 3, 5)], matrices),
    "svdvals": (op.svdvals, [(5, 3), (2, 3, 5)], matrices),
    "solve": (lambda x: op.solve(x, x[..., :2] + 1.0), LARGE, matrices),
    "solve a vector": (lambda x: op.solve(x, x[0]), [(37, 37)], matrices),
    "inv": (op.inv, LARGE, matrices),
    "det": (op.det, LARGE, matrices),
    "slogdet": (op.slogdet, LARGE, matrices),
    "adjugate": (op.adjugate, SQUARE, matrices),
    "pinv": (op.pinv, [(5, 3)], matrices),
    "expm": (op.expm, SQUARE, matrices),
    "dct": (lambda x: op.dct(x, type=2, norm="ortho"), [(3, 7)], matrices),
    **{
        f"triangular {lower} {transpose} {unit}": (
            lambda x, kw=(lower, transpose, unit): op.triangular_solve(x, x[..., :3], *kw),
            LARGE,
            matrices,
        )
        for lower in (True, False)
        for transpose in (True, False)
        for unit in (True, False)
    },
}


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("name", CASES)
def test_libraries_mean_what_the_references_mean(name: str, dtype: str, cuda: None) -> None:
    f, shapes, draw = CASES[name]
    for shape in shapes:
        x = draw(*shape, dtype=dtype)
        LOG.clear()
        got = ts.tree.leaves(ts.jit(f)(ts.tensor(x).to("cuda")))
        assert LOG
        assert {stream for _, stream in LOG} == {gpu().stream.handle}
        for y, want in zip(got, ts.tree.leaves(f(ts.tensor(x))), strict=True):
            assert (y.device.kind, y.shape, y.dtype) == ("cuda", want.shape, want.dtype)
            a, b = y.numpy(), want.numpy()
            assert_close(a, b, times=4) if a.dtype.kind in "fc" else np.testing.assert_array_equal(
                a, b
            )


def test_half_floats_and_nothing_at_all(cuda: None) -> None:
    x = definite(40, 40, dtype="float16") / 64
    got = ts.jit(op.cholesky)(ts.tensor(x).to("cuda"))
    assert got.dtype is ts.f16
    want = np.linalg.cholesky(x.astype(np.float32)).astype(np.float16)  # f32 inside, then rounded
    assert_close(got.numpy(), want)
    for shape in ((0, 0), (0, 3, 3)):
        assert ts.jit(op.cholesky)(ts.tensor(np.zeros(shape, np.float32)).to("cuda")).shape == shape


def test_gradients_through_factorisations(cuda: None) -> None:
    a, b = definite(34, 34), np.arange(34, dtype=np.float32)

    def f(a: Any, b: Any) -> Any:
        return op.sum(op.solve(a, b) ** 2) + op.slogdet(a)[1] + op.sum(op.cholesky(a))

    want = ts.grad(f)(ts.tensor(a), ts.tensor(b)).numpy()
    got = ts.jit(ts.grad(f))(ts.tensor(a).to("cuda"), ts.tensor(b).to("cuda"))
    assert_close(got.numpy(), want, times=16)


def test_equal_values_have_vectors_in_general_position(cuda: None) -> None:
    """As the reference does it, under differentiation."""

    def f(x: Any) -> Any:
        w, v = op.eigh(x)
        u, _, vh = op.svd(x, full_matrices=False)
        return op.sum(((v * op.exp(w)) @ v.T) * x) + op.sum((u @ vh) * x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the checks of derivatives are the host's
        for x in (definite(4, 4), np.eye(4, dtype=np.float32) * 2):
            got = ts.jit(ts.grad(f))(ts.tensor(x).to("cuda")).numpy()
            assert_close(got, ts.grad(f)(ts.tensor(x)).numpy(), times=64)


def test_errors_are_those_of_the_reference(cuda: None) -> None:
    for f, x in ((op.cholesky, -np.eye(33)), (op.inv, np.zeros((33, 33))),
                 (lambda x: op.triangular_solve(x, x), np.zeros((33, 33)))):  # fmt: skip
        given = ts.tensor(x.astype(np.float32))
        with pytest.raises(NumericalError) as want:
            f(given)
        with pytest.raises(NumericalError) as got:
            ts.jit(f)(given.to("cuda"))
        assert got.value.message == want.value.message


def test_a_library_that_is_not_there_leaves_it_to_the_host(cuda: None) -> None:
    BROKEN.add("cholesky")
    x = definite(40, 40)
    with pytest.warns(RuntimeWarning, match=r"cholesky: ImportError: .*libcusolver.* on the host"):
        got = ts.jit(op.cholesky)(ts.tensor(x).to("cuda"))
    assert_close(got.numpy(), np.linalg.cholesky(x))


def test_what_cupy_has_not_runs_on_the_host(cuda: None) -> None:
    x = matrices(3, 5)
    with pytest.warns(RuntimeWarning, match="dct: has no GPU form yet"):
        got = ts.jit(lambda x: op.dct(x, type=4))(ts.tensor(x).to("cuda"))
    assert_close(got.numpy(), op.dct(ts.tensor(x), type=4).numpy())


def test_factorisations_in_loops_use_the_memory_they_made(cuda: None) -> None:
    x = definite(36, 36)

    def f(x: Any) -> Any:
        return op.fori_loop(0, 3, lambda i, x: op.cholesky(x) + x, x)

    assert_close(ts.jit(f)(ts.tensor(x).to("cuda")).numpy(), f(ts.tensor(x)).numpy(), times=4)


def test_tessera_does_not_import_cupy() -> None:
    code = "import sys, tessera, tessera.compile.gpu.executable; assert 'cupy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_transforms_by_the_library(cuda: None) -> None:
    """Kernels of our own come first; the library serves where it is asked."""
    x = matrices(4, 6, dtype="complex64")
    for name, params in (
        ("fft", {"axes": (0, 1), "norm": "ortho"}), ("ifft", {"axes": (1,), "norm": "backward"}),
        ("irfft", {"axis": 1, "n": 10, "norm": "forward"}), ("rfft", {"axis": 0, "norm": "ortho"}),
    ):  # fmt: skip
        data = x.real.copy() if name == "rfft" else x
        f = getattr(op, name).op
        t = ts.tensor(data).to("cuda")
        (want,) = [f.numpy(data, **params)]
        out = ts.tensor(want).type
        found = libraries.library(f, [t.type], [out], params)
        assert found is not None
        (got,) = found.run([t.storage], gpu(), lambda why: pytest.fail(why))
        assert_close(got.numpy(), want)


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="there is no GPU")
@pytest.mark.skipif(cupy_library.cupy() is None, reason="there is no CuPy")
@pytest.mark.parametrize("name", CASES)
def test_libraries_on_the_device(name: str) -> None:
    """Vectors of eigenvalues and singular values may have other signs: their products have not."""
    f, shapes, draw = CASES[name]
    for shape in shapes:
        x = draw(*shape, dtype="float64")
        got = [y.numpy() for y in ts.tree.leaves(ts.jit(f)(ts.tensor(x).to("cuda")))]
        want = [y.numpy() for y in ts.tree.leaves(f(ts.tensor(x)))]
        for y, z in zip(got, want, strict=True):
            if name.startswith("eigvals") or (name == "eig" and y.ndim < x.ndim):
                y, z = np.sort_complex(y), np.sort_complex(z)
            vectors = name.startswith(("eig", "svd")) and y.ndim == x.ndim
            np.testing.assert_allclose(
                np.abs(y) if vectors else y, np.abs(z) if vectors else z, atol=1e-8
            )
