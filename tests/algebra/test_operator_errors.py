"""What operators refuse, and the words they do it with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError
from tessera.core.flags import override

A = op.dense(np.ones((2, 3)))
S = op.dense(np.ones((3, 3)))
D = op.diag(np.array([1.0, 0.0, 2.0]))
n = np.array([1.0, np.nan, 2.0])

ERRORS: dict[str, tuple[str, str]] = {
    "A @ np.ones(2)": (
        "ShapeError",
        "apply: dense f64[2,3] takes vectors of 3, but axis 0 of f64[2] is 2; its adjoint A.H fits",
    ),
    "A @ np.ones((3,2)).T": (
        "ShapeError",
        "apply: dense f64[2,3] takes vectors of 3, but axis 0 of f64[2,3] is 2; its adjoint A.H fits",
    ),
    "A @ 2.0": (
        "ShapeError",
        "apply: got the scalar f64[] for dense f64[2,3]; scale an operator with 2 * A",
    ),
    "A @ A": (
        "ShapeError",
        "compose: operand 0 dense f64[2,3] takes vectors of 3 but operand 1 dense f64[2,3] gives vectors of 2",  # noqa: E501
    ),
    "A + S": (
        "ShapeError",
        "plus: operand 0 is dense f64[2,3] but operand 1 is dense f64[3,3]; operators that are added have "
        "one shape",
    ),
    "A * S": (
        "OperandError",
        "mul: got two operators; compose them with A @ B",
    ),
    "A + 1": (
        "OperandError",
        "plus: got the number 1 beside dense f64[2,3]; add a multiple of the identity: A + 2 * op.eye(n)",
    ),
    "A ** 2": (
        "ShapeError",
        "power: dense f64[2,3] is not square: its sizes are 2 and 3",
    ),
    "S ** 0.5": (
        "OperandError",
        "power: the power of dense f64[3,3] is 0.5, expected a whole number; for a fraction use "
        "op.function(A, f)",
    ),
    "A.solve(np.ones(2))": (
        "ShapeError",
        "solve: dense f64[2,3] is not square: its sizes are 2 and 3; the solution of least squares is "
        "op.pseudoinverse(A) @ b",
    ),
    "S.solve(np.ones(3))": (
        "NumericalError",
        "solve: dense f64[3,3] is singular; use op.pseudoinverse(A) @ b",
    ),
    "S.solve(np.ones(4))": (
        "ShapeError",
        "solve: dense f64[3,3] takes vectors of 3, but axis 0 of f64[4] is 4",
    ),
    "D.solve(np.ones(3))": (
        "NumericalError",
        "solve: diag f64[3,3] is singular: element 1 of its diagonal is 0; use pseudoinverse",
    ),
    "D.inverse()": (
        "NumericalError",
        "inverse: diag f64[3,3] is singular: element 1 of its diagonal is 0; use pseudoinverse",
    ),
    "op.zero(3).solve(np.ones(3))": (
        "NumericalError",
        "solve: zero f32[3,3] is singular: its rank is at most 0; use op.pseudoinverse(A)",
    ),
    "op.inverse(op.zero(3))": (
        "NumericalError",
        "inverse: zero f32[3,3] is singular: its rank is at most 0; use op.pseudoinverse(A)",
    ),
    "(0 * S).solve(np.ones(3))": (
        "NumericalError",
        "solve: scale(dense f64[3,3]) f64[3,3] is singular: its rank is at most 0; use op.pseudoinverse(A)",
    ),
    "op.circulant(np.ones(4)).solve(np.ones(4))": (
        "NumericalError",
        "solve: circulant f64[4,4] is singular: an eigenvalue is 0; use pseudoinverse",
    ),
    "op.diag(n).solve(np.ones(3))": (
        "NumericalError",
        "solve: tensor 0 of diag f64[3,3] is f64[3] and holds numbers that are not finite",
    ),
    "op.triangular(np.diag([1.,0.])).solve(np.ones(2))": (
        "NumericalError",
        "solve: triangular f64[2,2] is singular: element 1 of its diagonal is 0; use pseudoinverse",
    ),
    "op.tridiagonal([1.],[1.,1.],[1.]).solve(np.ones(2))": (
        "NumericalError",
        "solve: tridiagonal f32[2,2] is singular; use op.pseudoinverse(A) @ b",
    ),
    "op.trace(A)": (
        "ShapeError",
        "trace: dense f64[2,3] is not square: its sizes are 2 and 3",
    ),
    "op.logdet(A)": (
        "ShapeError",
        "logdet: dense f64[2,3] is not square: its sizes are 2 and 3",
    ),
    "op.expm(A)": (
        "ShapeError",
        "expm: dense f64[2,3] is not square: its sizes are 2 and 3",
    ),
    "op.sqrtm(op.diag([-1.,1.]))": (
        "NumericalError",
        "function: sqrt has no finite value at the eigenvalue -1 of diag f32[2,2]; a complex operator may "
        "have one",
    ),
    "op.logm(op.circulant([-1.,0.]))": (
        "NumericalError",
        "function: circulant f32[2,2] has eigenvalues whose function is not real; make it complex: "
        "op.circulant(c.astype(c128))",
    ),
    "op.eye(-1)": (
        "ShapeError",
        "eye: size -1 is negative",
    ),
    "op.eye(2.5)": (
        "OperandError",
        "eye: got 2.5 for a size, expected a whole number",
    ),
    "op.eye(3, ts.i32)": (
        "DTypeError",
        "eye: dtype i32 is not floating-point; operators are of real or complex numbers",
    ),
    "op.dense(np.ones(3))": (
        "ShapeError",
        "dense: f64[3] is no matrix; it needs at least 2 axes",
    ),
    "op.dense(np.ones((2,2,2)))": (
        "ShapeError",
        "dense: got f64[2,2,2] with 3 axes, expected one matrix; map over stacks with vmap",
    ),
    'op.dense("x")': (
        "OperandError",
        "dense: cannot take str 'x' as a tensor; pass a Tensor, a NumPy array or numbers",
    ),
    "op.diag(np.ones((2,2)))": (
        "ShapeError",
        "diag: got f64[2,2], expected a vector",
    ),
    "op.tridiagonal([1.],[1.,1.,1.],[1.])": (
        "ShapeError",
        "tridiagonal: the diagonal below is f32[1], expected 2 elements beside f32[3]",
    ),
    "op.triangular(np.ones((2,3)))": (
        "ShapeError",
        "triangular: f64[2,3] is not square",
    ),
    "op.permutation([0,0])": (
        "OperandError",
        "permutation: the indices are no permutation of 0 to 1: each must occur once",
    ),
    "op.permutation([0.5])": (
        "OperandError",
        "permutation: got float64[1], expected a vector of whole numbers",
    ),
    "op.select([5],3)": (
        "AxisError",
        "select: index 5 is out of range for vectors of 3",
    ),
    "op.projector(np.ones((3,2)))": (
        "NumericalError",
        "projector: the columns of f64[3,2] depend on each other; leave out those that do",
    ),
    "op.projector(np.ones((2,3)))": (
        "ShapeError",
        "projector: f64[2,3] has more columns than rows, so they are dependent",
    ),
    "op.fft(0)": (
        "ShapeError",
        "fft: got the sizes (0,), expected at least one element along each axis",
    ),
    'op.fft(4, norm="x")': (
        "OperandError",
        "fft: norm is 'x', expected 'backward', 'ortho' or 'forward'",
    ),
    "op.dct(4, 7)": (
        "OperandError",
        "dct: type is 7, expected 1, 2, 3 or 4",
    ),
    "op.dct(1, 1)": (
        "ShapeError",
        "dct: a transform of type 1 has at least 2 elements, got 1",
    ),
    'op.conv1d(np.ones(5), 3, mode="valid")': (
        "ShapeError",
        "conv1d: the kernel f64[5] is larger than the grid (3,); use mode 'same'",
    ),
    'op.conv1d(np.ones(5), 3, mode="x")': (
        "OperandError",
        "conv1d: mode is 'x', expected 'full', 'same' or 'valid'",
    ),
    'op.conv1d(np.ones(5), 3, boundary="x")': (
        "OperandError",
        "conv1d: boundary is 'x', expected 'zero' or 'periodic'",
    ),
    "op.conv2d(np.ones(5), (3,3))": (
        "ShapeError",
        "conv2d: the kernel is f64[5] for a grid of (3, 3), expected 2 axes of at least one element each",
    ),
    "op.toeplitz([])": (
        "ShapeError",
        "toeplitz: got f32[0] and f32[0], expected at least one element",
    ),
    "op.circulant([])": (
        "ShapeError",
        "circulant: got an empty vector, expected the first column",
    ),
    "op.kronecker()": (
        "OperandError",
        "kronecker: got no operators",
    ),
    "op.kronsum(A, S)": (
        "ShapeError",
        "kronsum: dense f64[2,3] is not square: its sizes are 2 and 3",
    ),
    "op.direct_sum()": (
        "OperandError",
        "direct_sum: got no operators",
    ),
    "op.block([[A],[A,A]])": (
        "OperandError",
        "block: got rows of [1, 2] blocks, expected as many in each row",
    ),
    "op.block([[None,None]])": (
        "OperandError",
        "block: row 0 has no operator that tells its size; use op.zero",
    ),
    "op.block([[A, S]])": (
        "ShapeError",
        "block: row 0 has dense f64[2,3] and dense f64[3,3], which do not align",
    ),
    "op.low_rank(np.ones((3,2)), np.ones((3,1)))": (
        "ShapeError",
        "low_rank: U is f64[3,2] and V is f64[3,1]; they have as many columns as the rank",
    ),
    "op.low_rank(np.ones((3,2)), s=np.ones(3))": (
        "ShapeError",
        "low_rank: S is f64[3] for 2 columns of U and V",
    ),
    'op.sparse("x")': (
        "OperandError",
        "sparse: got str 'x', expected a matrix of scipy.sparse, (values, columns, row starts) with a "
        "shape, or a NumPy matrix",
    ),
    "op.sparse((np.ones(2),[0,1],[0,1,2]))": (
        "OperandError",
        "sparse: (values, columns, row starts) need a shape=(rows, columns)",
    ),
    "op.sparse((np.ones(2),[0,9],[0,1,2]), (2,2))": (
        "ShapeError",
        "sparse: column 9 is out of range for 2 columns",
    ),
    "op.sparse(np.ones((3,3)), block=(2,2))": (
        "ShapeError",
        "sparse: tiles of 2 by 2 do not divide a matrix of 3 by 3",
    ),
    "op.stencil({}, 3)": (
        "OperandError",
        "stencil: got {}, expected taps as in {-1: 1.0, 0: -2.0, 1: 1.0}",
    ),
    "op.stencil({(0,0): 1.0}, 3)": (
        "ShapeError",
        "stencil: offset (0, 0) does not fit the grid (3,)",
    ),
    'op.laplacian(3, boundary="x")': (
        "OperandError",
        "laplacian: boundary is 'x', expected one of dirichlet, neumann, periodic",
    ),
    "op.laplacian(3, 0.0)": (
        "OperandError",
        "laplacian: spacing is 0.0, expected a positive number for each of 1 axes",
    ),
    "op.from_matvec(lambda x: x * x, (3, 3))": (
        "OperandError",
        "from_matvec: f is not linear: f(2 x + y) differs from 2 f(x) + f(y); for the derivative of a "
        "function use op.jacobian(f, x)",
    ),
    "op.from_matvec(lambda x: x, (2, 3))": (
        "ShapeError",
        "from_matvec: f gives f32[3] for f32[3], expected a vector of 2 as in f32[2,3]",
    ),
    "op.from_matvec(3, (2, 3))": (
        "OperandError",
        "from_matvec: f is int, expected a function",
    ),
    "op.jacobian(op.sin, [1, 2])": (
        "DTypeError",
        "jacobian: x holds i64[], expected floating-point tensors; cast it with astype",
    ),
    "op.hessian(op.sin, np.ones(2))": (
        "ShapeError",
        "hessian: f gives f64[2], expected one real scalar",
    ),
    'op.sketch(ts.key(0), 5, 3, "srft")': (
        "ShapeError",
        "sketch: 5 rows cannot be chosen from 3; use kind 'gaussian'",
    ),
    'op.sketch(ts.key(0), 2, 3, "x")': (
        "OperandError",
        "sketch: kind is 'x', expected one of gaussian, rademacher, srft, count",
    ),
    'op.function(S, "cosh")': (
        "OperandError",
        "function: got 'cosh' for dense f64[3,3], expected a function of tensors or one of exp, log, sqrt, "
        "sign",
    ),
    "op.function(S, 3)": (
        "OperandError",
        "function: got 3 for dense f64[3,3], expected a function of tensors or one of exp, log, sqrt, sign",
    ),
    "op.compose()": (
        "OperandError",
        "compose: got no operators",
    ),
    "op.scale(S, np.ones(3))": (
        "ShapeError",
        "scale: the factor of dense f64[3,3] is f64[3], expected a scalar; multiply rows by op.diag(v) @ A",
    ),
    "S / 0": (
        "OperandError",
        "divide: dense f64[3,3] divided by 0",
    ),
    "S[4]": (
        "AxisError",
        "getitem: index 4 is out of range for axis 0 of dense f64[3,3]",
    ),
    "S[0, 1, 2]": (
        "AxisError",
        "getitem: dense f64[3,3] has 2 axes, got 3 indices",
    ),
    "S[[True, False]]": (
        "ShapeError",
        "getitem: the mask of axis 0 of dense f64[3,3] has 2 elements",
    ),
    "op.resolvent(A, 1.0)": (
        "ShapeError",
        "resolvent: dense f64[2,3] is not square: its sizes are 2 and 3",
    ),
    "op.commutator(S, A)": (
        "ShapeError",
        "commutator: dense f64[2,3] is not square: its sizes are 2 and 3",
    ),
    'ts.Operator["N"]': (
        "AnnotationError",
        "Operator[...]: got 1 items, expected the sizes of argument and result, a dtype and a policy, as in "
        'Operator["N", "M", f32]',
    ),
    'ts.Operator["N", -1]': (
        "AnnotationError",
        "Operator[...]: -1 is not a size",
    ),
    "ts.Operator[2, 3, ts.f32, ts.f16]": (
        "AnnotationError",
        "Operator[...]: the policy f16 is not one of the dtype f32",
    ),
    'op.apply("x", np.ones(3))': (
        "OperandError",
        "apply: got str 'x', expected an operator or a matrix",
    ),
    'op.compose(S, "x")': (
        "OperandError",
        "compose: got str 'x', expected an operator or a matrix",
    ),
    "op.kronsum(op.diag([1.,2.]), op.diag([-1.,3.])).solve(np.ones(4))": (
        "NumericalError",
        "solve: kronsum(diag f32[2,2], diag f32[2,2]) f32[4,4] is singular: an eigenvalue is 0; use "
        "pseudoinverse",
    ),
    "op.logm(op.dense(-np.eye(2))).todense()": (
        "NumericalError",
        "matrix_function: f64[2,2] has no such real function: an eigenvalue is zero or negative; cast it to "
        "a complex dtype, or use op.funm for symmetric matrices",
    ),
    "op.sqrtm(op.dense(-np.eye(2), flags=['self_adjoint'])).todense()": (
        "NumericalError",
        "function: sqrt has no finite value at the eigenvalue -1 of dense f64[2,2]; a complex operator may "
        "have one",
    ),
    "op.sign(op.dense(np.array([[0.0, 1.0], [-1.0, 0.0]]))).todense()": (
        "NumericalError",
        "matrix_function: f64[2,2] has no such real function: an eigenvalue is zero or negative; cast it to "
        "a complex dtype, or use op.funm for symmetric matrices",
    ),
    "op.projector(np.eye(3)[:, :2]).solve(np.ones(3))": (
        "NumericalError",
        "solve: projector f64[3,3] is singular: its rank is at most 2; use op.pseudoinverse(A)",
    ),
    "op.conv1d(np.ones(3) / 3, 6, boundary='periodic').solve(np.ones(6))": (
        "NumericalError",
        "solve: convolution f64[6,6] is singular: an eigenvalue is 0; use pseudoinverse",
    ),
    "op.laplacian(4, boundary='periodic').solve(np.ones(4))": (
        "NumericalError",
        "solve: stencil f32[4,4] is singular: its rank is at most 3; use op.pseudoinverse(A)",
    ),
    "ts.jit(lambda p: op.permutation(p))(np.arange(3))": (
        "OperandError",
        "permutation: got the traced i64[3]; indices are part of the structure, so make the operator "
        "outside of the traced function",
    ),
    "ts.jit(lambda v: op.describe(op.diag(v)).desc)(np.ones(3))": (
        "OperandError",
        "operator descriptor: diag f64[3,3] is traced and has no data to point to",
    ),
    "ts.jit(lambda v: op.check_flags(op.diag(v)))(np.ones(3))": (
        "OperandError",
        "check_flags: diag f64[3,3] is traced and has no numbers to look at",
    ),
    "op.dense(np.arange(9.0).reshape(3, 3)).solve(np.ones(3) + np.eye(3)[0])": (
        "NumericalError",
        "solve: dense f64[3,3] is singular; use op.pseudoinverse(A) @ b",
    ),
    "op.dense(np.ones((4, 4))).solve([1.0, 0.0, 0.0, 0.0])": (
        "NumericalError",
        "solve: dense f64[4,4] is singular; use op.pseudoinverse(A) @ b",
    ),
    "op.dense(1 / (np.arange(15.0)[:, None] + np.arange(15.0) + 1)).solve(np.ones(15))": (
        "NumericalError",
        "solve: dense f64[15,15] is singular to the precision of f64; use op.pseudoinverse(A) @ b",
    ),
    "(op.eye(3, ts.f64) - op.low_rank(np.eye(3)[:, :1])).solve(np.ones(3))": (
        "NumericalError",
        "solve: plus(eye f64[3,3], scale(low_rank f64[3,3]) f64[3,3]) f64[3,3] is singular; use "
        "op.pseudoinverse(A) @ b",
    ),
    "S[None]": (
        "AxisError",
        "getitem: got None, which would be a new axis, but dense f64[3,3] has 2 axes",
    ),
    "op.laplacian(4, boundary='neumann').inverse()": (
        "NumericalError",
        "inverse: stencil f32[4,4] is singular: its rank is at most 3; use op.pseudoinverse(A)",
    ),
}


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    with override(target="numpy"):
        yield


@pytest.mark.parametrize("source", ERRORS)
def test_the_text_of_an_error(source: str) -> None:
    kind, message = ERRORS[source]
    with pytest.raises(ts.TesseraError) as caught:
        eval(source)
    assert type(caught.value).__name__ == kind
    assert caught.value.message == message
    assert caught.value.location is not None


def test_flags_that_do_not_exist_are_listed() -> None:
    with pytest.raises(ts.TesseraError, match="assume: no flag 'nice'; there are real, unitary, "):
        S.assume("nice")
    with pytest.raises(ts.TesseraError, match="dense: no flag 'nice'; there are real, unitary, "):
        op.dense(np.eye(2), flags=("nice",))


def test_operators_are_immutable() -> None:
    with pytest.raises(AttributeError, match="an Operator is immutable; cannot set 'kind'"):
        S.kind = "diag"


def test_numbers_that_are_not_finite_pass_through_products_only() -> None:
    """A @ x and functions give NaN where NaN went in; what would solve with it refuses."""
    np.testing.assert_array_equal(np.asarray(op.diag(n) @ np.ones(3)), n)
    assert np.isnan(np.asarray(op.expm(op.dense(np.full((2, 2), np.nan))))).all()
    assert float(op.logdet(D)) == -np.inf
    assert np.isnan(np.asarray(op.eye(3).solve(n))[1])


def test_solutions_without_a_right_digit_are_refused() -> None:
    """LU of a matrix that is singular but for rounding succeeds; its solution means nothing."""
    i = np.arange(20.0)
    a = op.dense(1 / (i[:, None] + i + 1))
    with pytest.raises(ts.TesseraError, match="is singular to the precision of f64"):
        a.solve(np.ones(20) * (-1) ** i)


def test_rows_of_any_size_and_narrow_numbers_are_solved() -> None:
    """What is refused is the condition of the matrix with its rows scaled, in the precision of the
    solution.
    """
    a = np.array([[1.0, 1.0], [0.0, 1e-20]])
    np.testing.assert_allclose(op.dense(a).solve(np.ones(2)), [-1e20, 1e20])
    for dtype in (ts.bf16, ts.f16):
        x = op.dense(ts.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=dtype)).solve(
            ts.ones(2, dtype=dtype)
        )
        np.testing.assert_allclose(np.asarray(x).astype(float), [0.4, 0.2], rtol=1e-2)


def test_flags_that_the_numbers_break_are_told() -> None:
    a = op.dense(np.array([[1.0, 2.0], [0.0, 3.0]]), flags=("self_adjoint", "unitary"))
    assert op.check_flags(a) == (
        "normal",
        "orthogonal_columns",
        "self_adjoint",
        "symmetric",
        "unitary",
    )
    assert op.check_flags(op.dense(np.eye(2), flags=("permutation", "positive"))) == ()


def test_rounding_of_zeros_breaks_no_flag() -> None:
    """Diagonals are compared beside the largest element, not beside each other."""
    m = np.array([[1e-17, -1.0], [-1.0, 0.0]])
    assert op.check_flags(op.dense(m, flags=("toeplitz", "circulant"))) == ()
    assert op.check_flags(op.dense(np.diag([1.0, 2.0]), flags=("toeplitz",))) == ("toeplitz",)


def test_a_foreign_descriptor_is_refused() -> None:
    told = op.describe(op.eye(3))
    told.desc.tag = 77
    with pytest.raises(
        ts.TesseraError, match="operator descriptor: no implicit kind has the tag 77"
    ):
        op.undescribe(told)
    told.desc.repr = 9
    with pytest.raises(ts.TesseraError, match="operator descriptor: no representation 9"):
        op.undescribe(told)


def _spoiled(a: Any, **changes: Any) -> Any:
    """A descriptor with fields of its tensors changed: t1_rank=9 is the rank of tensor 1."""
    told = op.describe(a)
    for name, x in changes.items():
        tensor, field = told.desc.payload[int(name[1])], name[3:]
        setattr(tensor, field, tensor.shape.__class__(*x) if field == "shape" else x)
    return told


DESCRIPTORS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "got NoneType, expected what op.describe gives or a TessOperatorDesc"),
    "dtype": (_spoiled(op.eye(3), t0_dtype=99), "no dtype has the number 99; there are"),
    "rank": (
        _spoiled(op.eye(3), t1_rank=9),
        "a tensor has rank 9 and the sizes [1, 0, 0, 0, 0, 0, 0, 0], expected at most 8 sizes, none negative",
    ),
    "negative": (_spoiled(op.diag(np.ones(3)), t0_shape=[-3]), "expected at most 8 sizes, none negative"),
    "size of eye": (
        _spoiled(op.eye(3), t1_shape=[0]), "tensor 1 is int64[0], expected 1 whole numbers",
    ),
    "matrix": (_spoiled(S, t0_rank=1), "dense: f64[3] is no matrix; it needs at least 2 axes"),
    "factors": (
        _spoiled(op.low_rank(np.ones((3, 2))), t1_shape=[1]),
        "low_rank: S is f64[1] for 2 columns of U and V",
    ),
    "toeplitz": (
        _spoiled(op.toeplitz(np.ones(3)), t0_shape=[4]),
        "a Toeplitz matrix of 3 by 3 has 5 diagonals, but tensor 0 has the shape (4,)",
    ),
    "permutation": (
        _spoiled(op.permutation([2, 0, 1]), t1_shape=[2]),
        "permutation: the indices are no permutation of 0 to 1: each must occur once",
    ),
    "norm": (_spoiled(op.fft(4), t2_shape=[1]), "tensor 2 is int64[1], expected 2 whole numbers"),
    "tiles": (
        _spoiled(op.sparse(np.eye(3)), t1_shape=[2, 2]),
        "tiles of the shape (3, 1, 1) have places of the shape (2, 2), expected (count, rows, columns) and "
        "(2, count) whole numbers",
    ),
    "tridiagonal": (
        _spoiled(op.tridiagonal(np.ones(2), np.ones(3), np.ones(2)), t0_shape=[1]),
        "tridiagonal: the diagonal below is f64[1], expected 2 elements beside f64[3]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_a_bad_descriptor_is_refused(name: str) -> None:
    told, text = DESCRIPTORS[name]
    with pytest.raises(ts.TesseraError) as caught:
        op.undescribe(told)
    assert text in caught.value.message


def test_annotations_are_checked_by_jit() -> None:
    @ts.jit
    def f(a: ts.Operator["N", "N", ts.f64], x: Any) -> Any:
        return a @ x

    def message(a: Any) -> str:
        with pytest.raises(ts.TesseraError) as caught:
            f(a, np.ones(3))
        return caught.value.message

    want = "Operator['N', 'N', f64]"
    assert message(A) == f"argument 'a' is dense f64[2,3], which is not square, expected {want}"
    assert message(op.eye(3)) == f"argument 'a' is eye f32[3,3], expected dtype f64 as in {want}"
    assert message(np.eye(3)) == f"argument 'a' is ndarray, expected {want}"
    np.testing.assert_array_equal(np.asarray(f(S, np.ones(3))), [3, 3, 3])
    assert str(ts.Operator[3, "M", ts.f32, ts.f32 @ ts.accum(ts.f32)]) == "Operator[3, 'M', f32]"


REFUSED = [
    "S < 1", "S >= D", "1 < S", "ts.ones((3, 3)) > S", "S == D", "S != D", "S == 1", "S == ts.ones((3, 3))",
    "S % 2", "2 // S",
    "S & D", "~S", "abs(S)", "round(S)", "1 / S", "S / D", "2 ** S", "float(S)", "int(S)", "complex(S)",
    "len(S)", "bool(S)",
    "divmod(S, 2)", "1 if S else 0",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("way", ["eager", "jit"])
def test_operations_on_elements_say_what_to_write(text, way):
    """`A == B` was False for equal operators, and `A > 0` an error of Python without the user's line."""

    def f(S, D):
        return eval(text, {"ts": ts, "S": S, "D": D})

    with pytest.raises(OperandError, match=r"an operator is a map|got two operators") as e:
        (ts.jit(f) if way == "jit" else f)(S, D)
    assert "\n  at <string>:1" in str(e.value)


def test_an_operator_is_itself_and_no_text():
    again = S
    assert again == S
    assert len({S, D, again}) == 2
    assert S != "S"
    assert (S,) != S


def test_sizes_are_no_operators():
    """It ended in an error of Python."""
    for plus in (lambda n: S + n, lambda n: n + S, lambda n: S - n, lambda n: n - S):

        def added(x: ts.Tensor["N", ts.f64], plus: Any = plus) -> Any:  # type: ignore[name-defined]
            return plus(x.shape[0]) @ x

        with pytest.raises(OperandError, match=r"plus: got the number N beside .* 2 \* op.eye"):
            ts.jit(added)(np.ones(3))
