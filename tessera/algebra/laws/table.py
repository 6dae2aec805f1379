"""The table of laws.

Letters: A, B, C ... are operators, d and e vectors, a and b matrices, s and t numbers; what follows an
equation says of which sizes they are and which flags they need.
"""

from __future__ import annotations

from tessera.algebra.laws.law import Law
from tessera.algebra.laws.structured import STRUCTURED

# Adjoints, transposes and conjugates --------------------------------------------------------------


def _turned(name: str, equation: str, given: str) -> tuple[Law, ...]:
    """A law of adjoints with those of transposes and conjugates; ' marks what is turned.

    s' is the conjugate of s under an adjoint and a conjugate, and s itself under a transpose.
    """
    out = []
    for word, mark, plain in (
        ("adjoint", ".H", "conj({})"),
        ("transpose", ".T", "{}"),
        ("conjugate", None, "conj({})"),
    ):
        out.append(Law(f"{word} of {name}", _marked(equation, mark, plain), given, drop=True))
    return tuple(out)


def _marked(equation: str, mark: str | None, plain: str) -> str:
    """[X] stands for the turned operator X, <x> for turned data."""
    text = equation
    for letter in "stde":
        text = text.replace(f"<{letter}>", plain.format(letter))
    while "[" in text:
        start = text.rindex("[")
        stop = text.index("]", start)
        inner = text[start + 1 : stop]
        whole = f"conj({inner})" if mark is None else f"({inner}){mark}"
        text = text[:start] + whole + text[stop + 1 :]
    return text


TURNS = (
    Law("adjoint of an adjoint", "A.H.H -> A", "A m n", drop=True),
    Law("transpose of a transpose", "A.T.T -> A", "A m n", drop=True),
    Law("conjugate of a conjugate", "conj(conj(A)) -> A", "A m n", drop=True),
    Law("transpose of an adjoint", "A.H.T -> conj(A)", "A m n", drop=True),
    Law("conjugate of an adjoint", "conj(A.H) -> A.T", "A m n", drop=True),
    Law("adjoint of a transpose", "A.T.H -> conj(A)", "A m n", drop=True),
    Law("conjugate of a transpose", "conj(A.T) -> A.H", "A m n", drop=True),
    Law("adjoint of a conjugate", "conj(A).H -> A.T", "A m n", drop=True),
    Law("transpose of a conjugate", "conj(A).T -> A.H", "A m n", drop=True),
    Law("transpose of real numbers", "A.T -> A.H", "A m n real", drop=True),
    Law("conjugate of real numbers", "conj(A) -> A", "A m n real", drop=True),
    Law("self-adjoint", "A.H -> A", "A n n self_adjoint", drop=True),
    Law("symmetric", "A.T -> A", "A n n symmetric", drop=True),
    Law("adjoint of a product", "(A @ B).H -> B.H @ A.H", "A m k, B k n"),
    Law("transpose of a product", "(A @ B).T -> B.T @ A.T", "A m k, B k n"),
    Law("conjugate of a product", "conj(A @ B) -> conj(A) @ conj(B)", "A m k, B k n"),
    Law("product of adjoints", "A.H @ B.H -> (B @ A).H", "A k m, B n k", known=True),
    Law("half of a product of adjoints", "A.H @ B -> (B.H @ A).H", "A k m, B k n", known=True),
    Law("other half of a product of adjoints", "A @ B.H -> (B @ A.H).H", "A m k, B n k", known=True),
    *_turned("a sum", "[A + B] -> [A] + [B]", "A m n, B m n"),
    *_turned("a multiple", "[s * A] -> <s> * [A]", "A m n, s"),
    *_turned("a Kronecker product", "[kron(A, B)] -> kron([A], [B])", "A m n, B p q"),
    *_turned("a Kronecker sum", "[kronsum(A, B)] -> kronsum([A], [B])", "A m m, B n n"),
    *_turned("a direct sum", "[dsum(A, B)] -> dsum([A], [B])", "A m n, B p q"),
    *_turned("an inverse", "[inv(A)] -> inv([A])", "A n n"),
    *_turned("a power", "[power(A, k)] -> power([A], k)", "A n n, k int"),
    Law("adjoint of a row of blocks", "row(A, B).H -> column(A.H, B.H)", "A m n, B m q", drop=True),
    Law("transpose of a row of blocks", "row(A, B).T -> column(A.T, B.T)", "A m n, B m q", drop=True),
    Law("conjugate of a row of blocks", "conj(row(A, B)) -> row(conj(A), conj(B))", "A m n, B m q",
        drop=True),
    Law("adjoint of a column of blocks", "column(A, B).H -> row(A.H, B.H)", "A m n, B p n", drop=True),
    Law("transpose of a column of blocks", "column(A, B).T -> row(A.T, B.T)", "A m n, B p n", drop=True),
    Law("conjugate of a column of blocks", "conj(column(A, B)) -> column(conj(A), conj(B))", "A m n, B p n",
        drop=True),
    Law("adjoint of a permutation", "permutation(p).H -> permutation(back(p))", "p n table", drop=True),
    Law("transpose of a permutation", "permutation(p).T -> permutation(back(p))", "p n table", drop=True),
    Law("conjugate of a permutation", "conj(permutation(p)) -> permutation(p)", "p n table", drop=True),
    *_turned("a diagonal", "[diag(d)] -> diag(<d>)", "d n"),
    *_turned("the identity", "[eye(n)] -> eye(n)", "n int"),
    Law("adjoint of zero", "zero(m, n).H -> zero(n, m)", "m int, n int", drop=True),
    Law("transpose of zero", "zero(m, n).T -> zero(n, m)", "m int, n int", drop=True),
    Law("conjugate of zero", "conj(zero(m, n)) -> zero(m, n)", "m int, n int", drop=True),
)  # fmt: skip

