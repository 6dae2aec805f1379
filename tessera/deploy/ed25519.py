"""Ed25519 signatures (RFC 8032), for bundles and registries.

Plain integers: a signature takes some milliseconds.  Signing is not of constant time, so keep it off
machines whose users could measure it; verifying has no secrets.
"""

from __future__ import annotations

import hashlib

_P = 2**255 - 19  # the prime of the field (RFC 8032)
_L = 2**252 + 27742317777372353535851937790883648493  # the order of the base point
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)  # a square root of -1
Point = tuple[int, int, int, int]  # x, y, z and t of x/z, y/z with t = x y / z
_ZERO: Point = (0, 1, 1, 0)


def _add(a: Point, b: Point) -> Point:
    """The sum of two points (RFC 8032, 5.1.4)."""
    p, q = (a[1] - a[0]) * (b[1] - b[0]) % _P, (a[1] + a[0]) * (b[1] + b[0]) % _P
    r, s = 2 * a[3] * b[3] * _D % _P, 2 * a[2] * b[2] % _P
    e, f, g, h = q - p, s - r, s + r, q + p
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(n: int, a: Point) -> Point:
    out = _ZERO
    while n:
        if n & 1:
            out = _add(out, a)
        a = _add(a, a)
        n >>= 1
    return out


def _root_x(y: int, sign: int) -> int | None:
    """The x of a point by its y (RFC 8032, 5.1.3)."""
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (x == 0 and sign):
        return None
    return _P - x if x & 1 != sign else x


_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_BASE_X = _root_x(_BASE_Y, 0) or 0
_BASE: Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)


def _packed(a: Point) -> bytes:
    inverse = pow(a[2], _P - 2, _P)
    x, y = a[0] * inverse % _P, a[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _point(data: bytes) -> Point | None:
    n = int.from_bytes(data, "little")
    y, sign = n & ((1 << 255) - 1), n >> 255
    x = _root_x(y, sign)
    return None if x is None else (x, y, 1, x * y % _P)


def _secret(key: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(key).digest()
    n = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | 1 << 254
    return n, digest[32:]


def _hash(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % _L


def _is_small(a: Point) -> bool:
    """Whether eight times a point is zero: no secret has such a key, and anybody can sign for it."""
    return _packed(_times(8, a)) == _packed(_ZERO)


def is_key(x: object) -> bool:
    """Whether x can be a key, secret or public: 32 bytes."""
    return isinstance(x, bytes) and len(x) == 32


def public(key: bytes) -> bytes:
    """The public key of 32 secret bytes."""
    return _packed(_times(_secret(key)[0], _BASE))


def sign(key: bytes, message: bytes) -> bytes:
    """The signature of a message, 64 bytes."""
    n, prefix = _secret(key)
    own = _packed(_times(n, _BASE))
    r = _hash(prefix, message)
    front = _packed(_times(r, _BASE))
    s = (r + _hash(front, own, message) * n) % _L
    return front + s.to_bytes(32, "little")


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key signed this message."""
    if len(key) != 32 or len(signature) != 64:
        return False
    a, r = _point(key), _point(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= _L or _is_small(a) or _is_small(r):
        return False
    left, right = _times(s, _BASE), _add(r, _times(_hash(signature[:32], key, message), a))
    return _packed(left) == _packed(right)
