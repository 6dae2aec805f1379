"""Rotary positions: the angles of every published scaling, as tables of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tessera.core.errors import ModelError
from tessera.lang import op
from tessera.lang.create import tensor
from tessera.models.blocks import Array


def tables(parameters: Mapping[str, Any], dim: int, rows: int) -> tuple[Any, Any]:
    """Cosines and sines (rows, dim / 2) by the `rope_parameters` of a config."""
    rates, factor = frequencies(parameters, dim)
    angle = np.arange(rows, dtype=np.float32)[:, None] * rates
    cos, sin = np.cos(angle) * np.float32(factor), np.sin(angle) * np.float32(factor)
    return tensor(cos.astype(np.float32)), tensor(sin.astype(np.float32))


def frequencies(p: Mapping[str, Any], dim: int) -> tuple[Array, float]:
    """Radians per position of each pair, and what cosines and sines are multiplied with."""
    rates, factor = _scaled(p, dim)
    given = p.get("divisors")
    if given is None:
        return rates, factor
    divisors = np.asarray(given, np.float32)
    if divisors.shape != rates.shape or not (np.isfinite(divisors) & (divisors > 0)).all():
        raise ModelError(
            f"rotary positions: the divisors of the angles are not {len(rates)} numbers above 0"
        )
    return rates / divisors, factor


def _scaled(p: Mapping[str, Any], dim: int) -> tuple[Array, float]:
    """Rates and factor by the kind of scaling."""
    base = float(p.get("rope_theta", 10000.0))
    plain = (1.0 / base ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))).astype(
        np.float32
    )
    kind = p.get("rope_type", p.get("type", "default"))
    if kind in ("default", "dynamic"):  # dynamic: as default within the original context
        return plain, 1.0
    if kind == "linear":
        return plain / np.float32(_given(p, "factor")), 1.0
    if kind == "llama3":
        return _llama3(plain, p), 1.0
    if kind == "yarn":
        return _yarn(plain, p, base, dim)
    raise ModelError(
        f"config.json: rope_type is {kind!r}, expected default, linear, llama3 or yarn"
    )


def _given(p: Mapping[str, Any], name: str) -> float:
    """A number above 0 that a scaling needs."""
    v = p.get(name)
    if isinstance(v, bool) or not isinstance(v, int | float) or not v > 0:
        raise ModelError(
            f"config.json: {name} of the rotary positions is {v!r}, expected a number above 0"
        )
    return float(v)


def _llama3(plain: Array, p: Mapping[str, Any]) -> Array:
    factor, low, high = (
        _given(p, "factor"),
        _given(p, "low_freq_factor"),
        _given(p, "high_freq_factor"),
    )
    old = _given(p, "original_max_position_embeddings")
    length = 2 * math.pi / plain
    part = (old / length - low) / (high - low)
    mixed = (1 - part) * plain / factor + part * plain
    out = np.where(length < old / high, plain, np.where(length > old / low, plain / factor, mixed))
    return out.astype(np.float32)


def _yarn(plain: Array, p: Mapping[str, Any], base: float, dim: int) -> tuple[Array, float]:
    """Interpolate slow pairs, keep fast ones, and blend between them (Peng et al., 2023)."""
    factor = _given(p, "factor")
    old = float(p.get("original_max_position_embeddings") or _given(p, "max_position_embeddings"))

    def pair(turns: float) -> float:
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(float(p.get("beta_fast") or 32)), pair(float(p.get("beta_slow") or 1))
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (np.arange(dim // 2, dtype=np.float32) - low) / np.float32((high - low) or 0.001)
    keep = 1 - np.clip(ramp, 0, 1)
    rates = plain / np.float32(factor) * (1 - keep) + plain * keep
    return rates.astype(np.float32), _yarn_factor(p, factor)


def _yarn_factor(p: Mapping[str, Any], factor: float) -> float:
    if p.get("attention_factor") is not None:
        return float(p["attention_factor"])

    def scale(m: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0

    over, under = p.get("mscale"), p.get("mscale_all_dim")
    return scale(float(over)) / scale(float(under)) if over and under else scale(1.0)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Turn the pairs (x[i], x[i + dim / 2]) of (batch, heads, rows, dim) by angles (batch, 1, rows, dim /
    2).
    """
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half:]
    return op.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)