# Identity, zero, idempotence, unitary operators ----------------------------------------------------

UNITS = (
    Law("identity on the left", "eye(m) @ A -> A", "A m n", drop=True),
    Law("identity on the right", "A @ eye(n) -> A", "A m n", drop=True),
    Law("zero on the left", "zero(m, k) @ A -> zero(m, n)", "m int, A k n", drop=True),
    Law("zero on the right", "A @ zero(k, n) -> zero(m, n)", "n int, A m k", drop=True),
    Law("sum with zero", "A + zero(m, n) -> A", "A m n", first=True, drop=True),
    Law("multiple of zero", "s * zero(m, n) -> zero(m, n)", "s, m int, n int", drop=True),
    Law("zero times", "0 * A -> zero(m, n)", "A m n", drop=True),
    Law("projector", "A @ A -> A", "A n n projector", drop=True),
    Law("orthogonal columns", "A.H @ A -> eye(n)", "A m n orthogonal_columns", drop=True),
    Law("orthogonal rows", "A @ A.H -> eye(m)", "A m m unitary", drop=True),
)

# Multiples, sums and products ---------------------------------------------------------------------

LINEAR = (
    Law("multiple of a multiple", "s * (t * A) -> (s * t) * A", "A m n, s, t", drop=True),
    Law("multiple of a left factor", "(s * A) @ B = s * (A @ B)", "A m k, B k n, s"),
    Law("multiple of a right factor", "A @ (s * B) = s * (A @ B)", "A m k, B k n, s"),
    Law("common multiple", "s * A + s * B = s * (A + B)", "A m n, B m n, s"),
    Law("like terms", "s * A + t * A -> (s + t) * A", "A m n, s, t", first=True, drop=True),
    Law("one more", "A + s * A -> (1 + s) * A", "A m n, s", first=True, drop=True),
    Law("twice", "A + A -> 2 * A", "A m n", first=True, drop=True),
    Law("associativity", "A @ (B @ C) = (A @ B) @ C", "A m k, B k p, C p n"),
    Law("common left factor", "A @ B + A @ C = A @ (B + C)", "A m k, B k n, C k n"),
    Law("common right factor", "A @ C + B @ C = (A + B) @ C", "A m k, B m k, C k n"),
    Law("left factor alone", "A @ B + A -> A @ (B + eye(n))", "A m n, B n n"),
    Law("right factor alone", "B @ A + A -> (B + eye(m)) @ A", "A m n, B m m"),
)

# Kronecker products -------------------------------------------------------------------------------

