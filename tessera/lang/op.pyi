"""op.<name>: every op, and the functions written with them, under one name.

Written by tools/stubs.py from the records of the ops; do not edit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tessera.algebra.descriptor import HeldDescriptor, TessOperatorDesc
from tessera.algebra.operator import Operator
from tessera.algebra.solvers.functions import Function
from tessera.algebra.solvers.linear import Solution
from tessera.algebra.solvers.long import Arnoldi, Lanczos
from tessera.algebra.solvers.stochastic import Estimate
from tessera.algebra.spectral import SpectralOperator
from tessera.core.dims import Size
from tessera.ir.graph.ir import Graph, Value
from tessera.lang import random as random
from tessera.lang.collective import Names
from tessera.lang.tensor import Tensor
from tessera.ops.control import Tree
from tessera.ops.define import ArrayLike, AxisLike
from tessera.ops.fft import Sizes
from tessera.ops.linalg import LeastSquares
from tessera.ops.sets import UniqueAll, UniqueCounts, UniqueInverse

def abs(x: ArrayLike) -> Tensor:
    """Absolute value."""

def absolute(x: ArrayLike) -> Tensor:
    """Absolute value."""

def acos(x: ArrayLike) -> Tensor:
    """Inverse cosine."""

def acosh(x: ArrayLike) -> Tensor:
    """Inverse hyperbolic cosine."""

def adaptive_avg_pool(x: ArrayLike, size: Any) -> Tensor:
    """The means of `size` windows that cover each spatial axis as evenly as whole numbers allow."""

def adaptive_avg_pool1d(x: ArrayLike, size: Any) -> Tensor:
    """adaptive_avg_pool over one spatial axis."""

def adaptive_avg_pool2d(x: ArrayLike, size: Any) -> Tensor:
    """adaptive_avg_pool over two spatial axes."""

def adaptive_avg_pool3d(x: ArrayLike, size: Any) -> Tensor:
    """adaptive_avg_pool over three spatial axes."""

def adaptive_max_pool(x: ArrayLike, size: int | Sequence[int | None]) -> Tensor:
    """The largest element of each of `size` windows that cover the last axes evenly; None keeps an axis."""

def add(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Sum of two tensors."""

def adjoint(a: Any) -> Operator:
    """The adjoint A.H: the conjugate transpose."""

def adjoint_test(a: Any, *, key: Any = ...) -> Tensor:
    """|(A x, y) - (x, A.H y)| beside |A x| |y| for random x and y: about eps when A.H is right."""

def adjugate(x: ArrayLike) -> Tensor:
    """The transposed cofactors: x @ adjugate(x) = det(x) times the identity, singular x too."""

def adjugate_slope(x: Value, t: Value) -> Tensor:
    """How the adjugate of x changes along t, singular x too."""

def affine_grid(theta: ArrayLike, shape: Any, align_corners: bool = ...) -> Tensor:
    """The grid for grid_sample that moves images of a shape by matrices (batch, rank, rank + 1)."""

def agm(a: ArrayLike, b: ArrayLike) -> Tensor:
    """The arithmetic-geometric mean of numbers above 0."""

