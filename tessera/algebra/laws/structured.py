"""The table of laws, continued: Fourier transforms, circulants, bands, triangles, Gram matrices."""

from __future__ import annotations

from tessera.algebra.laws.law import Law


def _and_identity(
    name: str, left: str, size: str, right: str, given: str, s: str = "s"
) -> tuple[Law, Law]:
    """The sums of a structured operator with the identity and with its multiples keep the structure."""
    return (
        Law(f"{name} and identity", f"{left} + eye({size}) -> {right.format(s='')}", given,
            first=True, drop=True),
        Law(f"{name} and multiple of identity", f"{left} + {s} * eye({size}) -> {right.format(s=f'{s} * ')}",
            f"{given}, {s}", first=True, drop=True),
    )  # fmt: skip


FOURIER = (
    Law("transform and back", "fft(f) @ fft(undo(f)) -> eye(n)", "f n transform", "roots", drop=True),
    Law("transform and adjoint", "fft(f) @ fft(turn(f)) -> gain(f) * eye(n)", "f n transform", "roots",
        drop=True),
    Law("transform twice", "fft(f) @ fft(f) -> gain(f) * permutation(mirror(f))", "f n transform", "roots",
        drop=True),
    Law("inverse of a transform", "inv(fft(f)) -> fft(undo(f))", "f n transform", "roots", drop=True),
    Law("adjoint of a transform", "fft(f).H -> fft(turn(f))", "f n transform", "roots", drop=True),
    Law("conjugate of a transform", "conj(fft(f)) -> fft(turn(f))", "f n transform", "roots", drop=True),
    Law("transpose of a transform", "fft(f).T -> fft(f)", "f n transform", "roots", drop=True),
    Law("diagonalisation of a circulant",
        "circulant(c) -> fft(back_from(n)) @ diag(fft(c)) @ fft(to(n))", "c n", "roots"),
    Law("diagonal between transforms",
        "fft(f) @ diag(d) @ fft(undo(f)) -> circulant(ifft(d))", "f n line back, d n", "roots"),
    Law("circulant between transforms",
        "fft(f) @ circulant(c) @ fft(undo(f)) -> diag(fft(c))", "f n line to, c n", "roots"),
    Law("circulant between transforms back",
        "fft(f) @ circulant(c) @ fft(undo(f)) -> diag(fft(reflect(c)))", "f n line back, c n", "roots"),
)  # fmt: skip

CIRCULANTS = (
    Law("product of circulants", "circulant(c) @ circulant(e) -> circulant(convolve(c, e))", "c n, e n",
        drop=True),
    Law("sum of circulants", "circulant(c) + circulant(e) -> circulant(c + e)", "c n, e n", first=True,
        drop=True),
    *_and_identity("circulant", "circulant(c)", "n", "circulant(c + {s}unit(c, line(0)))", "c n"),
    Law("multiple of a circulant", "s * circulant(c) -> circulant(s * c)", "c n, s", drop=True),
    Law("inverse of a circulant", "inv(circulant(c)) -> circulant(deconvolve(c))", "c n", drop=True),
    Law("adjoint of a circulant", "circulant(c).H -> circulant(conj(reflect(c)))", "c n", drop=True),
    Law("transpose of a circulant", "circulant(c).T -> circulant(reflect(c))", "c n", drop=True),
    Law("conjugate of a circulant", "conj(circulant(c)) -> circulant(conj(c))", "c n", drop=True),
)  # fmt: skip