KRONECKER = (
    Law("mixed product", "kron(A, B) @ kron(C, D) = kron(A @ C, B @ D)", "A m k, B p q, C k n, D q r"),
    Law("associativity of kron", "kron(A, kron(B, C)) = kron(kron(A, B), C)", "A m n, B p q, C r k"),
    Law("multiple of a left Kronecker factor", "kron(s * A, B) -> s * kron(A, B)", "A m n, B p q, s",
        drop=True),
    Law("multiple of a right Kronecker factor", "kron(A, s * B) -> s * kron(A, B)", "A m n, B p q, s",
        drop=True),
    Law("common left Kronecker factor", "kron(A, B) + kron(A, C) = kron(A, B + C)", "A m n, B p q, C p q"),
    Law("common right Kronecker factor", "kron(A, C) + kron(B, C) = kron(A + B, C)", "A m n, B m n, C p q"),
    Law("kron of identities", "kron(eye(m), eye(n)) -> eye(m * n)", "m int, n int", drop=True),
    Law("kron with zero", "kron(zero(m, n), A) -> zero(m * p, n * q)", "A p q, m int, n int", drop=True),
    Law("kron of zero", "kron(A, zero(m, n)) -> zero(p * m, q * n)", "A p q, m int, n int", drop=True),
    Law("kron of diagonals", "kron(diag(d), diag(e)) -> diag(kron(d, e))", "d m, e n", drop=True),
)  # fmt: skip

# Diagonals ----------------------------------------------------------------------------------------

DIAGONALS = (
    Law("product of diagonals", "diag(d) @ diag(e) -> diag(d * e)", "d n, e n", drop=True),
    Law("sum of diagonals", "diag(d) + diag(e) -> diag(d + e)", "d n, e n", first=True, drop=True),
    Law("multiple of a diagonal", "s * diag(d) -> diag(s * d)", "d n, s", drop=True),
    Law("diagonal and identity", "diag(d) + eye(n) -> diag(d + ones(d))", "d n", first=True, drop=True),
    Law("diagonal and multiple of identity", "diag(d) + s * eye(n) -> diag(d + s * ones(d))", "d n, s",
        first=True, drop=True),
)  # fmt: skip

# Inverses -----------------------------------------------------------------------------------------

INVERSES = (
    Law("inverse of an inverse", "inv(inv(A)) -> A", "A n n", drop=True),
    Law("inverse of a unitary", "inv(A) -> A.H", "A n n unitary", drop=True),
    Law("inverse of a product", "inv(A @ B) = inv(B) @ inv(A)", "A n n, B n n"),
    Law("inverse of a multiple", "inv(s * A) -> (1 / s) * inv(A)", "A n n, s", drop=True),
    Law("inverse on the left", "inv(A) @ A -> eye(n)", "A n n", drop=True),
    Law("inverse on the right", "A @ inv(A) -> eye(n)", "A n n", drop=True),
    Law("inverse of the identity", "inv(eye(n)) -> eye(n)", "n int", drop=True),
    Law("inverse of a diagonal", "inv(diag(d)) -> diag(1 / d)", "d n", drop=True),
    Law("inverse of a permutation", "inv(permutation(p)) -> permutation(back(p))", "p n table", drop=True),
    Law("inverse of a Kronecker product", "inv(kron(A, B)) -> kron(inv(A), inv(B))", "A m m, B n n"),
    Law("inverse of a direct sum", "inv(dsum(A, B)) -> dsum(inv(A), inv(B))", "A m m, B n n", drop=True),
    Law("inverse of a power", "inv(power(A, k)) -> power(inv(A), k)", "A n n, k int"),
    Law("pseudoinverse between", "A @ pinv(A) @ A -> A", "A m n", drop=True),
    Law("between pseudoinverses", "pinv(A) @ A @ pinv(A) -> pinv(A)", "A m n", drop=True),
    Law("pseudoinverse of a pseudoinverse", "pinv(pinv(A)) -> A", "A m n", drop=True),
    Law("adjoint of a pseudoinverse", "pinv(A).H -> pinv(A.H)", "A m n", drop=True),
    Law("transpose of a pseudoinverse", "pinv(A).T -> pinv(A.T)", "A m n", drop=True),
    Law("Woodbury",
        "inv(A + U @ V) -> inv(A) - inv(A) @ U @ inv(eye(k) + V @ inv(A) @ U) @ V @ inv(A)",
        "A n n, U n k, V k n"),
)  # fmt: skip

# Kronecker sums, direct sums, blocks, permutations ------------------------------------------------