def all(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Whether all elements over axes are true."""

def all_gather(x: ArrayLike, axis_name: str) -> Tensor:
    """What all elements of the batch hold, along a new first axis."""

def allclose(
    x: ArrayLike, y: ArrayLike, rtol: float = ..., atol: float = ..., equal_nan: bool = ...
) -> Tensor:
    """Whether all elements are close, see isclose."""

def amax(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Largest element over axes; NaN if any is."""

def amin(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Smallest element over axes; NaN if any is."""

def angle(z: ArrayLike, deg: bool = ...) -> Tensor:
    """The argument of complex numbers."""

def anticommutator(a: Any, b: Any) -> Operator:
    """A @ B + B @ A."""

def any(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Whether any element over axes is true."""

def append(x: ArrayLike, values: ArrayLike, axis: int | None = ...) -> Tensor:
    """values after x, along an axis or as one."""

def apply(a: Any, x: Any) -> Tensor:
    """A @ x for a vector, a matrix of columns or a stack of such matrices."""

def apply_along_axis(f: Callable[[Any], Any], axis: int, x: ArrayLike) -> Any:
    """f of each vector along an axis; what it gives takes the place of that axis."""

def apply_function(
    a: Any, f: Function, b: Any, *, bounds: Any = ..., degree: int = ..., tol: float | None = ...
) -> Tensor:
    """f(A) b for a self-adjoint A, as apply_function(A, op.exp, b); b is a vector or columns."""

def apply_over_axes(
    f: Callable[[Any, int], Any], x: ArrayLike, axes: int | Sequence[int]
) -> Tensor:
    """f(x, axis) for one axis after another; an axis that f removes is kept with size 1."""

def arange(start: Any, stop: Any = ..., step: Any = ..., dtype: Any = ...) -> Tensor:
    """Numbers from start (0 when only stop is given) up to stop, by step."""

def arccos(x: ArrayLike) -> Tensor:
    """Inverse cosine."""

def arccosh(x: ArrayLike) -> Tensor:
    """Inverse hyperbolic cosine."""

def arcsin(x: ArrayLike) -> Tensor:
    """Inverse sine."""

def arcsinh(x: ArrayLike) -> Tensor:
    """Inverse hyperbolic sine."""

def arctan(x: ArrayLike) -> Tensor:
    """Inverse tangent."""

def arctan2(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Angle of the vector (y, x)."""

def arctanh(x: ArrayLike) -> Tensor:
    """Inverse hyperbolic tangent."""

def argmax(x: ArrayLike, axis: int | None = ..., keepdims: bool = ...) -> Tensor:
    """Index of the first largest element along an axis."""

def argmin(x: ArrayLike, axis: int | None = ..., keepdims: bool = ...) -> Tensor:
    """Index of the first smallest element along an axis."""

def argpartition(x: ArrayLike, kth: int, axis: int = ...) -> Tensor:
    """The order of partition."""

def argsort(x: ArrayLike, axis: int = ..., descending: bool = ..., stable: bool = ...) -> Tensor:
    """The indices that sort x along an axis; equal elements keep their order."""

def argwhere(x: ArrayLike, size: Any = ..., fill: int = ...) -> Tensor:
    """The places of the elements that are not 0, one a row; inside jit give size=."""

def arnoldi(a: Any, v: Any, steps: int) -> Arnoldi:
    """Steps of Arnoldi from v for any square A: basis, Hessenberg matrix, length of the rest."""

def around(x: ArrayLike, decimals: int = ...) -> Tensor:
    """Nearest whole number, ties to even."""

def array_equal(x: ArrayLike, y: ArrayLike, equal_nan: bool = ...) -> Tensor:
    """Whether two tensors have the same shape and elements."""

def array_equiv(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether two tensors have the same elements after broadcasting."""

def array_split(x: ArrayLike, parts: int | Sequence[int], axis: int = ...) -> list[Tensor]:
    """Parts as even as whole numbers allow, the longer ones first; or cut at these indices."""

def asin(x: ArrayLike) -> Tensor:
    """Inverse sine."""

def asinh(x: ArrayLike) -> Tensor:
    """Inverse hyperbolic sine."""

def atan(x: ArrayLike) -> Tensor:
    """Inverse tangent."""

def atan2(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Angle of the vector (y, x)."""

def atanh(x: ArrayLike) -> Tensor:
    """Inverse hyperbolic tangent."""

def atleast_1d(x: ArrayLike) -> Tensor:
    """x, a number as one element."""

def atleast_2d(x: ArrayLike) -> Tensor:
    """x with two axes or more: a vector becomes a row."""

def atleast_3d(x: ArrayLike) -> Tensor:
    """x with three axes or more: a vector becomes (1, n, 1), a matrix (m, n, 1)."""

def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    causal: bool = ...,
    scale: float | None = ...,
    mask: ArrayLike = ...,
) -> Tensor:
    """softmax(q k^T * scale) v on (..., heads, seq, dim)."""

def attention_grad(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    ct: ArrayLike,
    causal: bool = ...,
    scale: float = ...,
) -> Any:
    """The cotangents of q, k and v, for the cotangent of o = attention(q, k, v)."""

def attention_tangent(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    tq: ArrayLike,
    tk: ArrayLike,
    tv: ArrayLike,
    causal: bool = ...,
    scale: float = ...,
) -> Tensor:
    """The tangent of o = attention(q, k, v) for tangents of q, k and v."""

def average(
    x: ArrayLike, axis: AxisLike = ..., weights: ArrayLike = ..., keepdims: bool = ...
) -> Tensor:
    """The mean, weighted where weights are given: of the shape of x, or one for each element of an axis."""

def avg_pool(
    x: ArrayLike,
    size: Any,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
) -> Tensor:
    """The mean of each window; padding counts as zeros, or not at all."""

def avg_pool1d(
    x: ArrayLike,
    size: Any,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
) -> Tensor:
    """avg_pool over one spatial axis."""

def avg_pool2d(
    x: ArrayLike,
    size: Any,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
) -> Tensor:
    """avg_pool over two spatial axes."""

def avg_pool3d(
    x: ArrayLike,
    size: Any,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
) -> Tensor:
    """avg_pool over three spatial axes."""

def axis_index(axis_name: str) -> Tensor:
    """Which element of the batch this is."""

def axis_size(axis_name: str) -> Size:
    """How many elements the batch has."""

def barrier(*xs: ArrayLike) -> tuple[Tensor, ...]:
    """The same values, which no pass may take for those that went in or compute before all of them."""

def bartlett(n: int) -> Tensor:
    """The triangular window of n points, both ends 0."""

def batchnorm(
    x: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    gain: ArrayLike = ...,
    bias: ArrayLike = ...,
    axis: int = ...,
    eps: float = ...,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gain + bias with statistics given for each channel."""

def batchnorm_train(
    x: ArrayLike, gain: ArrayLike = ..., bias: ArrayLike = ..., axis: int = ..., eps: float = ...
) -> tuple[Tensor, Tensor, Tensor]:
    """batchnorm by the statistics of this batch: the result, and its mean and variance."""

def bdtr(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Tensor:
    """The chance of at most k of n events of probability p."""

def bdtrc(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Tensor:
    """The chance of more than k of n events of probability p."""

def bessel_i0e(x: ArrayLike) -> Tensor:
    """exp(-|x|) times the modified Bessel function of order 0."""

def bessel_i1e(x: ArrayLike) -> Tensor:
    """exp(-|x|) times the modified Bessel function of order 1."""

def beta(a: ArrayLike, b: ArrayLike) -> Tensor:
    """gamma(a) gamma(b) / gamma(a + b)."""

def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Tensor:
    """The incomplete beta function divided by beta(a, b)."""

def betaincc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Tensor:
    """1 - betainc(a, b, x), without cancellation."""

def betaln(a: ArrayLike, b: ArrayLike) -> Tensor:
    """The logarithm of the beta function."""

def bicgstab(
    a: Any,
    b: Any,
    *,
    x0: Any = ...,
    precondition: Any = ...,
    tol: float | None = ...,
    atol: float = ...,
    limit: int | None = ...,
    check: bool = ...,
    progress: Any = ...,
) -> Solution:
    """Solve A x = b by stabilised biconjugate gradients: any square A, little memory."""

def bilinear(x: ArrayLike, y: ArrayLike, w: ArrayLike, bias: ArrayLike = ...) -> Tensor:
    """x[i] w[o, i, j] y[j] for every o: w is (out, in 1, in 2)."""

def binary_cross_entropy(
    x: ArrayLike, targets: ArrayLike, logits: bool = ..., reduction: str = ...
) -> Tensor:
    """-(y log p + (1 - y) log(1 - p)) with p = sigmoid(x), or p = x when logits is False."""

def bincount(
    x: ArrayLike, weights: ArrayLike = ..., minlength: int = ..., length: int | None = ...
) -> Tensor:
    """How often each number 0, 1, 2 ... is in x, or the sum of weights there."""

def bitcast(x: ArrayLike, dtype: Any) -> Tensor:
    """The bits of x as numbers of another format of the same width, 32 or 64 bits."""

def bitwise_and(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Bits set in both."""

def bitwise_count(x: ArrayLike) -> Tensor:
    """How many bits of |x| are 1, as u8."""

def bitwise_invert(x: ArrayLike) -> Tensor:
    """Every bit flipped."""

def bitwise_left_shift(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Bits moved up."""

def bitwise_not(x: ArrayLike) -> Tensor:
    """Every bit flipped."""

def bitwise_or(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Bits set in either."""

def bitwise_right_shift(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Bits moved down, keeping the sign."""

def bitwise_xor(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Bits set in just one."""

def blackman(n: int) -> Tensor:
    """The Blackman window of n points."""

def block(rows: Sequence[Sequence[Any]]) -> Operator:
    """A grid of operators, as numpy.block; None and 0 stand for zero blocks."""

def block_jacobi(a: Any, size: int) -> Operator:
    """The inverses of the blocks of so many rows and columns along the diagonal of A."""

def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Tensor:
    """(x^lmbda - 1) / lmbda, log(x) at lmbda = 0."""

def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Tensor:
    """boxcox of 1 + x, exact near 0."""

def broadcast_arrays(*xs: ArrayLike) -> list[Tensor]:
    """Tensors broadcast to the shape that they meet in."""

def broadcast_to(x: ArrayLike, shape: Any) -> Tensor:
    """x repeated along new axes and along axes of size 1."""

def bsmm(blocks: ArrayLike, columns: ArrayLike, pointers: ArrayLike, x: ArrayLike) -> Tensor:
    """The product A @ x of a block-sparse matrix, blocks (entries, rows, columns) in CSR form, and x."""

def call(region: Graph, *operands: Value, name: str) -> tuple[Tensor, ...]:
    """The outputs of a named graph."""

def cast(x: ArrayLike, dtype: Any) -> Tensor:
    """x in another dtype, rounded as that dtype's policy says."""

def cast_like(x: ArrayLike, y: ArrayLike) -> Tensor:
    """x in the dtype of y."""

def causal_mask(queries: Any, keys: Any) -> Tensor:
    """Bools (queries, keys): whether a query may see a key, the last query seeing all keys."""

def cbrt(x: ArrayLike) -> Tensor:
    """Cube root."""

def ceil(x: ArrayLike) -> Tensor:
    """Smallest whole number not below x."""

def celu(x: ArrayLike, alpha: float = ...) -> Tensor:
    """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere."""

def cg(
    a: Any,
    b: Any,
    *,
    x0: Any = ...,
    precondition: Any = ...,
    tol: float | None = ...,
    atol: float = ...,
    limit: int | None = ...,
    check: bool = ...,
    progress: Any = ...,
) -> Solution:
    """Solve A x = b by conjugate gradients; A and the preconditioner are positive definite."""

def channel_shuffle(x: ArrayLike, groups: int) -> Tensor:
    """The channels, axis 1, of all groups in turn."""

def chdtr(v: ArrayLike, x: ArrayLike) -> Tensor:
    """The distribution function of chi-square with v degrees of freedom."""

def chdtrc(v: ArrayLike, x: ArrayLike) -> Tensor:
    """1 - chdtr(v, x)."""

def chebyshev(
    a: Any,
    b: Any,
    bounds: tuple[float, float],
    *,
    x0: Any = ...,
    precondition: Any = ...,
    tol: float | None = ...,
    atol: float = ...,
    limit: int | None = ...,
    check: bool = ...,
    progress: Any = ...,
) -> Solution:
    """Solve A x = b without inner products; A has its eigenvalues within the bounds."""

def check_claims(a: Any) -> Operator:
    """A, if its numbers satisfy its assumed flags; while tracing, an A that checks them when it runs."""

def check_flags(a: Any, tolerance: float | None = ...) -> tuple[str, ...]:
    """The flags that the numbers of an operator break, from its dense matrix; () when all hold."""

def check_numerics(x: ArrayLike, message: str = ...) -> Tensor:
    """x, if every element is finite; else NumericalError with the message, in eager and compiled code."""

def checkpoint_name(x: ArrayLike, name: str) -> Tensor:
    """x, named so that a policy of checkpoint can keep it."""

def cholesky(x: ArrayLike, upper: bool = ...) -> Tensor:
    """The lower triangular L with L @ L.H = x for the Hermitian part of x, or L.H with upper."""

def choose(index: ArrayLike, choices: Sequence[ArrayLike]) -> Tensor:
    """For every element, that of the choice that index names; an index out of range takes the nearest."""

def circulant(c: Any) -> Operator:
    """The operator whose first column is c, each other one the one before, turned down by one."""

def clip(x: ArrayLike, min: ArrayLike = ..., max: ArrayLike = ...) -> Tensor:
    """x, but at least min and at most max; at an end the slope is that of x, 1."""

def column_stack(xs: Sequence[ArrayLike]) -> Tensor:
    """Join along the second axis; vectors are columns."""

def comb(n: ArrayLike, k: ArrayLike) -> Tensor:
    """How many ways there are to choose k of n."""

def commutator(a: Any, b: Any) -> Operator:
    """A @ B - B @ A."""

def complex(re: ArrayLike, im: ArrayLike) -> Tensor:
    """A complex tensor from its real and imaginary parts."""

def complex_contract(spec: str, x: ArrayLike, y: ArrayLike) -> Tensor:
    """contract of two complex operands, as four products of real ones."""

def compose(*factors: Any) -> Operator:
    """The product of operators: (A @ B) @ x = A @ (B @ x)."""

def concat(xs: Sequence[ArrayLike], axis: int = ...) -> Tensor:
    """Tensors joined end to end along an axis."""

def concatenate(xs: Sequence[ArrayLike], axis: int = ...) -> Tensor:
    """Tensors joined end to end along an axis."""

def cond(
    pred: ArrayLike, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Tree
) -> Tree:
    """true_fn(*operands) if pred holds, else false_fn(*operands); only one of them runs."""

def conj(x: ArrayLike) -> Tensor:
    """Complex conjugate."""

def conjugate(x: ArrayLike) -> Tensor:
    """Complex conjugate."""

def constant(x: ArrayLike) -> Tensor:
    """The given data."""

def contract(spec: str, *xs: ArrayLike) -> Tensor:
    """Sum of products of operands with named axes: contract("m k, k n -> m n", a, b)."""

def conv(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
    inner: Any = ...,
) -> Tensor:
    """Sums of x times the kernel w over sliding windows, for every out channel."""

def conv1d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
) -> Tensor:
    """conv of x (batch, channels, length) with w (out, in / groups, size)."""

def conv2d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
) -> Tensor:
    """conv of x (batch, channels, height, width) with w (out, in / groups, height, width)."""

def conv3d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
) -> Tensor:
    """conv of x (batch, channels, depth, height, width) with w (out, in / groups, ...)."""

def conv_input(
    ct: ArrayLike,
    w: ArrayLike,
    size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
) -> Tensor:
    """The derivative of a conv in its x, of `size` along the spatial axes: ct times w, added up."""

def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
) -> Tensor:
    """The adjoint of conv in its x: w is (in channels, out channels / groups, ...)."""

def conv_transpose1d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
) -> Tensor:
    """conv_transpose of x (batch, channels, length)."""

def conv_transpose2d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
) -> Tensor:
    """conv_transpose of x (batch, channels, height, width)."""

def conv_transpose3d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
) -> Tensor:
    """conv_transpose of x (batch, channels, depth, height, width)."""

def conv_weights(
    x: ArrayLike,
    ct: ArrayLike,
    window: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: Size = ...,
    inner: Any = ...,
) -> Tensor:
    """The derivative of a conv in its kernel: x times ct, summed over the batch and all places."""

def convolve(x: ArrayLike, y: ArrayLike, mode: str = ...) -> Tensor:
    """The convolution of two vectors; mode: full, same or valid."""

def copysign(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Magnitude of x with the sign of y."""

def corrcoef(x: ArrayLike, y: ArrayLike = ..., rowvar: bool = ...) -> Tensor:
    """The correlations of the rows of x (with rowvar=False, of its columns), and of y beside them."""

def correlate(x: ArrayLike, y: ArrayLike, mode: str = ...) -> Tensor:
    """The cross-correlation of two vectors: sums of x[n + k] conj(y[n])."""

def cos(x: ArrayLike) -> Tensor:
    """Cosine."""

def cosdg(x: ArrayLike) -> Tensor:
    """The cosine of an angle in degrees, exact at multiples of 90."""

def cosh(x: ArrayLike) -> Tensor:
    """Hyperbolic cosine."""

def cosine_embedding(
    x: ArrayLike, y: ArrayLike, targets: ArrayLike, margin: float = ..., reduction: str = ...
) -> Tensor:
    """1 - cosine of rows of x and y where the target is 1, max(0, cosine - margin) where it is -1."""

def cosine_similarity(x: ArrayLike, y: ArrayLike, axis: int = ..., eps: float = ...) -> Tensor:
    """Cosine of the angle between x and y along an axis; lengths count as at least eps."""

def cosm1(x: ArrayLike) -> Tensor:
    """cos(x) - 1, exact near 0."""

def cotdg(x: ArrayLike) -> Tensor:
    """The cotangent of an angle in degrees."""

def count_nonzero(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """How many elements over axes are not zero."""

def cov(
    x: ArrayLike,
    y: ArrayLike = ...,
    rowvar: bool = ...,
    bias: bool = ...,
    ddof: int | None = ...,
    fweights: ArrayLike = ...,
    aweights: ArrayLike = ...,
) -> Tensor:
    """The covariances of the rows of x (with rowvar=False, of its columns), and of y beside them."""

def cross(x: ArrayLike, y: ArrayLike, *, axis: int = ...) -> Tensor:
    """The vector perpendicular to two vectors of three elements along an axis."""

def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    axis: int = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
    ignore_index: int | None = ...,
) -> Tensor:
    """Cross entropy of softmax(logits) with labels: class numbers, or probabilities along axis."""

def ctc_loss(
    log_probabilities: ArrayLike,
    labels: ArrayLike,
    lengths: ArrayLike = ...,
    label_lengths: ArrayLike = ...,
    blank: int = ...,
    reduction: str = ...,
) -> Tensor:
    """-log of the chance of labels under log_probabilities (batch, time, classes), over all alignments."""

def cumlogsumexp(x: ArrayLike, axis: int | None = ..., reverse: bool = ...) -> Tensor:
    """log of the running sum of exp(x) along an axis, without overflow."""

def cummax(x: ArrayLike, axis: int | None = ..., reverse: bool = ...) -> Tensor:
    """Running maximum along an axis; NaN from the first NaN on."""

def cummin(x: ArrayLike, axis: int | None = ..., reverse: bool = ...) -> Tensor:
    """Running minimum along an axis; NaN from the first NaN on."""

def cumprod(x: ArrayLike, axis: int | None = ..., reverse: bool = ...) -> Tensor:
    """Running product along an axis; integers are multiplied in 64 bits."""

def cumsum(x: ArrayLike, axis: int | None = ..., reverse: bool = ...) -> Tensor:
    """Running sum along an axis; integers are summed in 64 bits."""

def cumulative_prod(
    x: ArrayLike, axis: int | None = ..., dtype: Any = ..., include_initial: bool = ...
) -> Tensor:
    """Running product along an axis, after a leading 1 when the initial value is included."""

def cumulative_sum(
    x: ArrayLike, axis: int | None = ..., dtype: Any = ..., include_initial: bool = ...
) -> Tensor:
    """Running sum along an axis, after a leading 0 when the initial value is included."""

def dct(
    x: ArrayLike, type: int = ..., n: Size | None = ..., axis: int = ..., norm: str | None = ...
) -> Tensor:
    """The discrete cosine transform of a type from 1 to 4 along an axis; orthogonal with ortho."""

def deg2rad(x: ArrayLike) -> Tensor:
    """Degrees as radians."""

def degrees(x: ArrayLike) -> Tensor:
    """Radians as degrees."""

def delete(x: ArrayLike, index: int | Sequence[int] | slice, axis: int | None = ...) -> Tensor:
    """x without the elements at an index, at some, in a slice, or where a mask is true."""

def dense(a: Any, flags: Iterable[str] = ...) -> Operator:
    """A matrix as an operator, with flags that the caller vouches for."""

def describe(a: Any) -> HeldDescriptor:
    """The C layout of an operator."""

def det(x: ArrayLike) -> Tensor:
    """The determinant of square matrices."""

def diag(v: Any) -> Operator:
    """The operator that multiplies a vector element by element with v."""

def diag_indices(n: int, ndim: int = ...) -> tuple[Tensor, ...]:
    """The places of the main diagonal of an array with ndim axes of size n."""

def diag_indices_from(x: ArrayLike) -> tuple[Tensor, ...]:
    """The places on the diagonal of a tensor like x, whose axes have one size."""

def diagflat(x: ArrayLike, k: int = ...) -> Tensor:
    """The matrix with the elements of x on its k-th diagonal."""

def diagonal(x: ArrayLike, offset: int = ..., axis1: int = ..., axis2: int = ...) -> Tensor:
    """The elements at (i, i + offset) of the matrices in two axes, as a new last axis."""

def diff(
    x: ArrayLike,
    n: int = ...,
    axis: int = ...,
    prepend: ArrayLike | None = ...,
    append: ArrayLike | None = ...,
) -> Tensor:
    """Differences of neighbours along an axis, n times; for bools, whether they differ."""

def digamma(x: ArrayLike) -> Tensor:
    """Derivative of lgamma."""

def digitize(x: ArrayLike, bins: ArrayLike, right: bool = ...) -> Tensor:
    """The bin of each element: i where bins[i-1] <= x < bins[i]; bins may rise or fall."""

def dim(size: Size) -> Tensor:
    """A size, possibly symbolic, as an i64 scalar."""

def direct_sum(*parts: Any) -> Operator:
    """Operators side by side: each acts on its own piece of the vector."""

def diric(x: ArrayLike, n: int) -> Tensor:
    """The periodic sinc sin(n x / 2) / (n sin(x / 2))."""

def div(x: ArrayLike, y: ArrayLike) -> Tensor:
    """True quotient of two tensors."""

def divergence(shape: Any, spacing: Any = ..., boundary: str = ..., dtype: Any = ...) -> Operator:
    """Minus the adjoint of the gradient."""

def divide(x: ArrayLike, y: ArrayLike) -> Tensor:
    """True quotient of two tensors."""

def divmod(x: ArrayLike, y: ArrayLike) -> tuple[Tensor, Tensor]:
    """floor_divide and remainder."""

def dot(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The sum of products over the last axis of x and the last but one of y (the only one of a vector)."""

def dropout(key: ArrayLike, x: ArrayLike, p: Any = ..., training: bool = ...) -> Tensor:
    """x with elements set to 0 with probability p and the others divided by 1 - p."""

def dsplit(x: ArrayLike, parts: int | Sequence[int]) -> list[Tensor]:
    """split along the third axis."""

def dstack(xs: Sequence[ArrayLike]) -> Tensor:
    """Join along the third axis."""

def dwt(x: ArrayLike, wavelet: str = ..., axis: int = ...) -> tuple[Tensor, Tensor]:
    """One level of the periodic wavelet transform: averages and details, each half as long; orthogonal."""

def dynamic_slice(x: ArrayLike, start: Any, sizes: Any) -> Tensor:
    """The part of x of these sizes from start on, moved to fit inside x."""

def dynamic_update_slice(x: ArrayLike, value: ArrayLike, start: Any) -> Tensor:
    """x with the part from start on replaced, the part moved to fit inside x."""

def ediff1d(x: ArrayLike, to_end: ArrayLike = ..., to_begin: ArrayLike = ...) -> Tensor:
    """Differences of neighbours of all elements, between what is given for both ends."""

def eig(x: ArrayLike) -> tuple[Tensor, ...]:
    """(w, V): complex eigenvalues, in no order, and eigenvectors of length 1 as columns of V."""

def eigh(x: ArrayLike) -> tuple[Tensor, ...]:
    """(w, V): ascending eigenvalues and orthonormal eigenvectors of the Hermitian part of x."""

def eigvals(x: ArrayLike) -> Tensor:
    """The complex eigenvalues, in no order."""

def eigvalsh(x: ArrayLike) -> Tensor:
    """The eigenvalues of the Hermitian part of x, ascending."""

def einsum(spec: str, *xs: ArrayLike) -> Tensor:
    """Sum of products in Einstein's notation, as numpy.einsum: einsum("bij,bjk->bik", a, b)."""

def ellipe(m: ArrayLike) -> Tensor:
    """The complete elliptic integral of the second kind, of the parameter m = k^2 <= 1."""

def ellipk(m: ArrayLike) -> Tensor:
    """The complete elliptic integral of the first kind, of the parameter m = k^2 <= 1."""

def ellipkm1(p: ArrayLike) -> Tensor:
    """The complete elliptic integral of the first kind at m = 1 - p."""

def elu(x: ArrayLike, alpha: float = ...) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

def embedding(table: ArrayLike, ids: ArrayLike) -> Tensor:
    """Rows of a table (rows, ...) by their numbers; the derivative adds up at repeated rows."""

def embedding_bag(
    ids: ArrayLike, table: ArrayLike, mode: str = ..., weights: ArrayLike = ...
) -> Tensor:
    """The sums, means or maxima of the rows that each bag (batch, n) of ids names."""

def empty(shape: Any, dtype: Any = ...) -> Tensor:
    """A tensor whose elements carry no meaning (zeros, so that results stay reproducible)."""

def empty_like(x: ArrayLike, dtype: Any = ...) -> Tensor:
    """A tensor of x's shape whose elements carry no meaning."""

def ensure(x: ArrayLike, ok: ArrayLike, *values: ArrayLike, message: str) -> Tensor:
    """x, if ok holds everywhere; else NumericalError with the message, in which {} stands for values."""

def entr(x: ArrayLike) -> Tensor:
    """-x log(x), 0 at 0 and -infinity below."""

def eq(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x equals y."""

def equal(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x equals y."""

def erf(x: ArrayLike) -> Tensor:
    """Error function."""

def erf_inv(x: ArrayLike) -> Tensor:
    """Inverse error function."""

def erfc(x: ArrayLike) -> Tensor:
    """1 - erf(x), precise for large x."""

def erfcinv(x: ArrayLike) -> Tensor:
    """Inverse of erfc, precise near 0."""

def erfcx(x: ArrayLike) -> Tensor:
    """exp(x^2) erfc(x), which does not underflow."""

def erfinv(x: ArrayLike) -> Tensor:
    """Inverse error function."""

def eval_chebyt(n: int, x: ArrayLike) -> Tensor:
    """Chebyshev's polynomial of the first kind: T_n(cos t) = cos(n t)."""

def eval_chebyu(n: int, x: ArrayLike) -> Tensor:
    """Chebyshev's polynomial of the second kind: U_n(cos t) = sin((n + 1) t) / sin(t)."""

def eval_gegenbauer(n: int, alpha: ArrayLike, x: ArrayLike) -> Tensor:
    """Gegenbauer's polynomial."""

def eval_genlaguerre(n: int, alpha: ArrayLike, x: ArrayLike) -> Tensor:
    """The generalised Laguerre polynomial."""

def eval_hermite(n: int, x: ArrayLike) -> Tensor:
    """The Hermite polynomial of physicists."""

def eval_hermitenorm(n: int, x: ArrayLike) -> Tensor:
    """The Hermite polynomial of probability."""

def eval_jacobi(n: int, alpha: ArrayLike, beta: ArrayLike, x: ArrayLike) -> Tensor:
    """Jacobi's polynomial."""

def eval_laguerre(n: int, x: ArrayLike) -> Tensor:
    """Laguerre's polynomial."""

def eval_legendre(n: int, x: ArrayLike) -> Tensor:
    """Legendre's polynomial."""

def eval_sh_chebyt(n: int, x: ArrayLike) -> Tensor:
    """Chebyshev's polynomial of the first kind on [0, 1]."""

def eval_sh_chebyu(n: int, x: ArrayLike) -> Tensor:
    """Chebyshev's polynomial of the second kind on [0, 1]."""

def eval_sh_legendre(n: int, x: ArrayLike) -> Tensor:
    """Legendre's polynomial on [0, 1]."""

def exp(x: ArrayLike) -> Tensor:
    """e to the power x."""

def exp10(x: ArrayLike) -> Tensor:
    """10 ** x."""

def exp2(x: ArrayLike) -> Tensor:
    """2 to the power x."""

def expand_dims(x: ArrayLike, axis: int | Sequence[int] = ...) -> Tensor:
    """x with new axes of size 1 at these places of the result."""

def expit(x: ArrayLike) -> Tensor:
    """1 / (1 + exp(-x)) without overflow."""

def expm(x: ArrayLike) -> Tensor:
    """The exponential of square matrices: the sum of x**k / k! over k."""

def expm1(x: ArrayLike) -> Tensor:
    """exp(x) - 1, precise near 0."""

def expm_frechet(x: ArrayLike, e: ArrayLike) -> Tensor:
    """The derivative of expm at x in the direction e."""

def exprel(x: ArrayLike) -> Tensor:
    """(exp(x) - 1) / x, which is 1 at 0."""

def eye(n: Any, dtype: Any = ...) -> Operator:
    """The identity on vectors of n."""

def fabs(x: ArrayLike) -> Tensor:
    """Absolute value."""

def factorial(n: ArrayLike) -> Tensor:
    """n!, as gamma(n + 1); 0 for negative n."""

def factorized_matmul(
    x: ArrayLike, u: ArrayLike, v: ArrayLike, s: ArrayLike | None = ...
) -> Tensor:
    """The product of x with a matrix in factors, x @ (u * s) @ v, which is never formed."""

def fdtr(m: ArrayLike, n: ArrayLike, x: ArrayLike) -> Tensor:
    """The distribution function of F with m and n degrees of freedom."""

def fdtrc(m: ArrayLike, n: ArrayLike, x: ArrayLike) -> Tensor:
    """1 - fdtr(m, n, x)."""

def fft(x: ArrayLike, n: Size | None = ..., axis: int = ..., norm: str | None = ...) -> Tensor:
    """The Fourier transform along an axis, of n elements: sum of x[j] exp(-2 pi i j k / n)."""

def fft2(
    x: ArrayLike, s: Sizes | None = ..., axes: AxisLike = ..., norm: str | None = ...
) -> Tensor:
    """The Fourier transform over two axes."""

def fftfreq(n: Size, d: float = ..., dtype: Any = ...) -> Tensor:
    """The frequencies of fft of n samples at spacing d: 0, 1, ..., -2, -1 over n * d."""

def fftn(
    x: ArrayLike, s: Sizes | None = ..., axes: AxisLike = ..., norm: str | None = ...
) -> Tensor:
    """The Fourier transform over axes, all unless given, of s elements each."""

def fftshift(x: ArrayLike, axes: AxisLike = ...) -> Tensor:
    """x with the element of frequency 0 in the middle of axes, all unless given."""

def fill_diagonal(x: ArrayLike, value: ArrayLike) -> Tensor:
    """x with value on its main diagonal, as a new tensor."""

def fix(x: ArrayLike) -> Tensor:
    """Whole part of x."""

def flash_attention(
    q: Any,
    cache: Any,
    *,
    dropout: float = ...,
    causal: bool = ...,
    scale: float | None = ...,
    counts: Any = ...,
    key: Any = ...,
) -> Any:
    """Attention of queries (batch, heads, seq, dim) on a cache that holds their positions last: (batch, seq, heads * dim)."""

def flatnonzero(x: ArrayLike, size: Any = ..., fill: int = ...) -> Tensor:
    """The flat indices of the elements that are not 0; inside jit give size=."""

def flatten(x: ArrayLike, start: int = ..., stop: int = ...) -> Tensor:
    """x with the axes from start to stop joined into one."""

def flip(x: ArrayLike, axis: AxisLike = ...) -> Tensor:
    """x with the elements in reverse order along axes."""

def fliplr(x: ArrayLike) -> Tensor:
    """x with its columns in reverse."""

def flipud(x: ArrayLike) -> Tensor:
    """x with its rows in reverse."""

def float_bits(x: ArrayLike) -> Tensor:
    """The bits of a float as an unsigned integer: f32 gives u32, f64 gives u64."""

def float_power(x: ArrayLike, y: ArrayLike) -> Tensor:
    """x to the power y in floating point."""

def floor(x: ArrayLike) -> Tensor:
    """Largest whole number not above x."""

def floor_divide(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Largest whole number not above the quotient."""

def fmax(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The larger of two, and the number where one is NaN."""

def fmin(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The smaller of two, and the number where one is NaN."""

def fmod(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Remainder with the sign of the dividend."""

def fold_windows(x: ArrayLike, shape: Any, stride: Any = ..., dilation: Any = ...) -> Tensor:
    """The adjoint of windows: (..., windows, size) added up into (..., *shape)."""

def fori_loop(
    lower: ArrayLike, upper: ArrayLike, body_fn: Callable[[Any, Any], Any], init: Tree
) -> Tree:
    """x = body_fn(i, x) for i from lower up to upper, starting from init."""

def frame(x: ArrayLike, size: Size, hop: Size) -> Tensor:
    """The pieces of `size` elements along the last axis that start every `hop` elements."""

def from_bits(x: ArrayLike) -> Tensor:
    """The float that bits make: u32 gives f32, u64 gives f64."""

def from_matvec(
    f: Any,
    shape: Any,
    adjoint: Any | None = ...,
    dtype: Any = ...,
    flags: Iterable[str] = ...,
    params: Any = ...,
) -> Operator:
    """The operator that f applies to vectors of shape[1] elements: f(x), or f(x, *params)."""

def fromfunction(f: Callable[..., Any], shape: Sequence[int], dtype: Any = ...) -> Any:
    """f of the coordinates of every place: fromfunction(f, (2, 3)) is f(i, j) of two 2 x 3 tensors."""

def full(shape: Any, value: ArrayLike, dtype: Any = ...) -> Tensor:
    """A tensor of this shape filled with one number, or with an array that is repeated along its axes."""

def full_like(x: ArrayLike, value: ArrayLike, dtype: Any = ...) -> Tensor:
    """A tensor of x's shape, and dtype unless given, filled with one number; on a mesh, in x's layout."""

def function(a: Any, f: Any) -> Operator:
    """f(A) for a function f of numbers, given as ops on tensors or as `exp`, `log`, `sqrt`, `sign`."""

def funm(x: ArrayLike, f: Any) -> Tensor:
    """V diag(f(w)) V^H for the Hermitian part of x, whose eigenvalues are w and eigenvectors V."""

def gamma(x: ArrayLike) -> Tensor:
    """Gamma function."""

def gammainc(a: ArrayLike, x: ArrayLike) -> Tensor:
    """The lower incomplete gamma function divided by gamma(a)."""

def gammaincc(a: ArrayLike, x: ArrayLike) -> Tensor:
    """The upper incomplete gamma function divided by gamma(a)."""

def gammaln(x: ArrayLike) -> Tensor:
    """Logarithm of the absolute value of the gamma function."""

def gammasgn(x: ArrayLike) -> Tensor:
    """The sign of the gamma function: -1 between -1 and 0, and so on; NaN at whole numbers below 0."""

def gather(x: ArrayLike, *indices: ArrayLike, axes: Sequence[int] | None = ...) -> Tensor:
    """The elements of x at indices along axes: axes of the indices first, then the others of x."""

def gaussian_nll(
    mean: ArrayLike,
    targets: ArrayLike,
    var: ArrayLike,
    full: bool = ...,
    eps: float = ...,
    reduction: str = ...,
) -> Tensor:
    """(log var + (targets - mean)**2 / var) / 2, with variances of at least eps; full adds log(2 pi) / 2."""

def gcd(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The greatest common divisor of integers."""

def gdtr(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Tensor:
    """The distribution function of the gamma distribution of rate a and shape b."""

def gdtrc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Tensor:
    """1 - gdtr(a, b, x)."""

def ge(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x is at least y."""

def geglu(x: ArrayLike, axis: int = ...) -> Tensor:
    """The gelu of the first half of x along an axis times the second half."""

def gelu(x: ArrayLike, approximate: str = ...) -> Tensor:
    """x times the normal distribution function of x; approximate="tanh" replaces erf by a tanh."""

def geomspace(start: ArrayLike, stop: ArrayLike, num: Any = ..., endpoint: bool = ...) -> Tensor:
    """Numbers with even ratios from start to stop, both positive or both negative."""

def global_avg_pool(x: ArrayLike, keepdims: bool = ...) -> Tensor:
    """The mean of each channel over all its positions."""

def global_max_pool(x: ArrayLike, keepdims: bool = ...) -> Tensor:
    """The largest element of each channel over all its positions."""

def glu(x: ArrayLike, axis: int = ...) -> Tensor:
    """The first half of x along an axis times the sigmoid of the second half."""

def gmres(
    a: Any,
    b: Any,
    *,
    x0: Any = ...,
    precondition: Any = ...,
    restart: int = ...,
    tol: float | None = ...,
    atol: float = ...,
    limit: int | None = ...,
    check: bool = ...,
    progress: Any = ...,
) -> Solution:
    """Solve A x = b by generalised minimal residuals, started anew every `restart` steps: any A."""

def gradient(f: ArrayLike, *spacing: Any, axis: AxisLike = ..., edge_order: int = ...) -> Any:
    """The slope of samples along each axis, or along one, by differences of neighbours."""

def greater(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x is greater than y."""

def greater_equal(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x is at least y."""

def grid_sample(
    x: ArrayLike, grid: ArrayLike, mode: str = ..., padding: str = ..., align_corners: bool = ...
) -> Tensor:
    """x (batch, channels, ...) read at a grid (batch, ..., rank) of coordinates from -1 to 1."""

def groupnorm(
    x: ArrayLike, groups: Size, gain: ArrayLike = ..., bias: ArrayLike = ..., eps: float = ...
) -> Tensor:
    """layernorm over each group of channels with its positions, times gain plus bias per channel."""

def gt(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x is greater than y."""

def gumbel_softmax(
    key: Any, logits: ArrayLike, tau: float = ..., hard: bool = ..., axis: int = ...
) -> Tensor:
    """A sample of a relaxed one-hot vector; hard: one-hot, with the slope of the relaxed one."""

def hamming(n: int) -> Tensor:
    """The Hamming window of n points."""

def hann_window(n: Size, periodic: bool = ..., dtype: Any = ...) -> Tensor:
    """sin(pi k / n)**2, or over n - 1 when not periodic: the window of Julius von Hann."""

def hanning(n: int) -> Tensor:
    """The Hann window of n points, both ends 0."""

def hard_sigmoid(x: ArrayLike) -> Tensor:
    """(x + 3) / 6, but at least 0 and at most 1."""

def hard_silu(x: ArrayLike) -> Tensor:
    """x times hardsigmoid(x)."""

def hard_swish(x: ArrayLike) -> Tensor:
    """x times hardsigmoid(x)."""

def hard_tanh(x: ArrayLike, low: float = ..., high: float = ...) -> Tensor:
    """x, but at least low and at most high; the derivative at both ends is 0."""

def hardshrink(x: ArrayLike, width: float = ...) -> Tensor:
    """x where it is further than width from 0, 0 elsewhere."""

def hardsigmoid(x: ArrayLike) -> Tensor:
    """(x + 3) / 6, but at least 0 and at most 1."""

def hardswish(x: ArrayLike) -> Tensor:
    """x times hardsigmoid(x)."""

def hardtanh(x: ArrayLike, low: float = ..., high: float = ...) -> Tensor:
    """x, but at least low and at most high; the derivative at both ends is 0."""

def heaviside(x: ArrayLike, at_zero: ArrayLike) -> Tensor:
    """0 below zero, 1 above, and at_zero there."""

def hessian(f: Any, x: Any) -> Operator:
    """The second derivative of a scalar function f at x, on flattened tensors."""

def hfft(x: ArrayLike, n: Size | None = ..., axis: int = ..., norm: str | None = ...) -> Tensor:
    """The real Fourier transform of a signal of which x is the first half, the other conjugate."""

def hinge(
    scores: ArrayLike, targets: ArrayLike, margin: float = ..., reduction: str = ...
) -> Tensor:
    """max(0, margin - targets * scores) with targets -1 or 1."""

def hinge_embedding(
    x: ArrayLike, targets: ArrayLike, margin: float = ..., reduction: str = ...
) -> Tensor:
    """x where the target is 1, max(0, margin - x) where it is -1: x is a distance."""

def hinge_embedding_loss(
    x: ArrayLike, targets: ArrayLike, margin: float = ..., reduction: str = ...
) -> Tensor:
    """x where the target is 1, max(0, margin - x) where it is -1: x is a distance."""

def histogram(
    x: ArrayLike,
    bins: Any = ...,
    range: tuple[float, float] | None = ...,
    weights: ArrayLike = ...,
    density: bool = ...,
) -> tuple[Tensor, Tensor]:
    """How many elements fall in each bin, and the edges; the last bin has both of its edges."""

def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: Any = ...,
    range: Any = ...,
    weights: ArrayLike = ...,
    density: bool = ...,
) -> tuple[Tensor, Tensor, Tensor]:
    """How many pairs (x, y) fall in each box of a grid, and the edges along both axes."""

def histogram_bin_edges(
    x: ArrayLike, bins: Any = ..., range: tuple[float, float] | None = ...
) -> Tensor:
    """The edges of the bins of histogram: as given, or evenly from the least to the largest element."""

def histogramdd(
    points: ArrayLike,
    bins: Any = ...,
    range: Any = ...,
    weights: ArrayLike = ...,
    density: bool = ...,
) -> tuple[Tensor, list[Tensor]]:
    """How many of the points, (number, axes), fall in each box of a grid, and the edges along each axis."""

def host_call(*values: ArrayLike, to: Callable[..., Any], shapes: Any, dtypes: Any) -> Any:
    """What to(*values) gives for NumPy arrays, as arrays of these shapes and dtypes."""

def hsplit(x: ArrayLike, parts: int | Sequence[int]) -> list[Tensor]:
    """split along the second axis, a vector along its only one."""

def hstack(xs: Sequence[ArrayLike]) -> Tensor:
    """Join along the second axis, vectors along their only one."""

def huber(x: ArrayLike, y: ArrayLike, delta: float = ..., reduction: str = ...) -> Tensor:
    """Half the squared difference up to delta, and delta times the absolute one beyond."""

def hypot(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Length of the vector (x, y)."""

def i0(x: ArrayLike) -> Tensor:
    """The modified Bessel function of order 0."""

def i0e(x: ArrayLike) -> Tensor:
    """exp(-|x|) times the modified Bessel function of order 0."""

def i1(x: ArrayLike) -> Tensor:
    """The modified Bessel function of order 1."""

def i1e(x: ArrayLike) -> Tensor:
    """exp(-|x|) times the modified Bessel function of order 1."""

def idct(
    x: ArrayLike, type: int = ..., n: Size | None = ..., axis: int = ..., norm: str | None = ...
) -> Tensor:
    """The inverse of dct of the same type and norm."""

def identity(n: Any, dtype: Any = ...) -> Tensor:
    """The identity matrix as a tensor."""

def idwt(low: ArrayLike, high: ArrayLike, wavelet: str = ..., axis: int = ...) -> Tensor:
    """The inverse of dwt: what has these averages and details."""

def ifft(x: ArrayLike, n: Size | None = ..., axis: int = ..., norm: str | None = ...) -> Tensor:
    """The inverse of fft along an axis."""

def ifft2(
    x: ArrayLike, s: Sizes | None = ..., axes: AxisLike = ..., norm: str | None = ...
) -> Tensor:
    """The inverse of fft2."""

def ifftn(
    x: ArrayLike, s: Sizes | None = ..., axes: AxisLike = ..., norm: str | None = ...
) -> Tensor:
    """The inverse of fftn."""

def ifftshift(x: ArrayLike, axes: AxisLike = ...) -> Tensor:
    """The inverse of fftshift."""

def igamma(a: ArrayLike, x: ArrayLike) -> Tensor:
    """The lower incomplete gamma function divided by gamma(a)."""

def igammac(a: ArrayLike, x: ArrayLike) -> Tensor:
    """The upper incomplete gamma function divided by gamma(a)."""

def ihfft(x: ArrayLike, n: Size | None = ..., axis: int = ..., norm: str | None = ...) -> Tensor:
    """The inverse of hfft."""

def imag(x: ArrayLike) -> Tensor:
    """Imaginary part."""

def index(x: Value, key: Any) -> Tensor:
    """x[key]: numbers, slices, new axes, integer tensors and masks, as in NumPy."""

def indices(shape: Sequence[int]) -> Tensor:
    """The index along each axis of every element of a shape, one after another."""

def inner(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The sum of products over the last axes."""

def insert(x: ArrayLike, index: int, values: ArrayLike, axis: int | None = ...) -> Tensor:
    """values before the element at an index."""

def instancenorm(
    x: ArrayLike, gain: ArrayLike = ..., bias: ArrayLike = ..., eps: float = ...
) -> Tensor:
    """layernorm over the positions of each channel: groupnorm with as many groups as channels."""

def interp(
    x: ArrayLike, xp: ArrayLike, fp: ArrayLike, left: ArrayLike = ..., right: ArrayLike = ...
) -> Tensor:
    """fp at x, linear between the rising points xp; beyond them its ends, or left and right."""

def interpolate(
    x: ArrayLike, size: Any = ..., scale: Any = ..., mode: str = ..., align_corners: bool = ...
) -> Tensor:
    """resize under its other name."""

def intersect1d(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The elements of both, in order, once each; its size depends on the data."""

def inv(x: ArrayLike) -> Tensor:
    """The inverse of square matrices."""

def inv_boxcox(y: ArrayLike, power: ArrayLike) -> Tensor:
    """The x of which y = boxcox(x, power)."""

def inv_boxcox1p(y: ArrayLike, power: ArrayLike) -> Tensor:
    """The x of which y = boxcox1p(x, power)."""

def inverse(a: Any) -> Operator:
    """The inverse of a square operator; it is applied by solving."""

def invert(x: ArrayLike) -> Tensor:
    """Every bit flipped."""

def iota(shape: Any, axis: int = ..., dtype: Any = ...) -> Tensor:
    """Each element's own index along an axis."""

def irfft(x: ArrayLike, n: Size | None = ..., axis: int = ..., norm: str | None = ...) -> Tensor:
    """The real tensor of n elements, 2 * (m - 1) unless given, whose rfft is x."""

def irfft2(
    x: ArrayLike, s: Sequence[int] | None = ..., axes: Sequence[int] = ..., norm: str | None = ...
) -> Tensor:
    """The inverse of rfft2."""

def irfftn(
    x: ArrayLike, s: Sizes | None = ..., axes: AxisLike = ..., norm: str | None = ...
) -> Tensor:
    """The inverse of rfftn."""

def is_finite(x: ArrayLike) -> Tensor:
    """Whether x is neither infinite nor NaN."""

def is_unitary(a: Any, *, tol: float | None = ...) -> Tensor:
    """Whether A.H @ A is the identity, exactly up to tol for small operators, else on random vectors."""

def isclose(
    x: ArrayLike, y: ArrayLike, rtol: float = ..., atol: float = ..., equal_nan: bool = ...
) -> Tensor:
    """Where |x - y| <= atol + rtol |y|; infinities are close to themselves."""

def iscomplex(x: ArrayLike) -> Tensor:
    """Where the imaginary part is not 0."""

def isfinite(x: ArrayLike) -> Tensor:
    """Whether x is neither infinite nor NaN."""

def isin(x: ArrayLike, among: ArrayLike, *, invert: bool = ...) -> Tensor:
    """Whether each element of x equals one of the others."""

def isinf(x: ArrayLike) -> Tensor:
    """Whether x is infinite."""

def isnan(x: ArrayLike) -> Tensor:
    """Whether x is not a number."""

def isneginf(x: ArrayLike) -> Tensor:
    """Where x is negative infinity."""

def isposinf(x: ArrayLike) -> Tensor:
    """Where x is positive infinity."""

def isreal(x: ArrayLike) -> Tensor:
    """Where the imaginary part is 0."""

def istft(
    x: ArrayLike,
    window: ArrayLike,
    hop: Size | None = ...,
    center: bool = ...,
    norm: str | None = ...,
    length: Size | None = ...,
    onesided: bool = ...,
) -> Tensor:
    """The signal of `length` elements whose stft is nearest to x; onesided for a real signal."""

def jacobi(a: Any) -> Operator:
    """The inverse of the diagonal of A."""

def jacobian(f: Any, x: Any) -> Operator:
    """The derivative of f at x, on flattened tensors: one application is one jvp, of the adjoint a vjp."""

def kaiser(n: int, beta: float) -> Tensor:
    """The Kaiser window of n points."""

def kl_div(log_q: ArrayLike, p: ArrayLike, log_target: bool = ..., reduction: str = ...) -> Tensor:
    """p * (log p - log q), element by element before the reduction; log_target: p is log p."""

def kron(a: ArrayLike, b: ArrayLike) -> Tensor:
    """Kronecker product: every element of a times the whole of b."""

def kronecker(*factors: Any) -> Operator:
    """The Kronecker product: every element of A times the whole of B; x is read as a matrix by rows."""

def kronsum(*terms: Any) -> Operator:
    """The Kronecker sum A (x) I + I (x) B of square operators."""

def l1_loss(x: ArrayLike, y: ArrayLike, reduction: str = ...) -> Tensor:
    """Absolute value of the difference: mae under its other name."""

def l2norm(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Euclidean norm over axes."""

def lanczos(a: Any, v: Any, steps: int) -> Lanczos:
    """Steps of Lanczos from v for a self-adjoint A: basis, diagonal, and what is beside it."""

def laplacian(shape: Any, spacing: Any = ..., boundary: str = ..., dtype: Any = ...) -> Operator:
    """The sum of second differences along all axes; it is divergence @ gradient."""

def layernorm(
    x: ArrayLike,
    gain: ArrayLike = ...,
    bias: ArrayLike = ...,
    axis: AxisLike = ...,
    eps: float = ...,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) along axes, times gain plus bias, which have those axes."""

def layernorm_safe(
    x: ArrayLike,
    gain: ArrayLike = ...,
    bias: ArrayLike = ...,
    axis: AxisLike = ...,
    eps: float = ...,
) -> Tensor:
    """layernorm that no finite row overflows; a constant row gives the bias, even for eps=0."""

def lcm(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The least common multiple of integers."""

def ldexp(x: ArrayLike, exponent: ArrayLike) -> Tensor:
    """x times 2 to an integer power."""

def le(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x is at most y."""

def leaky_relu(x: ArrayLike, slope: float = ...) -> Tensor:
    """x where it is positive, slope times x elsewhere."""

def left_shift(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Bits moved up."""

def less(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x is less than y."""

def less_equal(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x is at most y."""

def lexsort(keys: Sequence[ArrayLike], axis: int = ...) -> Tensor:
    """The order by the last key, ties by the one before, and so on."""

def lgamma(x: ArrayLike) -> Tensor:
    """Logarithm of the absolute value of the gamma function."""

def linear(x: ArrayLike, w: ArrayLike, bias: ArrayLike = ...) -> Tensor:
    """x @ w.mT + bias: w is (out, in), as PyTorch keeps it."""

def linear_recurrence(a: ArrayLike, b: ArrayLike, axis: int = ..., reverse: bool = ...) -> Tensor:
    """y[i] = a[i] * y[i-1] + b[i] along an axis, starting from 0."""

def linspace(
    start: ArrayLike, stop: ArrayLike, num: Any, dtype: Any = ..., endpoint: bool = ...
) -> Tensor:
    """So many numbers evenly spaced from start to stop, along a new first axis."""

def local_response_norm(
    x: ArrayLike, size: int, alpha: float = ..., beta: float = ..., k: float = ...
) -> Tensor:
    """x over (k + alpha times the mean of squares of `size` neighbouring channels) to the power beta."""

def log(x: ArrayLike) -> Tensor:
    """Natural logarithm."""

def log10(x: ArrayLike) -> Tensor:
    """Logarithm to base 10."""

def log1mexp(x: ArrayLike) -> Tensor:
    """log(1 - exp(-x)) for positive x."""

def log1p(x: ArrayLike) -> Tensor:
    """log(1 + x), precise near 0."""

def log2(x: ArrayLike) -> Tensor:
    """Logarithm to base 2."""

def log_expit(x: ArrayLike) -> Tensor:
    """Logarithm of sigmoid(x), without overflow."""

def log_ndtr(x: ArrayLike) -> Tensor:
    """The logarithm of ndtr, exact far to the left too."""

def log_sigmoid(x: ArrayLike) -> Tensor:
    """Logarithm of sigmoid(x), without overflow."""

def log_softmax(x: ArrayLike, axis: AxisLike = ...) -> Tensor:
    """Logarithm of softmax(x): x less its logsumexp along axes."""

def logaddexp(x: ArrayLike, y: ArrayLike) -> Tensor:
    """log(exp(x) + exp(y)) without overflow."""

def logaddexp2(x: ArrayLike, y: ArrayLike) -> Tensor:
    """log2(2^x + 2^y)."""

def logcumsumexp(x: ArrayLike, axis: int | None = ..., reverse: bool = ...) -> Tensor:
    """log of the running sum of exp(x) along an axis, without overflow."""

def logdet(a: Any) -> Tensor:
    """The logarithm of the absolute value of the determinant; -inf when it is zero."""

def logical_and(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether both are true."""

def logical_not(x: ArrayLike) -> Tensor:
    """Whether it is false."""

def logical_or(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether either is true."""

def logical_xor(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether just one is true."""

def logistic(x: ArrayLike) -> Tensor:
    """1 / (1 + exp(-x)) without overflow."""

def logit(p: ArrayLike) -> Tensor:
    """log(p / (1 - p))."""

def logm(x: ArrayLike) -> Tensor:
    """The logarithm of square matrices: expm(logm(x)) is x."""

def logmeanexp(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """The logarithm of the mean of exp(x)."""

def logsigmoid(x: ArrayLike) -> Tensor:
    """Logarithm of sigmoid(x), without overflow."""

def logspace(
    start: ArrayLike, stop: ArrayLike, num: Any = ..., endpoint: bool = ..., base: float = ...
) -> Tensor:
    """base to evenly spaced powers."""

def logsumexp(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """log(sum(exp(x))) over axes without overflow; -inf where every element is."""

def logsumexp_safe(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """logsumexp, with the derivative softmax_safe(x): zero for a row of -inf."""

def low_rank(u: Any, v: Any = ..., s: Any = ...) -> Operator:
    """U @ diag(S) @ V.H for thin U and V; V is U unless given, S is ones."""

def lp_pool(
    x: ArrayLike, size: Any, p: float = ..., stride: Any = ..., ceil_mode: bool = ...
) -> Tensor:
    """(sum of |x| ** p) ** (1 / p) over each window."""

def lsmr(
    a: Any,
    b: Any,
    *,
    damp: Any = ...,
    tol: float | None = ...,
    atol: float = ...,
    limit: int | None = ...,
    check: bool = ...,
    progress: Any = ...,
) -> Solution:
    """The shortest x that makes |A x - b| smallest, for any A; with damp, |A x - b|^2 + |damp x|^2."""

def lstsq(a: ArrayLike, b: ArrayLike, rtol: ArrayLike = ...) -> LeastSquares:
    """The shortest x among those that make a @ x - b shortest; b is a vector or matrices."""

def lt(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x is less than y."""

def lu(x: ArrayLike) -> tuple[Tensor, ...]:
    """(perm, L, U): rows perm of x are L @ U, with ones on the diagonal of L and pivots by size."""

def mae(x: ArrayLike, y: ArrayLike, reduction: str = ...) -> Tensor:
    """Absolute value of the difference."""

def margin_ranking(
    x: ArrayLike, y: ArrayLike, targets: ArrayLike, margin: float = ..., reduction: str = ...
) -> Tensor:
    """max(0, margin - targets * (x - y)): x ranks above y where the target is 1, below where -1."""

def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    tile_shape: tuple[int, int, int] | None = ...,
    schedule: Any = ...,
) -> Tensor:
    """Matrix product over the last two axes; the axes before them broadcast."""

def matrix_diag(x: ArrayLike, offset: int = ...) -> Tensor:
    """Square matrices with the last axis of x on a diagonal and zeros elsewhere."""

def matrix_exp(x: ArrayLike) -> Tensor:
    """The exponential of square matrices: the sum of x**k / k! over k."""

def matrix_function(x: ArrayLike, name: str) -> Tensor:
    """The principal `sqrt` or `log`, or the `sign`, of square matrices."""

def matrix_function_frechet(x: ArrayLike, e: ArrayLike, name: str) -> Tensor:
    """The derivative of matrix_function at x in the direction e."""

def matrix_norm(x: ArrayLike, ord: Any = ..., *, keepdims: bool = ...) -> Tensor:
    """Matrix norm: fro, nuc, 2 and -2 by singular values, 1, -1, inf and -inf by absolute sums."""

def matrix_power(x: ArrayLike, n: int) -> Tensor:
    """The product of n copies of a square matrix, or of its inverse when n is negative."""

def matrix_rank(x: ArrayLike, *, rtol: ArrayLike = ..., tol: ArrayLike = ...) -> Tensor:
    """How many singular values are above rtol times the largest, or above tol."""

def matrix_transpose(x: ArrayLike) -> Tensor:
    """x with its last two axes swapped."""

def matvec(a: ArrayLike, x: ArrayLike) -> Tensor:
    """Matrices times vectors, over the last axes."""

def max(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Largest element over axes; NaN if any is."""

def max_pool(
    x: ArrayLike,
    size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
) -> Tensor:
    """The largest element of each window; the stride is the window's size unless given."""

def max_pool1d(
    x: ArrayLike,
    size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
) -> Tensor:
    """max_pool over one spatial axis."""

def max_pool2d(
    x: ArrayLike,
    size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
) -> Tensor:
    """max_pool over two spatial axes."""

def max_pool3d(
    x: ArrayLike,
    size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
) -> Tensor:
    """max_pool over three spatial axes."""

def maximum(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The larger of two tensors; NaN if either is."""

def mean(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Arithmetic mean over axes."""

def median(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """The middle of the sorted elements, the mean of the two middle ones of an even number."""

def meshgrid(*xs: ArrayLike, indexing: str = ...) -> list[Tensor]:
    """Coordinates of a grid: one tensor per axis given; 'xy' swaps the first two axes, 'ij' not."""

def min(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Smallest element over axes; NaN if any is."""

def minimum(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The smaller of two tensors; NaN if either is."""

def minres(
    a: Any,
    b: Any,
    *,
    x0: Any = ...,
    precondition: Any = ...,
    tol: float | None = ...,
    atol: float = ...,
    limit: int | None = ...,
    check: bool = ...,
    progress: Any = ...,
) -> Solution:
    """Solve A x = b by minimal residuals; A is self-adjoint, the preconditioner positive."""

def mish(x: ArrayLike) -> Tensor:
    """x times tanh(softplus(x))."""

def mod(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Remainder with the sign of the divisor."""

def modf(x: ArrayLike) -> tuple[Tensor, Tensor]:
    """The fraction and the whole part, both with the sign of x."""

def moe_combine(rows: ArrayLike, order: ArrayLike, weights: ArrayLike) -> Tensor:
    """The rows of moe_dispatch in the order of tokens again, those of a token added with its weights."""

def moe_dispatch(
    tokens: ArrayLike, chosen: ArrayLike, *, experts: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of tokens sorted by expert, how many each expert has, and the order for moe_combine."""

def moe_router(scores: ArrayLike, top_k: int, normalise: bool = ...) -> tuple[Tensor, Tensor]:
    """Weights and numbers (tokens, top_k) of the likeliest experts, of scores (tokens, experts)."""

def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """x with axes moved to other places."""

def mse(x: ArrayLike, y: ArrayLike, reduction: str = ...) -> Tensor:
    """Square of the difference."""

def mul(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Product of two tensors, element by element."""

def multi_dot(xs: Sequence[ArrayLike]) -> Tensor:
    """A product of several matrices in the order that takes the fewest operations."""

def multi_margin(
    x: ArrayLike, labels: ArrayLike, p: int = ..., margin: float = ..., reduction: str = ...
) -> Tensor:
    """The sum over wrong classes of max(0, margin - x[label] + x[class]) ** p, over the number of classes."""

def multi_margin_loss(
    x: ArrayLike, labels: ArrayLike, p: int = ..., margin: float = ..., reduction: str = ...
) -> Tensor:
    """The sum over wrong classes of max(0, margin - x[label] + x[class]) ** p, over the number of classes."""

def multigammaln(a: ArrayLike, d: int) -> Tensor:
    """The logarithm of the gamma function of d dimensions."""

def multiply(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Product of two tensors, element by element."""

def nan_to_num(
    x: ArrayLike, nan: float = ..., posinf: float | None = ..., neginf: float | None = ...
) -> Tensor:
    """x with NaN and infinities replaced; infinities by the ends of the dtype where nothing is given."""

def nanargmax(x: ArrayLike, axis: int | None = ..., keepdims: bool = ...) -> Tensor:
    """Where the largest element that is a number is."""

def nanargmin(x: ArrayLike, axis: int | None = ..., keepdims: bool = ...) -> Tensor:
    """Where the least element that is a number is."""

def nancumprod(x: ArrayLike, axis: int | None = ...) -> Tensor:
    """The running product, NaN as 1."""

def nancumsum(x: ArrayLike, axis: int | None = ...) -> Tensor:
    """The running sum, NaN as 0."""

def nanmax(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """The largest element that is a number; NaN where there is none."""

def nanmean(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """The mean of the elements that are numbers."""

def nanmedian(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """median of the elements that are numbers."""

def nanmin(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """The least element that is a number; NaN where there is none."""

def nanpercentile(
    x: ArrayLike, q: ArrayLike, axis: AxisLike = ..., method: str = ..., keepdims: bool = ...
) -> Tensor:
    """percentile of the elements that are numbers."""

def nanprod(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """The product, NaN as 1."""

def nanquantile(
    x: ArrayLike, q: ArrayLike, axis: AxisLike = ..., method: str = ..., keepdims: bool = ...
) -> Tensor:
    """quantile of the elements that are numbers."""

def nanstd(
    x: ArrayLike, axis: AxisLike = ..., correction: float = ..., keepdims: bool = ...
) -> Tensor:
    """The standard deviation of the elements that are numbers."""

def nansum(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """The sum, NaN as 0."""

def nanvar(
    x: ArrayLike, axis: AxisLike = ..., correction: float = ..., keepdims: bool = ...
) -> Tensor:
    """The variance of the elements that are numbers."""

def native_channel_shuffle(x: ArrayLike, groups: int) -> Tensor:
    """The channels, axis 1, of all groups in turn."""

def nbdtr(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Tensor:
    """The chance of at most k failures before n successes of probability p."""

def nbdtrc(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Tensor:
    """1 - nbdtr(k, n, p)."""

def ndtr(x: ArrayLike) -> Tensor:
    """The distribution function of the normal distribution."""

def ndtri(p: ArrayLike) -> Tensor:
    """The x with ndtr(x) = p."""

def ne(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x differs from y."""

def neg(x: ArrayLike) -> Tensor:
    """Negation."""

def negative(x: ArrayLike) -> Tensor:
    """Negation."""

def nextafter(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The next representable number from x towards y."""

def nll_loss(
    log_probabilities: ArrayLike,
    labels: ArrayLike,
    axis: int = ...,
    reduction: str = ...,
    ignore_index: int | None = ...,
) -> Tensor:
    """-log_probabilities at the labelled class."""

def nonzero(x: ArrayLike, size: Any = ..., fill: int = ...) -> tuple[Tensor, ...]:
    """Indices of the nonzero elements, a tensor per axis; cut or filled up to `size` when given."""

def norm(x: ArrayLike, ord: Any = ..., axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """The norm of all elements, or along axes."""

def normalize(x: ArrayLike, p: float = ..., axis: int = ..., eps: float = ...) -> Tensor:
    """x divided by its p-norm along an axis, or by eps where that is larger."""

def not_equal(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Whether x differs from y."""

def nystrom(a: Any, rank: int, shift: float = ..., key: Any = ...) -> Operator:
    """A preconditioner for A + shift I from a random sketch of a positive A (Frangella et al. 2021)."""

def one_hot(indices: ArrayLike, size: Any, dtype: Any = ..., axis: int = ...) -> Tensor:
    """1 at each index along a new axis and 0 elsewhere; all 0 for an index outside the axis."""

def ones(shape: Any, dtype: Any = ...) -> Tensor:
    """A tensor of ones."""

def ones_like(x: ArrayLike, dtype: Any = ...) -> Tensor:
    """A tensor of ones of x's shape, and dtype unless given."""

def outer(a: ArrayLike, b: ArrayLike) -> Tensor:
    """All products of an element of vector a and one of vector b."""

def overlap_add(x: ArrayLike, hop: Size) -> Tensor:
    """The sum of frames laid out every `hop` elements: the transpose of frame."""

def packbits(x: ArrayLike, axis: int | None = ..., bitorder: str = ...) -> Tensor:
    """Eight zeros and ones after another along an axis as one u8; the end is filled with zeros."""

def pad(x: ArrayLike, width: Any, value: ArrayLike = ..., mode: str = ...) -> Tensor:
    """x with `width` elements (before, after) around each axis, of a value or by a mode its own."""

def pairwise_distance(
    x: ArrayLike, y: ArrayLike, p: float = ..., eps: float = ..., keepdims: bool = ...
) -> Tensor:
    """The p-norm of x - y + eps along the last axis."""

def partition(x: ArrayLike, kth: int, axis: int = ...) -> Tensor:
    """x sorted: smaller elements before the kth, larger ones after it."""

def pdist(x: ArrayLike, p: float = ...) -> Tensor:
    """The distances of all pairs of rows, (0, 1), (0, 2) ... (n - 2, n - 1)."""

def pdtr(k: ArrayLike, m: ArrayLike) -> Tensor:
    """The chance of at most k events of Poisson's distribution of mean m."""

def pdtrc(k: ArrayLike, m: ArrayLike) -> Tensor:
    """1 - pdtr(k, m)."""

def percentile(
    x: ArrayLike, q: ArrayLike, axis: AxisLike = ..., method: str = ..., keepdims: bool = ...
) -> Tensor:
    """quantile with q in percent."""

def perm(n: ArrayLike, k: ArrayLike) -> Tensor:
    """n (n - 1) ... (n - k + 1): the sequences of k among n; 0 where k > n or either is below 0."""

def permutation(p: Any, dtype: Any = ...) -> Operator:
    """The operator with (A @ x)[i] = x[p[i]]."""

def permute_dims(x: ArrayLike, axes: Sequence[int] | None = ...) -> Tensor:
    """x with its axes in another order; reversed when none is given."""

def piecewise(x: ArrayLike, conditions: Sequence[ArrayLike], functions: Sequence[Any]) -> Tensor:
    """The function, or number, of the last condition that holds; one more is for the rest, else 0."""

def pinv(x: ArrayLike, rtol: ArrayLike = ...) -> Tensor:
    """The pseudoinverse; singular values up to rtol times the largest count as zero."""

def pipeline(steps: Sequence[Any]) -> Any:
    """The first step, a value or a function of none, passed through the functions that follow."""

def pixel_shuffle(x: ArrayLike, factor: int) -> Tensor:
    """(..., c r^2, h, w) to (..., c, h r, w r): channels become pixels."""

def pixel_unshuffle(x: ArrayLike, factor: int) -> Tensor:
    """(..., c, h r, w r) to (..., c r^2, h, w): pixels become channels."""

def plus(*terms: Any) -> Operator:
    """The sum of operators: (A + B) @ x = A @ x + B @ x."""

def pmax(x: Any, axis_name: Names) -> Any:
    """The largest of each element of the tensors of x over the elements of the batch."""

def pmean(x: Any, axis_name: Names) -> Any:
    """The mean of the tensors of x over the elements of the batch."""

def pmin(x: Any, axis_name: Names) -> Any:
    """The smallest of each element of the tensors of x over the elements of the batch."""

def poch(z: ArrayLike, m: ArrayLike) -> Tensor:
    """gamma(z + m) / gamma(z)."""

def poisson_nll(
    x: ArrayLike, targets: ArrayLike, log_input: bool = ..., eps: float = ..., reduction: str = ...
) -> Tensor:
    """-log of a Poisson likelihood less log(targets!): exp(x) - targets * x, or of rates."""

def poly(roots: ArrayLike) -> Tensor:
    """The polynomial with these zeros, highest power first; of a square matrix, its characteristic one."""

def polyadd(p: ArrayLike, q: ArrayLike) -> Tensor:
    """The sum of two polynomials."""

def polyder(p: ArrayLike, m: int = ...) -> Tensor:
    """The m-th derivative of a polynomial."""

def polydiv(p: ArrayLike, q: ArrayLike) -> tuple[Tensor, Tensor]:
    """The quotient and the remainder of polynomials, highest power first; q starts with no 0."""

def polyfit(x: ArrayLike, y: ArrayLike, degree: int, w: ArrayLike = ...) -> Tensor:
    """The polynomial of least squares through points, with weights w."""

def polygamma(order: int, x: ArrayLike) -> Tensor:
    """Derivative of digamma of this order, 0 for digamma itself."""

def polyint(p: ArrayLike, m: int = ..., k: float = ...) -> Tensor:
    """The m-th antiderivative of a polynomial, with the constant k at each step."""

def polymul(p: ArrayLike, q: ArrayLike) -> Tensor:
    """The product of two polynomials."""

def polysub(p: ArrayLike, q: ArrayLike) -> Tensor:
    """The difference of two polynomials."""

def polyval(p: ArrayLike, x: ArrayLike) -> Tensor:
    """A polynomial at x, by Horner's rule."""

def population_count(x: ArrayLike) -> Tensor:
    """How many bits of |x| are 1, as u8."""

def positive(x: ArrayLike) -> Tensor:
    """The tensor itself."""

def pow(x: ArrayLike, y: ArrayLike) -> Tensor:
    """x to the power y; correctly rounded for 1, 2 and -1."""

def power(x: ArrayLike, y: ArrayLike) -> Tensor:
    """x to the power y; correctly rounded for 1, 2 and -1."""

def powm1(x: ArrayLike, y: ArrayLike) -> Tensor:
    """x ** y - 1 for x > 0, exact near 0."""

def ppermute(x: ArrayLike, axis_name: str, perm: Sequence[tuple[int, int]]) -> Tensor:
    """What element a sends to element b, for pairs (a, b) in perm; zeros where nothing comes."""

def prelu(x: ArrayLike, slope: ArrayLike) -> Tensor:
    """x where it is positive, slope times x elsewhere; the slope broadcasts to x."""

def prod(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Product over axes; integers are multiplied in 64 bits."""

def projector(u: Any, orthonormal: bool = ...) -> Operator:
    """The orthogonal projector onto the space of the columns of U, which must be independent."""

def pseudo_huber(delta: ArrayLike, r: ArrayLike) -> Tensor:
    """delta^2 (sqrt(1 + (r / delta)^2) - 1): a smooth Huber loss."""

def pseudoinverse(a: Any, rtol: float | None = ...) -> Operator:
    """The inverse of Moore and Penrose of an operator or of a SpectralOperator."""

def psi(x: ArrayLike) -> Tensor:
    """Derivative of lgamma."""

def psum(x: Any, axis_name: Names) -> Any:
    """The sum of the tensors of x over the elements of the batch."""

def psum_scatter(x: ArrayLike, axis_name: str) -> Tensor:
    """The sum of x over the elements of the batch, of which element i gets x[i]."""

def ptp(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """The range of values: max - min."""

def put_along_axis(x: ArrayLike, indices: ArrayLike, value: ArrayLike, axis: int = ...) -> Tensor:
    """x with values written, for each place of `indices`, at that index along an axis."""

def qkv_projection(
    x: Any, weight: Any, bias: Any = ..., *, heads: int, kv_heads: int | None = ...
) -> tuple[Any, Any, Any]:
    """Queries, keys and values (batch, heads, seq, dim) of x (batch, seq, width) by one product with weight (width, (heads + 2 kv_heads) dim)."""

def qr(x: ArrayLike, mode: str = ...) -> tuple[Tensor, ...]:
    """(Q, R) with Q @ R = x, orthonormal columns in Q and zeros below the diagonal of R."""

def quantile(
    x: ArrayLike, q: ArrayLike, axis: AxisLike = ..., method: str = ..., keepdims: bool = ...
) -> Tensor:
    """The numbers that a part q of the elements does not exceed; the axis of a vector q comes first."""

def rad2deg(x: ArrayLike) -> Tensor:
    """Radians as degrees."""

def radian(d: ArrayLike, m: ArrayLike, s: ArrayLike) -> Tensor:
    """Degrees, minutes and seconds as radians."""

def radians(x: ArrayLike) -> Tensor:
    """Degrees as radians."""

def ravel(x: ArrayLike) -> Tensor:
    """x as one axis."""

def ravel_multi_index(places: Sequence[ArrayLike], shape: Sequence[int]) -> Tensor:
    """The flat indices of places in a shape."""

def real(x: ArrayLike) -> Tensor:
    """Real part."""

def reciprocal(x: ArrayLike) -> Tensor:
    """One over x."""

def reconstruct(s: Any) -> Operator:
    """The operator U diag(S) V.H of a SpectralOperator."""

def rel_entr(x: ArrayLike, y: ArrayLike) -> Tensor:
    """x log(x / y), 0 where x is 0 and y >= 0, infinity where it is undefined."""

def relu(x: ArrayLike) -> Tensor:
    """The larger of x and 0."""

def relu6(x: ArrayLike) -> Tensor:
    """x, but at least 0 and at most 6."""

def rem(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Remainder with the sign of the dividend."""

def remainder(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Remainder with the sign of the divisor."""

def repeat(x: ArrayLike, repeats: ArrayLike, axis: int | None = ...) -> Tensor:
    """Each element along an axis (of the flat x when none is given) so many times in a row."""

def reshape(x: ArrayLike, shape: Any) -> Tensor:
    """x with its elements in the same order and another shape; -1 stands for what remains."""

def residual(x: ArrayLike, y: ArrayLike, dropout: float = ..., key: ArrayLike = ...) -> Tensor:
    """x + y, with elements of y dropped at this rate; a rate above 0 needs a key."""

def resize(
    x: ArrayLike, size: Any = ..., scale: Any = ..., mode: str = ..., align_corners: bool = ...
) -> Tensor:
    """x (batch, channels, ...) at other spatial sizes, given as sizes or as a scale."""

def resolvent(a: Any, z: Any) -> Operator:
    """(z I - A) inverse, for a z that is no eigenvalue of A."""

def rev(x: ArrayLike, axis: AxisLike = ...) -> Tensor:
    """x with the elements in reverse order along axes."""

def rfft(x: ArrayLike, n: Size | None = ..., axis: int = ..., norm: str | None = ...) -> Tensor:
    """The n // 2 + 1 first elements of fft of a real tensor; the others are their conjugates."""

def rfftfreq(n: Size, d: float = ..., dtype: Any = ...) -> Tensor:
    """The frequencies of rfft of n samples at spacing d: 0, 1, ..., n // 2 over n * d."""

def rfftn(
    x: ArrayLike, s: Sizes | None = ..., axes: AxisLike = ..., norm: str | None = ...
) -> Tensor:
    """rfft over the last of the axes and fft over the others."""

def rgamma(x: ArrayLike) -> Tensor:
    """1 / gamma(x), which is 0 at 0, -1, -2, ..."""

def right_shift(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Bits moved down, keeping the sign."""

def rint(x: ArrayLike, decimals: int = ...) -> Tensor:
    """Nearest whole number, ties to even."""

def rmsnorm(x: ArrayLike, gain: ArrayLike = ..., axis: AxisLike = ..., eps: float = ...) -> Tensor:
    """x / sqrt(mean(x * x) + eps) along axes, times gain, which has those axes."""

def rmsnorm_safe(
    x: ArrayLike, gain: ArrayLike = ..., axis: AxisLike = ..., eps: float = ...
) -> Tensor:
    """rmsnorm that no finite row overflows; a row of zeros gives zeros, even for eps=0."""

def roll(x: ArrayLike, shift: int | Sequence[int], axis: AxisLike = ...) -> Tensor:
    """x with elements moved along axes, those that leave one end entering at the other."""

def rollaxis(x: ArrayLike, axis: int, start: int = ...) -> Tensor:
    """An axis moved to just before the axis `start`."""

def roots(p: ArrayLike) -> Tensor:
    """The zeros of a polynomial, highest power first, whose first coefficient is not 0: complex numbers."""

def rope(x: ArrayLike, positions: ArrayLike = ..., base: float = ...) -> Tensor:
    """Rotary positions on (..., seq, dim): pairs of elements turned by an angle per position."""

def rot90(x: ArrayLike, k: int = ..., axes: Sequence[int] = ...) -> Tensor:
    """x turned by 90 degrees k times, from the first of two axes towards the second."""

def round(x: ArrayLike, decimals: int = ...) -> Tensor:
    """Nearest whole number, ties to even."""

def rsqrt(x: ArrayLike) -> Tensor:
    """One over the square root."""

def scale(a: Any, factor: Any) -> Operator:
    """The operator times a number; scale(2, A) and scale(A, 2) are the same."""

def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Tree,
    xs: Tree = ...,
    length: Size | None = ...,
    reverse: bool = ...,
    unroll: int | bool = ...,
) -> tuple[Tree, Tree]:
    """Carry a state along the first axis of xs: f(carry, x) -> (carry, y); the last carry and all y."""

def scatter(
    x: ArrayLike, value: ArrayLike, *indices: ArrayLike, axes: Sequence[int] | None = ...
) -> Tensor:
    """x with values written at indices along axes; the last one for a place stays."""

def scatter_add(
    x: ArrayLike, value: ArrayLike, *indices: ArrayLike, axes: Sequence[int] | None = ...
) -> Tensor:
    """x with values added at indices along axes, in the order of the indices."""

def scatter_max(
    x: ArrayLike, value: ArrayLike, *indices: ArrayLike, axes: Sequence[int] | None = ...
) -> Tensor:
    """x with elements at indices along axes raised to at least the values."""

def scatter_min(
    x: ArrayLike, value: ArrayLike, *indices: ArrayLike, axes: Sequence[int] | None = ...
) -> Tensor:
    """x with elements at indices along axes lowered to at most the values."""

def scatter_mul(
    x: ArrayLike, value: ArrayLike, *indices: ArrayLike, axes: Sequence[int] | None = ...
) -> Tensor:
    """x with elements at indices along axes multiplied by values, in the order of the indices."""

def sddmm(columns: ArrayLike, pointers: ArrayLike, a: ArrayLike, b: ArrayLike) -> Tensor:
    """The entries of a @ b at the places of a sparse matrix in CSR form, and no others."""

def searchsorted(
    x: ArrayLike, values: ArrayLike, side: str = ..., sorter: ArrayLike | None = ...
) -> Tensor:
    """Where values would be put into the sorted x: before equal elements (left) or after (right)."""

def segment_max(x: ArrayLike, ids: ArrayLike, *, count: int) -> Tensor:
    """The largest elements of the rows of x by segment; the least number where a segment is empty."""

def segment_min(x: ArrayLike, ids: ArrayLike, *, count: int) -> Tensor:
    """The smallest elements of the rows of x by segment; the largest number where a segment is empty."""

def segment_prod(x: ArrayLike, ids: ArrayLike, *, count: int) -> Tensor:
    """The products of the rows of x by segment."""

def segment_reduce(x: ArrayLike, ids: ArrayLike, *, count: int, reduction: str = ...) -> Tensor:
    """Fold the rows of x by segment: sum, prod, max, min, or mean, which is 0 where a segment is empty."""

def segment_sum(x: ArrayLike, ids: ArrayLike, *, count: int) -> Tensor:
    """The sums of the rows of x by segment: row i belongs to segment ids[i] of count."""

def select(index: Any, n: Any, dtype: Any = ...) -> Operator:
    """The operator that picks elements of a vector of n: (A @ x)[i] = x[index[i]]."""

def selu(x: ArrayLike) -> Tensor:
    """The scaled elu that keeps mean 0 and variance 1."""

def setdiff1d(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The elements of x that are not in y, in order, once each; its size depends on the data."""

def setxor1d(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The elements of one of both alone, in order, once each; its size depends on the data."""

def shift_left(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Bits moved up."""

def sigmoid(x: ArrayLike) -> Tensor:
    """1 / (1 + exp(-x)) without overflow."""

def sign(x: ArrayLike) -> Tensor:
    """-1, 0 or 1; x over its absolute value for complex x."""

def signbit(x: ArrayLike) -> Tensor:
    """Whether the sign bit is set."""

def signm(x: ArrayLike) -> Tensor:
    """The matrix sign: x times the inverse of the square root of x @ x."""

def silu(x: ArrayLike) -> Tensor:
    """x times sigmoid(x)."""

def sin(x: ArrayLike) -> Tensor:
    """Sine."""

def sinc(x: ArrayLike) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0."""

def sindg(x: ArrayLike) -> Tensor:
    """The sine of an angle in degrees, exact at multiples of 90."""

def singular_map(x: ArrayLike, f: Any) -> Tensor:
    """U diag(f(s)) Vh for x = U diag(s) Vh, where f(0) is 0."""

def sinh(x: ArrayLike) -> Tensor:
    """Hyperbolic sine."""

def sketch(key: Any, rows: Any, columns: Any, kind: str = ..., dtype: Any = ...) -> Operator:
    """A random operator S with E[S.H @ S] = I."""

def skew(a: Any) -> Operator:
    """The skew-adjoint part (A - A.H) / 2."""

def slice_(
    x: ArrayLike, start: Sequence[Any], stop: Sequence[Any], step: Sequence[int] | None = ...
) -> Tensor:
    """The part of x from start up to stop on each axis, every step-th element."""

def slogdet(x: ArrayLike) -> tuple[Tensor, ...]:
    """(sign, logabsdet) with det(x) = sign * exp(logabsdet), without overflow."""

def smooth_l1(x: ArrayLike, y: ArrayLike, beta: float = ..., reduction: str = ...) -> Tensor:
    """huber with delta = beta, over beta: slope 1 outside; the absolute difference for beta=0."""

def soft_margin(x: ArrayLike, targets: ArrayLike, reduction: str = ...) -> Tensor:
    """log(1 + exp(-targets * x)) with targets -1 or 1."""

def soft_margin_loss(x: ArrayLike, targets: ArrayLike, reduction: str = ...) -> Tensor:
    """log(1 + exp(-targets * x)) with targets -1 or 1."""

def soft_sign(x: ArrayLike) -> Tensor:
    """x / (1 + |x|)."""

def softmax(x: ArrayLike, axis: AxisLike = ...) -> Tensor:
    """exp(x) over its sum along axes."""

def softmax_safe(x: ArrayLike, axis: AxisLike = ...) -> Tensor:
    """softmax, but a row of -inf gives zeros and elements at +inf share their row equally."""

def softmin(x: ArrayLike, axis: AxisLike = ...) -> Tensor:
    """softmax(-x): the smallest elements weigh most."""

def softplus(x: ArrayLike, beta: float = ...) -> Tensor:
    """log(1 + exp(beta * x)) / beta, without overflow."""

def softshrink(x: ArrayLike, width: float = ...) -> Tensor:
    """x moved towards 0 by width, and 0 where it is within width of 0."""

def softsign(x: ArrayLike) -> Tensor:
    """x / (1 + |x|)."""

def solve(a: ArrayLike, b: ArrayLike) -> Tensor:
    """The x with a @ x = b; b is one vector when it has one axis, else a stack of matrices."""

def sort(x: ArrayLike, axis: int = ..., descending: bool = ..., stable: bool = ...) -> Tensor:
    """x sorted along an axis."""

def sparse(a: Any, shape: Any = ..., block: Any = ...) -> Operator:
    """A sparse matrix: of scipy.sparse, (values, columns, row starts) with a shape, or a NumPy matrix."""

def spectral(
    a: Any,
    k: int | None = ...,
    *,
    method: str | None = ...,
    which: str = ...,
    tol: float | None = ...,
    limit: int = ...,
    oversample: int = ...,
    key: Any = ...,
    check: bool = ...,
    progress: Any = ...,
) -> SpectralOperator:
    """Eigenvalues (eigh) of a self-adjoint operator, else singular values (svd), largest size first."""

def spectral_conv(x: ArrayLike, weights: ArrayLike) -> Tensor:
    """Convolve (batch, in, sizes) by complex weights (in, out, modes) of the lowest frequencies."""

def spectral_filter(s: Any, f: Callable[[Value], Any]) -> SpectralOperator:
    """f of the values of a SpectralOperator, or of the spectrum of an operator."""

def spectral_radius(a: Any, *, steps: int = ..., tol: float = ...) -> Tensor:
    """The largest absolute value of the eigenvalues of a square operator."""

def split(x: ArrayLike, parts: int | Sequence[int], axis: int = ...) -> tuple[Tensor, ...]:
    """x cut along an axis into this many equal parts, or into parts of these sizes."""

def split_qkv(qkv: Any, *, heads: int, kv_heads: int | None = ...) -> tuple[Any, Any, Any]:
    """Queries, keys and values (batch, heads, seq, dim) of one product (batch, seq, (heads + 2 kv_heads) dim)."""

def spmm(values: ArrayLike, columns: ArrayLike, pointers: ArrayLike, x: ArrayLike) -> Tensor:
    """The product A @ x of a sparse matrix in CSR form and a matrix; entries of a row are added in order."""

def sqrt(x: ArrayLike) -> Tensor:
    """Square root."""

def sqrtm(x: ArrayLike) -> Tensor:
    """The square root of square matrices whose eigenvalues have a positive real part."""

def square(x: ArrayLike) -> Tensor:
    """x times x."""

def squareplus(x: ArrayLike, b: float = ...) -> Tensor:
    """(x + sqrt(x^2 + b)) / 2, a smooth relu."""

def squeeze(x: ArrayLike, axis: AxisLike = ...) -> Tensor:
    """x without axes of size 1: those named, or all that are 1 whatever a symbolic size is."""

def stack(xs: Sequence[ArrayLike], axis: int = ...) -> Tensor:
    """Tensors of one shape joined along a new axis."""

def state_move(x: ArrayLike, to: str = ...) -> Tensor:
    """x, which a program wants in the memory of the host or of the device; on a CPU these are one."""

def state_prefetch(x: ArrayLike, into: str = ...) -> Tensor:
    """Ask for x, which is read soon, in a memory near to what computes; the result is 0."""

def state_write(
    held: ArrayLike, new: ArrayLike, first: ArrayLike, count: ArrayLike, wrap: bool = ...
) -> Tensor:
    """A cache with `count` new positions from `first` on; those past its room are left out, or wrap."""

def state_write_pages(
    pool: ArrayLike, new: ArrayLike, pages: ArrayLike, slots: ArrayLike
) -> Tensor:
    """A pool of pages with position i of sequence b written to slot slots[b, i] of page pages[b, i]."""

def std(
    x: ArrayLike, axis: AxisLike = ..., correction: float = ..., keepdims: bool = ...
) -> Tensor:
    """Standard deviation over axes: the square root of var, whose slope at equal elements is 0."""

def stdtr(v: ArrayLike, x: ArrayLike) -> Tensor:
    """The distribution function of Student's t with v degrees of freedom."""

def stencil(
    taps: Mapping[Any, float], shape: Any, boundary: str = ..., dtype: Any = ...
) -> Operator:
    """y[i] = sum of weight * x[i + offset] over the taps {offset: weight} on a grid of a shape."""

def stft(
    x: ArrayLike,
    window: ArrayLike,
    hop: Size | None = ...,
    center: bool = ...,
    norm: str | None = ...,
) -> Tensor:
    """The transforms of windowed frames, (..., frequency, frame): rfft of real x, else fft."""

def stochastic_logdet(
    a: Any,
    *,
    samples: int = ...,
    steps: int = ...,
    key: Any = ...,
    tol: float | None = ...,
    limit: int | None = ...,
) -> Estimate:
    """log det of a positive definite A by stochastic Lanczos quadrature (Ubaru et al. 2017)."""

def stochastic_trace(a: Any, *, samples: int = ..., key: Any = ..., method: str = ...) -> Estimate:
    """The trace of A from so many products: by Hutchinson (1990) or Hutch++ (Meyer et al. 2021)."""

def stop_gradient(x: ArrayLike) -> Tensor:
    """x, as a constant for differentiation."""

def sub(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Difference of two tensors."""

def subtract(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Difference of two tensors."""

def sum(x: ArrayLike, axis: AxisLike = ..., keepdims: bool = ...) -> Tensor:
    """Sum over axes; integers are summed in 64 bits."""

def svd(x: ArrayLike, full_matrices: bool = ...) -> tuple[Tensor, ...]:
    """(U, S, Vh) with U @ diag(S) @ Vh = x, S descending; U and Vh are square when full."""

def svdvals(x: ArrayLike) -> Tensor:
    """The singular values, descending."""

def swapaxes(x: ArrayLike, a: int, b: int) -> Tensor:
    """x with two axes swapped."""

def swiglu(x: ArrayLike, axis: int = ...) -> Tensor:
    """The silu of the first half of x along an axis times the second half."""

def swish(x: ArrayLike, beta: float = ...) -> Tensor:
    """x times sigmoid(beta * x)."""

def sym(a: Any) -> Operator:
    """The self-adjoint part (A + A.H) / 2."""

def take(x: ArrayLike, indices: ArrayLike, axis: int | None = ...) -> Tensor:
    """The elements of x at indices along an axis, or of the flat x when no axis is given."""

def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int = ...) -> Tensor:
    """For each place of `indices` the element of x at that index along an axis."""

def tan(x: ArrayLike) -> Tensor:
    """Tangent."""

def tandg(x: ArrayLike) -> Tensor:
    """The tangent of an angle in degrees."""

def tanh(x: ArrayLike) -> Tensor:
    """Hyperbolic tangent."""

def tanhshrink(x: ArrayLike) -> Tensor:
    """x - tanh(x)."""

def tensor(*factors: Any) -> Operator:
    """The tensor product of operators, which is their Kronecker product."""

def tensordot(a: ArrayLike, b: ArrayLike, axes: Any = ...) -> Tensor:
    """Sum of products over the last axes of a and the first of b, or over pairs of axes."""

def tensorinv(x: ArrayLike, ind: int = ...) -> Tensor:
    """The inverse of x for tensordot over its first ind axes."""

def tensorsolve(a: ArrayLike, b: ArrayLike) -> Tensor:
    """The x of tensordot(a, x, x.ndim) = b."""

def threshold(x: ArrayLike, level: float, value: float) -> Tensor:
    """x where it is above the level, the value elsewhere."""

def tile(x: ArrayLike, reps: Any) -> Tensor:
    """x laid side by side, so many times along each axis."""

def todense(a: Any) -> Tensor:
    """The matrix of an operator as a tensor."""

def toeplitz(c: Any, r: Any = ...) -> Operator:
    """The operator with the first column c and the first row r, whose first element is not read."""

def topk(x: ArrayLike, k: Size, axis: int = ..., largest: bool = ...) -> tuple[Tensor, ...]:
    """The k largest (or smallest) elements along an axis, in order, and their indices."""

def trace(x: ArrayLike, offset: int = ...) -> Tensor:
    """Sum of a diagonal of the matrices in the last two axes; integers are summed in 64 bits."""

def transpose(x: ArrayLike, axes: Sequence[int] | None = ...) -> Tensor:
    """x with its axes in another order; reversed when none is given."""

def trapezoid(y: ArrayLike, x: ArrayLike = ..., dx: float = ..., axis: int = ...) -> Tensor:
    """The integral by trapezoids along an axis."""

def tri(n: int, m: int | None = ..., k: int = ..., dtype: Any = ...) -> Tensor:
    """Ones on and below the k-th diagonal."""

def triangular(a: Any, lower: bool = ..., unit_diagonal: bool = ...) -> Operator:
    """The lower or upper triangle of a square matrix; the other elements are not read."""

def triangular_solve(
    a: ArrayLike, b: ArrayLike, lower: bool = ..., transpose: bool = ..., unit_diagonal: bool = ...
) -> Tensor:
    """The x with a @ x = b, or a.mT @ x = b, for the lower or upper triangle of a."""

def tridiagonal(lower: Any, main: Any, upper: Any) -> Operator:
    """The operator with three diagonals: n - 1 elements below the main one of n, n - 1 above it."""

def tridiagonal_solve(low: ArrayLike, main: ArrayLike, up: ArrayLike, b: ArrayLike) -> Tensor:
    """The x of a system with three diagonals, each of n elements, for the columns of b."""

def tril(x: ArrayLike, k: int = ...) -> Tensor:
    """The elements of matrices on and below the k-th diagonal, zeros elsewhere."""

def tril_indices(n: int, k: int = ..., m: int | None = ...) -> tuple[Tensor, Tensor]:
    """The rows and columns of the lower triangle."""

def tril_indices_from(x: ArrayLike, k: int = ...) -> tuple[Tensor, Tensor]:
    """The places on and below a diagonal of a matrix like x."""

def triplet_margin(
    anchor: ArrayLike,
    positive: ArrayLike,
    negative: ArrayLike,
    margin: float = ...,
    p: float = ...,
    eps: float = ...,
    reduction: str = ...,
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin), norms along the last axis."""

def triu(x: ArrayLike, k: int = ...) -> Tensor:
    """The elements of matrices on and above the k-th diagonal, zeros elsewhere."""

def triu_indices(n: int, k: int = ..., m: int | None = ...) -> tuple[Tensor, Tensor]:
    """The rows and columns of the upper triangle."""

def triu_indices_from(x: ArrayLike, k: int = ...) -> tuple[Tensor, Tensor]:
    """The places on and above a diagonal of a matrix like x."""

def true_divide(x: ArrayLike, y: ArrayLike) -> Tensor:
    """True quotient of two tensors."""

def trunc(x: ArrayLike) -> Tensor:
    """Whole part of x."""

def truncate(s: Any, k: int) -> SpectralOperator:
    """The k values of largest magnitude of a SpectralOperator, or of the spectrum of an operator."""

def undescribe(d: HeldDescriptor | TessOperatorDesc) -> Operator:
    """The operator that a descriptor tells of, with copies of its tensors."""

def unfold(
    x: ArrayLike, size: Any, dilation: Any = ..., padding: Any = ..., stride: Any = ...
) -> Tensor:
    """The windows of images (batch, channels, ...) as columns (batch, channels * window, windows)."""

def union1d(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The elements of either, in order, once each; its size depends on the data."""

def unique(x: ArrayLike) -> Tensor:
    """Distinct elements in ascending order; each NaN is distinct."""

def unique_all(x: ArrayLike) -> UniqueAll:
    """Distinct elements, their first places, the way back to x, and counts; each NaN is distinct."""

def unique_counts(x: ArrayLike) -> UniqueCounts:
    """Distinct elements and how often each occurs; each NaN is distinct."""

def unique_inverse(x: ArrayLike) -> UniqueInverse:
    """Distinct elements and the place of each element of x among them; each NaN is distinct."""

def unique_values(x: ArrayLike) -> Tensor:
    """Distinct elements in ascending order; each NaN is distinct."""

def unpack_ints(x: ArrayLike, bits: int = ..., axis: int = ..., signed: bool = ...) -> Tensor:
    """The numbers of 1, 2 or 4 bits in bytes as i32, one after the other along an axis."""

def unpackbits(
    x: ArrayLike, axis: int | None = ..., count: int | None = ..., bitorder: str = ...
) -> Tensor:
    """The bits of u8 numbers along an axis, as zeros and ones of u8; count keeps so many of them."""

def unravel_index(index: ArrayLike, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """The places of flat indices in a shape."""

def unstack(x: ArrayLike, axis: int = ...) -> tuple[Tensor, ...]:
    """The parts of x along an axis, without that axis."""

def unwrap(
    x: ArrayLike, discont: float | None = ..., axis: int = ..., period: float = ...
) -> Tensor:
    """Angles without jumps of more than half a period along an axis."""

def update(x: Value, key: Any, value: ArrayLike, how: str) -> Tensor:
    """x with x[key] set to a value, or combined with it by add, multiply, max or min."""

def vander(x: ArrayLike, n: int | None = ..., increasing: bool = ...) -> Tensor:
    """The powers of each element as a row, the highest first."""

def var(
    x: ArrayLike, axis: AxisLike = ..., correction: float = ..., keepdims: bool = ...
) -> Tensor:
    """Variance over axes; the sum of squares is divided by the count less the correction."""

def vdot(x: ArrayLike, y: ArrayLike) -> Tensor:
    """The sum of products of all elements, those of x conjugated."""

def vecdot(a: ArrayLike, b: ArrayLike, axis: int = ...) -> Tensor:
    """Sum of conj(a) * b along an axis; the other axes broadcast."""

def vecmat(x: ArrayLike, a: ArrayLike) -> Tensor:
    """Conjugated vectors times matrices, over the last axes."""

def vector_norm(
    x: ArrayLike, ord: float = ..., axis: AxisLike = ..., keepdims: bool = ...
) -> Tensor:
    """Norm of the elements over axes as one vector: (sum |x|**ord)**(1/ord)."""

def vsplit(x: ArrayLike, parts: int | Sequence[int]) -> list[Tensor]:
    """split along the first axis."""

def vstack(xs: Sequence[ArrayLike]) -> Tensor:
    """Join along the first axis; vectors are rows."""

def watch(x: ArrayLike, *values: ArrayLike, to: Callable[..., Any]) -> Tensor:
    """x, after calling to(*values) with NumPy arrays, also in compiled programs and their loops."""

def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Tensor:
    """x where the condition holds, y elsewhere."""

def while_loop(
    cond_fn: Callable[[Any], Any],
    body_fn: Callable[[Any], Any],
    init: Tree,
    bound: Size | None = ...,
) -> Tree:
    """Apply body_fn to the carry while cond_fn of it holds, at most `bound` times if it is given."""

def windows(x: ArrayLike, size: Any, stride: Any = ..., dilation: Any = ...) -> Tensor:
    """Windows over the last axes: (..., n) gives (..., windows, size); a number is for one axis."""

def xlog1py(x: ArrayLike, y: ArrayLike) -> Tensor:
    """x log(1 + y), 0 where x is 0 and y is a number."""

def xlogy(x: ArrayLike, y: ArrayLike) -> Tensor:
    """x log(y), 0 where x is 0 and y is a number."""

def zero(rows: Any, columns: Any = ..., dtype: Any = ...) -> Operator:
    """The operator that maps every vector to zero; square unless the columns are given."""

def zeros(shape: Any, dtype: Any = ...) -> Tensor:
    """A tensor of zeros."""

def zeros_like(x: ArrayLike, dtype: Any = ...) -> Tensor:
    """A tensor of zeros of x's shape, and dtype unless given."""

def zeta(x: ArrayLike, q: ArrayLike = ...) -> Tensor:
    """The Hurwitz zeta function, the sum of (k + q)^-x over k >= 0, for x > 1 and q > 0."""

def zetac(x: ArrayLike) -> Tensor:
    """Riemann's zeta function minus 1, for x > 1."""