BANDS = (
    Law("transpose of three diagonals", "tridiagonal(d, e, c).T -> tridiagonal(c, e, d)", "d l, e n, c l",
        drop=True),
    Law("adjoint of three diagonals", "tridiagonal(d, e, c).H -> tridiagonal(conj(c), conj(e), conj(d))",
        "d l, e n, c l", drop=True),
    Law("conjugate of three diagonals",
        "conj(tridiagonal(d, e, c)) -> tridiagonal(conj(d), conj(e), conj(c))",
        "d l, e n, c l", drop=True),
    Law("multiple of three diagonals", "s * tridiagonal(d, e, c) -> tridiagonal(s * d, s * e, s * c)",
        "d l, e n, c l, s", drop=True),
    Law("sum of three diagonals",
        "tridiagonal(d, e, c) + tridiagonal(b, a, u) -> tridiagonal(d + b, e + a, c + u)",
        "d l, e n, c l, b l, a n, u l", first=True, drop=True),
    Law("three diagonals and one", "tridiagonal(d, e, c) + diag(a) -> tridiagonal(d, e + a, c)",
        "d l, e n, c l, a n", first=True, drop=True),
    *_and_identity("three diagonals", "tridiagonal(d, e, c)", "n", "tridiagonal(d, e + {s}ones(e), c)",
                   "d l, e n, c l"),
)  # fmt: skip

PRODUCTS = (
    Law("three diagonals times a matrix", "tridiagonal(d, e, c) @ dense(b) -> dense(bands(d, e, c, b))",
        "d l, e n, c l, b n k", group="matrix"),
    Law("lower triangle times a matrix", "lower(a) @ dense(b) -> dense(below(a, b))", "a n n, b n k",
        group="matrix"),
    Law("upper triangle times a matrix", "upper(a) @ dense(b) -> dense(above(a, b))", "a n n, b n k",
        group="matrix"),
    Law("a matrix times a lower triangle", "dense(b) @ lower(a) -> dense(above(a.T, b.T).T)", "a n n, b k n",
        group="matrix"),
    Law("a matrix times an upper triangle", "dense(b) @ upper(a) -> dense(below(a.T, b.T).T)", "a n n, b k n",
        group="matrix"),
    Law("adjoint of a lower triangle", "lower(a).H -> upper(conj(a).T)", "a n n", drop=True),
    Law("adjoint of an upper triangle", "upper(a).H -> lower(conj(a).T)", "a n n", drop=True),
    Law("transpose of a lower triangle", "lower(a).T -> upper(a.T)", "a n n", drop=True),
    Law("transpose of an upper triangle", "upper(a).T -> lower(a.T)", "a n n", drop=True),
    Law("conjugate of a lower triangle", "conj(lower(a)) -> lower(conj(a))", "a n n", drop=True),
    Law("conjugate of an upper triangle", "conj(upper(a)) -> upper(conj(a))", "a n n", drop=True),
    Law("Gram matrix", "dense(conj(a).T) @ dense(a) -> dense(gram(a))", "a k n", group="matrix"),
    Law("Gram matrix of rows", "dense(a) @ dense(conj(a).T) -> dense(gram(conj(a).T))", "a n k",
        group="matrix"),
)  # fmt: skip

TOEPLITZ = (
    Law("sum of Toeplitz matrices", "toeplitz(c, m, n) + toeplitz(e, m, n) -> toeplitz(c + e, m, n)",
        "m int, n int, c z, e z", first=True, drop=True),
    *_and_identity("Toeplitz matrix", "toeplitz(c, n, n)", "n", "toeplitz(c + {s}unit(c, line(n - 1)), n, n)",
                   "n int, c z"),
    Law("multiple of a Toeplitz matrix", "s * toeplitz(c, m, n) -> toeplitz(s * c, m, n)",
        "m int, n int, c z, s", drop=True),
    Law("transpose of a Toeplitz matrix", "toeplitz(c, m, n).T -> toeplitz(flip(c), n, m)",
        "m int, n int, c z", drop=True),
    Law("adjoint of a Toeplitz matrix", "toeplitz(c, m, n).H -> toeplitz(conj(flip(c)), n, m)",
        "m int, n int, c z", drop=True),
    Law("conjugate of a Toeplitz matrix", "conj(toeplitz(c, m, n)) -> toeplitz(conj(c), m, n)",
        "m int, n int, c z", drop=True),
)  # fmt: skip