STRUCTURE = (
    Law("Kronecker sum", "kronsum(A, B) = kron(A, eye(n)) + kron(eye(m), B)", "A m m, B n n"),
    Law("Kronecker sum of diagonals",
        "kronsum(diag(d), diag(e)) -> diag(kron(d, ones(e)) + kron(ones(d), e))", "d m, e n", drop=True),
    Law("sum of Kronecker sums",
        "kronsum(A, B) + kronsum(C, D) -> kronsum(A + C, B + D)", "A m m, B n n, C m m, D n n"),
    Law("multiple of a Kronecker sum", "s * kronsum(A, B) -> kronsum(s * A, s * B)", "A m m, B n n, s"),
    Law("product of direct sums", "dsum(A, B) @ dsum(C, D) = dsum(A @ C, B @ D)",
        "A m k, B p q, C k n, D q r"),
    Law("sum of direct sums", "dsum(A, B) + dsum(C, D) -> dsum(A + C, B + D)", "A m n, B p q, C m n, D p q"),
    Law("multiple of a direct sum", "s * dsum(A, B) = dsum(s * A, s * B)", "A m n, B p q, s"),
    Law("direct sum of identities", "dsum(eye(m), eye(n)) -> eye(m + n)", "m int, n int", drop=True),
    Law("direct sum of zeros", "dsum(zero(m, n), zero(p, q)) -> zero(m + p, n + q)",
        "m int, n int, p int, q int", drop=True),
    Law("direct sum of diagonals", "dsum(diag(d), diag(e)) -> diag(join(d, e))", "d m, e n", drop=True),
    Law("associativity of direct sums", "dsum(dsum(A, B), C) -> dsum(A, dsum(B, C))", "A m n, B p q, C r k",
        drop=True),
    Law("blocks on the diagonal", "column(row(A, zero(m, q)), row(zero(p, n), B)) -> dsum(A, B)",
        "A m n, B p q", drop=True),
    Law("row times column of blocks", "row(A, B) @ column(C, D) -> A @ C + B @ D",
        "A m k, B m q, C k n, D q n"),
    Law("column of blocks times", "column(A, B) @ C = column(A @ C, B @ C)", "A m k, B p k, C k n"),
    Law("times a row of blocks", "A @ row(B, C) = row(A @ B, A @ C)", "A m k, B k n, C k q"),
    Law("direct sum times column of blocks", "dsum(A, B) @ column(C, D) -> column(A @ C, B @ D)",
        "A m k, B p q, C k n, D q n"),
    Law("row of blocks times direct sum", "row(A, B) @ dsum(C, D) -> row(A @ C, B @ D)",
        "A m k, B m q, C k n, D q r"),
    Law("sum of rows of blocks", "row(A, B) + row(C, D) -> row(A + C, B + D)", "A m n, B m q, C m n, D m q"),
    Law("sum of columns of blocks", "column(A, B) + column(C, D) -> column(A + C, B + D)",
        "A m n, B p n, C m n, D p n"),
    Law("multiple of a row of blocks", "row(s * A, s * B) -> s * row(A, B)", "A m n, B m q, s"),
    Law("multiple of a column of blocks", "column(s * A, s * B) -> s * column(A, B)", "A m n, B p n, s"),
    Law("kron with a direct sum", "kron(dsum(A, B), C) -> dsum(kron(A, C), kron(B, C))",
        "A m n, B p q, C r k"),
    Law("permutation and back", "permutation(p) @ permutation(back(p)) -> eye(n)", "p n table", drop=True),
    Law("product of permutations", "permutation(p) @ permutation(q) -> permutation(follow(p, q))",
        "p n table, q n table", drop=True),
    Law("low rank", "low_rank(u, v) -> dense(u) @ dense(conj(v).T)", "u m k, v n k"),
    Law("low rank with a middle", "low_rank3(u, d, v) -> dense(u) @ diag(d) @ dense(conj(v).T)",
        "u m k, d k, v n k"),
    Law("low rank of one factor", "gram(u) -> dense(u) @ dense(conj(u).T)", "u n k"),
    Law("low rank of one factor with a middle", "gram2(u, d) -> dense(u) @ diag(d) @ dense(conj(u).T)",
        "u n k, d k"),
)  # fmt: skip

# Powers and exponentials --------------------------------------------------------------------------

FUNCTIONS = (
    Law("product of powers", "power(A, j) @ power(A, k) -> power(A, j + k)", "A n n, j int, k int",
        drop=True),
    Law("one more power", "A @ power(A, k) -> power(A, k + 1)", "A n n, k int"),
    Law("power and one more", "power(A, k) @ A -> power(A, k + 1)", "A n n, k int"),
    Law("power of a diagonal", "power(diag(d), k) -> diag(power(d, k))", "d n, k int", drop=True),
    Law("power of a projector", "power(A, k) -> A", "A n n projector, k int", drop=True),
    Law("power of a Kronecker product", "power(kron(A, B), k) -> kron(power(A, k), power(B, k))",
        "A m m, B n n, k int"),
    Law("power of a direct sum", "power(dsum(A, B), k) -> dsum(power(A, k), power(B, k))",
        "A m m, B n n, k int"),
    Law("square", "power(A, 2) = A @ A", "A n n"),
    Law("exponential of a Kronecker sum", "expm(kronsum(A, B)) -> kron(expm(A), expm(B))",
        "A m m small, B n n small", "series", drop=True),
    Law("exponential of a diagonal", "expm(diag(d)) -> diag(exp(d))", "d n small", "series", drop=True),
    Law("exponential of zero", "expm(zero(n, n)) -> eye(n)", "n int", "series", drop=True),
    Law("exponential of a direct sum", "expm(dsum(A, B)) -> dsum(expm(A), expm(B))",
        "A m m small, B n n small", "series", drop=True),
    Law("adjoint of an exponential", "expm(A).H -> expm(A.H)", "A n n small", "series", drop=True),
    Law("transpose of an exponential", "expm(A).T -> expm(A.T)", "A n n small", "series", drop=True),
    Law("conjugate of an exponential", "conj(expm(A)) -> expm(conj(A))", "A n n small", "series", drop=True),
    Law("inverse of an exponential", "inv(expm(A)) -> expm(-A)", "A n n small", "series", drop=True),
    Law("square of an exponential", "expm(A) @ expm(A) -> expm(2 * A)", "A n n small", "series"),
    Law("power of an exponential", "power(expm(A), k) -> expm(k * A)", "A n n small, k int", "series"),
    Law("product of exponentials", "expm(s * A) @ expm(t * A) -> expm((s + t) * A)", "A n n small, s, t",
        "series"),
    Law("exponential and that of a multiple", "expm(A) @ expm(s * A) -> expm((1 + s) * A)", "A n n small, s",
        "series"),
    Law("exponential of a multiple and that", "expm(s * A) @ expm(A) -> expm((s + 1) * A)", "A n n small, s",
        "series"),
    Law("square of a square root", "sqrtm(A) @ sqrtm(A) -> A", "A n n near", "series", drop=True),
    Law("adjoint of a square root", "sqrtm(A).H -> sqrtm(A.H)", "A n n near", "series", drop=True),
    Law("transpose of a square root", "sqrtm(A).T -> sqrtm(A.T)", "A n n near", "series", drop=True),
    Law("exponential in another basis", "expm(U @ A @ U.H) -> U @ expm(A) @ U.H",
        "U n n unitary, A n n small", "series"),
    Law("exponential of a multiple of the identity", "expm(s * eye(n)) -> exp(s) * eye(n)", "s small, n int",
        "series"),
)  # fmt: skip

# Matrices: what is computed ahead instead of at each application ----------------------------------

MATRICES = (
    Law("product of matrices", "dense(a) @ dense(b) -> dense(a @ b)", "a m k, b k n", group="matrix"),
    Law("sum of matrices", "dense(a) + dense(b) -> dense(a + b)", "a m n, b m n", first=True, group="matrix"),
    Law("multiple of a matrix", "s * dense(a) -> dense(s * a)", "a m n, s", group="matrix"),
    Law("adjoint of a matrix", "dense(a).H -> dense(conj(a).T)", "a m n", drop=True, group="matrix"),
    Law("transpose of a matrix", "dense(a).T -> dense(a.T)", "a m n", drop=True, group="matrix"),
    Law("conjugate of a matrix", "conj(dense(a)) -> dense(conj(a))", "a m n", drop=True, group="matrix"),
    Law("rows of a matrix", "diag(d) @ dense(a) -> dense(rows(d, a))", "d m, a m n", group="matrix"),
    Law("columns of a matrix", "dense(a) @ diag(d) -> dense(columns(a, d))", "d n, a m n", group="matrix"),
    Law("matrix and diagonal", "dense(a) + diag(d) -> dense(a + place(d))", "a n n, d n", first=True,
        group="matrix"),
    Law("kron of matrices", "kron(dense(a), dense(b)) -> dense(kron(a, b))", "a m n, b p q", group="matrix"),
)  # fmt: skip

LAWS: tuple[Law, ...] = (
    *TURNS, *UNITS, *LINEAR, *KRONECKER, *DIAGONALS, *INVERSES, *STRUCTURE, *FUNCTIONS, *MATRICES,
    *STRUCTURED,
)  # fmt: skip