RINGS = (
    Law("product of periodic convolutions",
        "ring(d, s, o) @ ring(e, s, p) -> ring(rings(grid(d, s, o), grid(e, s, p)), s, origin(s))",
        "s grid, o offset, p offset, d kernel, e kernel", drop=True),
    Law("sum of periodic convolutions",
        "ring(d, s, o) + ring(e, s, p) -> ring(grid(d, s, o) + grid(e, s, p), s, origin(s))",
        "s grid, o offset, p offset, d kernel, e kernel", first=True, drop=True),
    *_and_identity("periodic convolution", "ring(d, s, o)", "count(s)",
                   "ring(grid(d, s, o) + {s}unit(grid(d, s, o), origin(s)), s, origin(s))",
                   "s grid, o offset, d kernel", "t"),
    Law("multiple of a periodic convolution", "t * ring(d, s, o) -> ring(t * d, s, o)",
        "s grid, o offset, d kernel, t", drop=True),
)  # fmt: skip

TRIANGLES = (
    Law("sum of lower triangles", "lower(a) + lower(b) -> lower(a + b)", "a n n, b n n", first=True,
        drop=True),
    Law("sum of upper triangles", "upper(a) + upper(b) -> upper(a + b)", "a n n, b n n", first=True,
        drop=True),
    *(
        law
        for x in ("lower", "upper")
        for law in _and_identity(f"{x} triangle", f"{x}(a)", "n", x + "(a + {s}identity(a))", "a n n")
    ),
    Law("multiple of a lower triangle", "s * lower(a) -> lower(s * a)", "a n n, s", group="matrix"),
    Law("multiple of an upper triangle", "s * upper(a) -> upper(s * a)", "a n n, s", group="matrix"),
    Law("product of lower triangles", "lower(a) @ lower(b) -> lower(below(a, tril(b)))", "a n n, b n n",
        group="matrix"),
    Law("product of upper triangles", "upper(a) @ upper(b) -> upper(above(a, triu(b)))", "a n n, b n n",
        group="matrix"),
)  # fmt: skip

SPARSE = (
    Law("sum of sparse matrices",
        "sparse(d, p, q, m, n) + sparse(e, r, t, m, n) -> sparse(join(d, e), both(p, r), both(q, t), m, n)",
        "m int, n int, p g m index, q g n index, d g, r h m index, t h n index, e h", first=True, drop=True),
    Law("multiple of a sparse matrix", "s * sparse(d, p, q, m, n) -> sparse(s * d, p, q, m, n)",
        "m int, n int, p g m index, q g n index, d g, s", drop=True),
    Law("product of sparse matrices",
        "sparse(d, p, q, m, k) @ sparse(e, r, t, k, n) -> sparse(picked(d, left(q, r)) * picked(e, right(q, "
        "r)), "
        "follow(left(q, r), p), follow(right(q, r), t), m, n)",
        "m int, k int, n int, p g m index, q g k index, d g, r h k index, t h n index, e h"),
    Law("rows of a sparse matrix", "diag(d) @ sparse(e, p, q, m, n) -> sparse(picked(d, p) * e, p, q, m, n)",
        "m int, n int, d m, p g m index, q g n index, e g", drop=True),
    Law("columns of a sparse matrix",
        "sparse(e, p, q, m, n) @ diag(d) -> sparse(e * picked(d, q), p, q, m, n)",
        "m int, n int, d n, p g m index, q g n index, e g", drop=True),
    Law("transpose of a sparse matrix", "sparse(d, p, q, m, n).T -> sparse(d, q, p, n, m)",
        "m int, n int, p g m index, q g n index, d g", drop=True),
    Law("adjoint of a sparse matrix", "sparse(d, p, q, m, n).H -> sparse(conj(d), q, p, n, m)",
        "m int, n int, p g m index, q g n index, d g", drop=True),
    Law("conjugate of a sparse matrix", "conj(sparse(d, p, q, m, n)) -> sparse(conj(d), p, q, m, n)",
        "m int, n int, p g m index, q g n index, d g", drop=True),
)  # fmt: skip

STRUCTURED: tuple[Law, ...] = (
    *FOURIER, *CIRCULANTS, *BANDS, *PRODUCTS, *TOEPLITZ, *RINGS, *TRIANGLES, *SPARSE,
)  # fmt: skip
